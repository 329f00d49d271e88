// A model of two attention layers with random weights, small enough to run thousands of steps, and
// wired so that every token of a sequence matters for its logits. For tests of runners, on any
// device.

#ifndef REPRISE_RUNNER_TESTING_TOY_MODEL_H_
#define REPRISE_RUNNER_TESTING_TOY_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "reprise/attention/device_profile.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/model.h"

namespace reprise {

// H200Profile() with other costs of reading a shared prefix: tests choose when it is read once.
constexpr DeviceProfile ProfileWithCascade(const CascadeCosts& costs) {
  DeviceProfile profile = H200Profile();
  profile.cascade_map = costs;
  return profile;
}

struct ToyModelOptions {
  int vocab_size = 61;
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int max_position = 256;
  DType dtype = DType::kFloat32;           // of q, k, v; all else is float32
  std::optional<DType> logits_dtype = {};  // as in ModelSpec
  // Keys and values are made so many times larger, which the rest of the layer takes back: all else
  // is as with 1.
  float kv_factor = 1;
  // One product for each row, so that a row's bits do not depend on the others. Slow.
  bool row_by_row = false;
  std::optional<float> kv_scale = {};  // k_scale and v_scale of every LayerSpec
  bool takes_embeddings = false;       // float32 models only
  int num_position_dims = 1;           // with several, each has a table of its own; they are added
  c10::Device device = c10::kCPU;
  uint64_t seed = 1;
};

class ToyModel : public Model {
 public:
  explicit ToyModel(const ToyModelOptions& options);

  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  // The logits [vocab_size] after `tokens`, without a cache, in float32: what a runner must
  // reproduce.
  at::Tensor DenseLogits(absl::Span<const int32_t> tokens) const;
  // [num_tokens, vocab_size] after each of them.
  at::Tensor AllDenseLogits(absl::Span<const int32_t> tokens) const;
  // As DenseLogits(), after n tokens with these embeddings [n, width], at these positions
  // [num_position_dims, n] int32.
  at::Tensor DenseLogitsOf(const at::Tensor& embeddings, const at::Tensor& positions) const;

  // [n, width], on the model's device: what token ids are replaced by.
  at::Tensor Embeddings(absl::Span<const int32_t> tokens) const;

  int num_forwards() const { return num_forwards_; }

 private:
  struct Layer {
    at::Tensor q, k, v, out;  // [width, heads * head_dim] and back
  };

  at::Tensor Product(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor AllDenseLogitsOf(const at::Tensor& embeddings, const at::Tensor& positions) const;
  // [n, width], of positions [n] or [num_position_dims, n].
  at::Tensor PositionEmbeddings(const at::Tensor& positions) const;

  ToyModelOptions options_;
  ModelSpec spec_;
  at::Tensor token_embedding_;                   // [vocab_size, width]
  std::vector<at::Tensor> position_embeddings_;  // by dimension, [max_position, width]
  std::vector<Layer> layers_;
  at::Tensor head_;  // [width, vocab_size]
  int num_forwards_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_TOY_MODEL_H_
