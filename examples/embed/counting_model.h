// A model in 60 lines, with a kernel of one's own: it counts. Each token is a one-hot vector in one
// attention head and attends to equal tokens, and the successor of what it finds is its next token.

#ifndef COUNTING_MODEL_H_
#define COUNTING_MODEL_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/eye.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "counting_kernel.h"
#include "reprise/runner/model.h"
#include "reprise/runner/step.h"
#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

class CountingModel : public reprise::Model {
 public:
  static constexpr int kVocabSize = 32;

  explicit CountingModel(c10::Device device)
      : embedding_(at::eye(kVocabSize, at::device(device))),
        spec_{.layers = {{.params = {.num_q_heads = 1,
                                     .num_kv_heads = 1,
                                     .head_dim_qk = kVocabSize,
                                     .head_dim_v = kVocabSize}}},
              .vocab_size = kVocabSize,
              .max_position = 64,
              .device = device} {}

  const reprise::ModelSpec& spec() const override { return spec_; }

  absl::StatusOr<at::Tensor> Forward(const reprise::Step& step) override {
    // [num_tokens, heads = 1, kVocabSize]
    const at::Tensor x = embedding_.index_select(0, step.token_ids()).unsqueeze(1);
    const absl::StatusOr<at::Tensor> attended = step.Attend(0, x * 20, x, x);
    if (!attended.ok()) return attended.status();
    // The kernel writes where the runner reads; everything that it is given stays at its address.
    const at::Tensor contiguous = attended->contiguous();
    const SuccessorArgs args = {.attended = contiguous.const_data_ptr<float>(),
                                .rows = step.logits_indices().const_data_ptr<int32_t>(),
                                .logits = step.logits().mutable_data_ptr<float>(),
                                .num_logits = static_cast<int>(step.logits_indices().size(0)),
                                .vocab_size = kVocabSize};
    if (x.is_cpu()) SuccessorOnHost(args);
#ifdef REPRISE_WITH_CUDA
    if (x.is_cuda() && LaunchSuccessor(args, c10::cuda::getCurrentCUDAStream().stream()) != 0) {
      return absl::InternalError("the successor kernel was not launched");
    }
#endif
    return step.logits();
  }

 private:
  const at::Tensor embedding_;
  const reprise::ModelSpec spec_;
};

#endif  // COUNTING_MODEL_H_
