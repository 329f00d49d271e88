#include "tests/golden/routed_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/runner/step_watch.h"

namespace reprise {
namespace {

class ExpertsWatch : public StepWatch {
 public:
  explicit ExpertsWatch(std::function<void(const at::Tensor& experts)> see)
      : see_(std::move(see)) {}

  void Begin() override {}
  void See(std::string_view name, const at::Tensor& tensor, WatchedRows) override {
    if (absl::EndsWith(absl::string_view(name.data(), name.size()), " experts")) see_(tensor);
  }
  absl::Status End() override { return absl::OkStatus(); }

 private:
  std::function<void(const at::Tensor& experts)> see_;
};

}  // namespace

RoutedModel::RoutedModel(Model* model, int max_num_seqs)
    : model_(model),
      max_num_seqs_(max_num_seqs),
      tokens_(at::full({max_num_seqs * int64_t{spec().max_position} + 1}, -1,
                       at::TensorOptions(spec().device).dtype(at::kInt))) {}

absl::StatusOr<at::Tensor> RoutedModel::Forward(const Step& step) {
  const at::Tensor places = PlacesOf(step);
  tokens_.index_copy_(0, places, step.token_ids());
  size_t layer = 0;
  ExpertsWatch watch([&](const at::Tensor& experts) {
    if (layer == experts_.size()) {
      experts_.push_back(at::full({tokens_.size(0), experts.size(1)}, -1, experts.options()));
    }
    experts_[layer++].index_copy_(0, places, experts);
  });
  return model_->Forward(step.WatchedBy(&watch));
}

at::Tensor RoutedModel::PlacesOf(const Step& step) const {
  const PagedBatch& batch = step.batch(0);
  const at::TensorOptions ints = step.token_ids().options();
  const auto array = [&](const int32_t* data, int64_t size) {
    return at::from_blob(const_cast<int32_t*>(data), {size}, ints);
  };
  // A token's row: as many rows as end at it or before. Padding is behind the last one: slots do
  // not tell, as a rank that has some of the keys has none for the others.
  const at::Tensor tokens = at::arange(step.num_tokens(), ints);
  const at::Tensor ends = array(batch.query_start_loc + 1, batch.num_rows);
  const at::Tensor rows = (tokens.unsqueeze(1) >= ends).sum(1).clamp_max(batch.num_rows - 1);
  const at::Tensor slots = array(batch.table_row, batch.num_rows).index_select(0, rows);
  const at::Tensor places = slots.to(at::kLong) * spec().max_position + step.positions();
  return at::where(tokens < ends[-1], places, tokens_.size(0) - 1);
}

at::Tensor RoutedModel::ExpertsOf(const std::vector<int32_t>& tokens) const {
  const at::Tensor seen = tokens_.cpu();
  const at::Tensor wanted = at::tensor(tokens);
  const int64_t length = wanted.size(0);
  for (int64_t slot = 0; slot < max_num_seqs_; ++slot) {
    const int64_t first = slot * spec().max_position;
    if (!seen.narrow(0, first, length).equal(wanted)) continue;
    std::vector<at::Tensor> layers;
    for (const at::Tensor& experts : experts_) {
      layers.push_back(std::get<0>(experts.narrow(0, first, length).cpu().sort(1)));
    }
    return at::cat(layers, 1);
  }
  return {};
}

}  // namespace reprise
