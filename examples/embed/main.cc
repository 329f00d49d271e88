// An example of use from another workspace, with that workspace's compiler options. A model of one
// attention layer, which counts, runs under the engine and prints its tokens.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/roll.h>

#include <cstdint>
#include <iostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "runner/model.h"
#include "runner/step.h"

namespace {

constexpr int kVocabSize = 16;

// Each token is a one-hot vector in one attention head: it attends to equal tokens, and its
// successor is the likeliest next token.
class CountingModel : public reprise::Model {
 public:
  const reprise::ModelSpec& spec() const override { return spec_; }

  absl::StatusOr<at::Tensor> Forward(const reprise::Step& step) override {
    const at::Tensor x = embedding_.index_select(0, step.token_ids());  // [num_tokens, kVocabSize]
    const at::Tensor heads = x.unsqueeze(1);  // [num_tokens, 1, kVocabSize]
    const absl::StatusOr<at::Tensor> attended = step.Attend(0, heads * 20, heads, heads);
    if (!attended.ok()) return attended.status();
    const at::Tensor next = at::roll(attended->squeeze(1), 1, 1);  // [num_tokens, kVocabSize]
    return next.index_select(0, step.logits_indices());
  }

 private:
  const at::Tensor embedding_ = at::eye(kVocabSize);
  const reprise::ModelSpec spec_ = {.layers = {{.params = {.num_q_heads = 1,
                                                           .num_kv_heads = 1,
                                                           .head_dim_qk = kVocabSize,
                                                           .head_dim_v = kVocabSize}}},
                                    .vocab_size = kVocabSize,
                                    .max_position = 64};
};

absl::Status Run() {
  CountingModel model;
  const auto engine = reprise::Engine::Create(&model, {});
  if (!engine.ok()) return engine.status();
  const auto added = (*engine)->Add({.prompt = {3, 4, 5}, .max_new_tokens = 8});
  if (!added.ok()) return added.status();
  for (std::vector<reprise::TokenEvent> events; (*engine)->has_work(); events.clear()) {
    if (absl::Status status = (*engine)->Step(events); !status.ok()) return status;
    for (const reprise::TokenEvent& event : events) {
      if (!event.error.ok()) return event.error;
      std::cout << *event.token << ' ';
    }
  }
  std::cout << std::endl;
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << "embed: " << status << std::endl;
  return status.ok() ? 0 : 1;
}
