#include "reprise/runner/drafting/head_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <utility>

#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ranks/context_attention.h"
#include "reprise/runner/step.h"

namespace reprise {
namespace {

constexpr int kNoPosition = -2;  // the position before the first token is -1

}  // namespace

ModelSpec HeadSpecOf(const DraftHeads& heads, const ModelSpec& model) {
  const absl::Span<const LayerSpec> layers = heads.layers();
  return {.layers = {layers.begin(), layers.end()},
          .vocab_size = model.vocab_size,
          .max_position = model.max_position,
          .dtype = model.dtype,
          .logits_dtype = model.logits_dtype,
          .device = model.device};
}

HeadModel::HeadModel(const HeadModelOptions& options)
    : options_(options), spec_(HeadSpecOf(*options.heads, *options.of)) {}

absl::StatusOr<std::unique_ptr<HeadModel>> HeadModel::Create(const HeadModelOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<HeadModel>> {
    auto made = std::unique_ptr<HeadModel>(new HeadModel(options));
    const int64_t num_states = int64_t{options.max_num_seqs} * kKeptStates;
    const at::TensorOptions on_device(options.memory->logits().device());
    const at::TensorOptions ints = on_device.dtype(at::kInt);
    made->ids_ = at::arange(options.max_num_tokens, ints);
    made->states_ = at::zeros({num_states, options.of->hidden_dim},
                              on_device.dtype(ToScalarType(options.of->dtype)));
    made->positions_ = at::full({num_states}, kNoPosition, ints);
    return made;
  });
}

HeadModel::Places HeadModel::PlacesOf(const StepArrays& arrays, int num_rows,
                                      int64_t num_tokens) const {
  const StepMemory& memory = *options_.memory;
  const at::Tensor bounds = memory.View(arrays.query_start_loc, int64_t{num_rows} + 1);
  const at::Tensor ends = bounds.narrow(0, 1, num_rows);
  Places places;
  // Counts the rows that end at or before each token; tokens after the last row belong to the last
  // row.
  places.row = at::searchsorted(ends, ids_.narrow(0, 0, num_tokens), /*out_int32=*/false,
                                /*right=*/true)
                   .clamp_max(num_rows - 1);
  places.slot = memory.View(arrays.table_row, num_rows).index_select(0, places.row).to(at::kLong);
  places.position = memory.View(arrays.positions, num_tokens);
  places.start = bounds.index_select(0, places.row);
  return places;
}

at::Tensor HeadModel::StatesBefore(const Places& places) const {
  const at::Tensor before = places.position - 1;
  const at::Tensor index = places.slot * kKeptStates + before.remainder(kKeptStates);
  const at::Tensor is_known = positions_.index_select(0, index) == before;
  const at::Tensor states = states_.index_select(0, index);
  return at::where(is_known.unsqueeze(1), states, at::zeros({}, states.options()));
}

KeepStatesArgs HeadModel::ArgsToKeep(const StepArrays& arrays, int num_rows, int num_tokens,
                                     const at::Tensor& hidden) {
  return {.hidden = static_cast<const std::byte*>(hidden.const_data_ptr()),
          .num_hidden = static_cast<int>(hidden.size(0)),
          .row_bytes = hidden.size(1) * static_cast<int64_t>(hidden.element_size()),
          .positions = arrays.positions,
          .table_row = arrays.table_row,
          .query_start_loc = arrays.query_start_loc,
          .num_tokens = num_tokens,
          .num_rows = num_rows,
          .states = static_cast<std::byte*>(states_.data_ptr()),
          .state_positions = positions_.data_ptr<int32_t>(),
          .num_slots = options_.max_num_seqs,
          .num_kept = kKeptStates};
}

absl::StatusOr<at::Tensor> HeadModel::Forward(const Step& step) {
  const Places places = PlacesOf(*arrays_, num_rows_, step.num_tokens());
  at::Tensor hidden = StatesBefore(places);
  if (index_ == kPromptPass) {
    // For all tokens except a row's first, the state of the previous token comes from this step.
    const at::Tensor ids = ids_.narrow(0, 0, step.num_tokens());
    const at::Tensor before = step_hidden_.index_select(0, (ids - 1).clamp_min(0));
    hidden = at::where((ids == places.start).unsqueeze(1), hidden, before);
  }
  REPRISE_ASSIGN_OR_RETURN(HeadsOutput output,
                           options_.heads->Forward({.hidden = hidden,
                                                    .token_ids = step.token_ids(),
                                                    .pass = index_,
                                                    .linears = &step.linears(),
                                                    .step = &step}));
  if (index_ == kPromptPass) return output.logits;
  // The state that the next draft is sampled from. The next pass reads it.
  const at::Tensor last = step.logits_indices();
  if (!output.hidden.defined()) output.hidden = hidden.index_select(0, last);
  ShapeChecker dims;
  dims.Bind("num_logits", last.size(0));
  dims.Bind("hidden_dim", options_.of->hidden_dim);
  REPRISE_RETURN_IF_ERROR(dims.Check("hidden of the heads", output.hidden,
                                     {"num_logits", "hidden_dim"}, hidden.scalar_type()));
  const at::Tensor kept = output.hidden.contiguous();
  KeepStatesArgs args = ArgsToKeep(*arrays_, num_rows_, static_cast<int>(step.num_tokens()), kept);
  args.last_token = arrays_->logits_indices;
  args.sample_slot = arrays_->sample_slot;
  REPRISE_RETURN_IF_ERROR(driver_->KeepStates(args));
  return OfFirstRank(options_.collectives, std::move(output.logits));
}

absl::Status HeadModel::Take(const GraphKey& key, const at::Tensor& hidden) {
  ShapeChecker dims;
  dims.Bind("num_tokens", key.padded_num_tokens);
  dims.Bind("hidden_dim", options_.of->hidden_dim);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("hidden", hidden, {"num_tokens", "hidden_dim"}, ToScalarType(options_.of->dtype)));
  step_hidden_ = hidden;
  return absl::OkStatus();
}

absl::Status HeadModel::Keep(const GraphKey& key, DeviceDriver& driver) {
  const at::Tensor hidden = std::exchange(step_hidden_, at::Tensor()).contiguous();
  return driver.KeepStates(ArgsToKeep(options_.memory->arrays(), key.padded_num_seqs,
                                      static_cast<int>(key.padded_num_tokens), hidden));
}

void HeadModel::Forget(absl::Span<const SlotJoin> joins) {
  for (const SlotJoin& join : joins) {
    positions_.narrow(0, int64_t{join.slot.value()} * kKeptStates, kKeptStates).fill_(kNoPosition);
  }
}

int64_t HeadModel::bytes() const {
  return static_cast<int64_t>(ids_.nbytes() + states_.nbytes() + positions_.nbytes());
}

void HeadModel::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("states for heads", states_.data_ptr());
  fingerprint.AddAddress("positions of states for heads", positions_.data_ptr());
}

}  // namespace reprise
