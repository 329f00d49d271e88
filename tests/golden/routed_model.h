// A model with experts that remembers which of them it chose, eagerly or in replayed graphs.
//
//   RoutedModel routed(model.get(), /*max_num_seqs=*/16);
//   ... RunGolden(routed, requests, options) ...
//   const at::Tensor chosen = routed.ExpertsOf(tokens);  // [num_tokens, all layers' experts of a
//   token]

#ifndef TESTS_GOLDEN_ROUTED_MODEL_H_
#define TESTS_GOLDEN_ROUTED_MODEL_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/runner/model.h"
#include "reprise/runner/step.h"

namespace reprise {

class RoutedModel : public Model {
 public:
  // `model` must outlive this. REQUIRES: layer 0 is attention over the step's own rows.
  RoutedModel(Model* model, int max_num_seqs);

  const ModelSpec& spec() const override { return model_->spec(); }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override;

  // The experts of each token of the sequence that was given these, and maybe more after them:
  // those of a layer in ascending order, [tokens.size(), layers * experts of a token] int64 on the
  // CPU. Undefined if no sequence was, or if a later one took its slot. Waits for the device.
  // REQUIRES: the sequence computed all of them itself, which a salt of its own sees to.
  at::Tensor ExpertsOf(const std::vector<int32_t>& tokens) const;

 private:
  // [num_tokens] int64: where the step's tokens are kept, by slot and position.
  at::Tensor PlacesOf(const Step& step) const;

  Model* model_;
  int64_t max_num_seqs_;
  at::Tensor tokens_;  // [max_num_seqs * max_position + 1] int32; the last: of padding
  std::vector<at::Tensor> experts_;  // by layer, [as many, experts of a token] int64
};

}  // namespace reprise

#endif  // TESTS_GOLDEN_ROUTED_MODEL_H_
