#include "runner/head_drafts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "distributed/share.h"
#include "runner/ranks/context_attention.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<HeadDrafts>> HeadDrafts::Create(const HeadDraftsOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<HeadDrafts>> {
    auto made = std::unique_ptr<HeadDrafts>(new HeadDrafts(options));
    const at::TensorOptions on_device(options.driver->device());
    const at::TensorOptions hidden = on_device.dtype(ToScalarType(options.dtype));
    const at::TensorOptions ints = on_device.dtype(at::kInt);
    const int64_t rows = options.max_num_seqs;
    const int64_t passes = options.max_drafts;
    made->slot_hidden_ = at::zeros({rows, options.hidden_dim}, hidden);
    made->hidden_ = at::zeros({options.max_logits, options.hidden_dim}, hidden);
    made->last_place_ = at::zeros({rows}, ints);
    made->chosen_ = at::zeros({passes, rows}, ints);
    made->offsets_ = at::arange(passes, ints).unsqueeze(1).expand({passes, rows}).contiguous();
    if (options.kept_logits_dtype.has_value()) {
      made->logits_ = at::zeros({passes * rows, options.vocab_size},
                                on_device.dtype(ToScalarType(*options.kept_logits_dtype)));
    }
    return made;
  });
}

// Chooses the drafts of a pass.
absl::Status HeadDrafts::RunPass(const HeadsOutput& output, int pass, int num_rows) const {
  ShapeChecker dims;
  dims.Bind("num_rows", num_rows);
  dims.Bind("vocab_size", options_.vocab_size);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("logits of the heads", output.logits, {"num_rows", "vocab_size"}));
  at::Tensor logits = output.logits;
  if (logits_.defined()) {
    logits = logits_.narrow(0, int64_t{pass} * options_.max_num_seqs, num_rows);
    logits.copy_(output.logits);
  }
  if (RanksOf(options_.collectives).world > 1) {
    logits = logits.contiguous();
    REPRISE_RETURN_IF_ERROR(CopyFromFirstRank(options_.collectives, logits));
  }
  return options_.driver->Sample({.logits = logits,
                                  .slots = options_.memory->slots().sampling_slots(),
                                  .sample_slot = options_.memory->arrays().sample_slot,
                                  .sample_offset = offsets_[pass].data_ptr<int32_t>(),
                                  .out = chosen_[pass].data_ptr<int32_t>()});
}

std::function<absl::Status()> HeadDrafts::Passes(const GraphKey& key) const {
  const StepMemory& memory = *options_.memory;
  const int num_rows = key.padded_num_seqs;
  const int num_passes = key.num_drafts;
  const at::Tensor slots = memory.View(memory.arrays().table_row, num_rows);
  const at::Tensor last_token = memory.View(memory.slots().last_token, options_.max_num_seqs);
  const PlaceDraftsArgs place = {.arrays = memory.arrays(),
                                 .chosen = chosen_.data_ptr<int32_t>(),
                                 .chosen_stride = options_.max_num_seqs,
                                 .num_rows = num_rows,
                                 .max_drafts = num_passes};
  return [this, slots, last_token, place, num_rows, num_passes]() -> absl::Status {
    HeadsStep step = {.hidden = slot_hidden_.index_select(0, slots),
                      .token_ids = last_token.index_select(0, slots),
                      .linears = &options_.driver->linears()};
    for (step.pass = 0; step.pass < num_passes; ++step.pass) {
      REPRISE_ASSIGN_OR_RETURN(HeadsOutput output, options_.heads->Forward(step));
      REPRISE_RETURN_IF_ERROR(RunPass(output, step.pass, num_rows));
      // Of rows that chose nothing a valid id.
      step.token_ids = chosen_[step.pass].narrow(0, 0, num_rows).clamp_min(0);
      if (output.hidden.defined()) step.hidden = std::move(output.hidden);
    }
    return options_.driver->PlaceDrafts(place);
  };
}

absl::Status HeadDrafts::Take(const GraphKey& key, const at::Tensor& hidden) const {
  const int num_logits = key.padded_num_seqs + key.num_earlier_logits;
  ShapeChecker dims;
  dims.Bind("num_logits", num_logits);
  dims.Bind("hidden_dim", options_.hidden_dim);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("hidden", hidden, {"num_logits", "hidden_dim"}, ToScalarType(options_.dtype)));
  if (key.num_drafts == 0) return Keep(hidden.contiguous(), key.padded_num_seqs, nullptr);
  hidden_.narrow(0, 0, num_logits).copy_(hidden);
  return absl::OkStatus();
}

absl::Status HeadDrafts::KeepVerified(const GraphKey& key) const {
  return Keep(hidden_.narrow(0, 0, key.padded_num_seqs + key.num_earlier_logits),
              key.padded_num_seqs, last_place());
}

absl::Status HeadDrafts::Keep(const at::Tensor& hidden, int num_rows, const int32_t* place) const {
  return options_.driver->KeepHidden(
      {.hidden = static_cast<const std::byte*>(hidden.const_data_ptr()),
       .num_places = static_cast<int>(hidden.size(0)),
       .row_bytes = hidden.size(1) * static_cast<int64_t>(hidden.element_size()),
       .slot_hidden = static_cast<std::byte*>(slot_hidden_.data_ptr()),
       .num_slots = options_.max_num_seqs,
       .sample_slot = options_.memory->arrays().sample_slot,
       .place = place,
       .num_rows = num_rows});
}

int64_t HeadDrafts::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor :
       {slot_hidden_, hidden_, last_place_, chosen_, offsets_, logits_}) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

void HeadDrafts::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("hidden states", slot_hidden_.data_ptr());
  fingerprint.AddAddress("tokens of heads", chosen_.data_ptr());
}

}  // namespace reprise
