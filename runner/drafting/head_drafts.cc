#include "reprise/runner/drafting/head_drafts.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <cstddef>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ranks/context_attention.h"
#include "reprise/runner/speculation/draft_levels.h"

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
    made->positions_ = at::zeros({rows}, ints);
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

absl::Status HeadDrafts::RunPass(const HeadsOutput& output, int pass, int first, int num_choices,
                                 int num_rows) const {
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
  REPRISE_ASSIGN_OR_RETURN(logits, OfFirstRank(options_.collectives, std::move(logits)));
  if (num_choices > 1) logits = logits.clone();  // sampled tokens are masked below
  for (int choice = 0; choice < num_choices; ++choice) {
    if (choice > 0) {
      // If a row sampled no token, this masks token 0: the row samples no token again.
      const at::Tensor chosen = chosen_[first + choice - 1].narrow(0, 0, num_rows).clamp_min(0);
      logits.scatter_(1, chosen.to(at::kLong).unsqueeze(1),
                      -std::numeric_limits<float>::infinity());
    }
    REPRISE_RETURN_IF_ERROR(
        options_.driver->Sample({.logits = logits,
                                 .slots = options_.memory->slots().sampling_slots(),
                                 .sample_slot = options_.memory->arrays().sample_slot,
                                 .sample_offset = offsets_[pass].data_ptr<int32_t>(),
                                 .out = chosen_[first + choice].data_ptr<int32_t>()}));
  }
  return absl::OkStatus();
}

std::function<absl::Status()> HeadDrafts::Passes(const GraphKey& key,
                                                 const DraftTrees* trees) const {
  const StepMemory& memory = *options_.memory;
  const int num_rows = key.padded_num_seqs;
  const at::Tensor slots = memory.View(memory.arrays().table_row, num_rows);
  const at::Tensor last_token = memory.View(memory.slots().last_token, options_.max_num_seqs);
  const DraftLevels levels =
      LevelsOf(trees == nullptr ? absl::Span<const int>() : trees->parents(), key.num_drafts);
  PlaceDraftsArgs place = {.arrays = memory.arrays(),
                           .chosen = chosen_.data_ptr<int32_t>(),
                           .chosen_stride = options_.max_num_seqs,
                           .num_rows = num_rows,
                           .max_drafts = key.num_drafts};
  place.ranks = levels.is_tree ? trees->ranks() : nullptr;
  place.num_levels = levels.num_levels();
  for (int level = 0; level < levels.num_levels(); ++level) {
    place.end_of_level[level] = levels.first[level + 2] - 1;  // node 0 is not a draft
    if (level == 0) continue;
    place.first_of_level[level] = place.first_of_level[level - 1] + levels.num_ranks[level - 1];
  }
  return [this, slots, last_token, place, levels, num_rows]() -> absl::Status {
    HeadsStep step = {.hidden = slot_hidden_.index_select(0, slots),
                      .token_ids = last_token.index_select(0, slots),
                      .linears = &options_.driver->linears()};
    for (step.pass = 0; step.pass < levels.num_levels(); ++step.pass) {
      REPRISE_ASSIGN_OR_RETURN(HeadsOutput output, options_.heads->Forward(step));
      const int first = place.first_of_level[step.pass];
      REPRISE_RETURN_IF_ERROR(
          RunPass(output, step.pass, first, levels.num_ranks[step.pass], num_rows));
      // The first choice of the pass; token 0 for rows that sampled no token.
      step.token_ids = chosen_[first].narrow(0, 0, num_rows).clamp_min(0);
      if (output.hidden.defined()) step.hidden = std::move(output.hidden);
    }
    return options_.driver->PlaceDrafts(place);
  };
}

absl::Status HeadDrafts::Take(const GraphKey& key, const Step& step, const at::Tensor& hidden) {
  ShapeChecker dims;
  dims.Bind("num_tokens", key.padded_num_tokens);
  dims.Bind("hidden_dim", options_.hidden_dim);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("hidden", hidden, {"num_tokens", "hidden_dim"}, ToScalarType(options_.dtype)));
  has_taken_ = true;
  const at::Tensor& indices = step.logits_indices();
  if (key.num_drafts == 0) return Keep(key, hidden.index_select(0, indices), nullptr);
  hidden_.narrow(0, 0, indices.size(0)).copy_(hidden.index_select(0, indices));
  return absl::OkStatus();
}

bool HeadDrafts::EndTake() { return std::exchange(has_taken_, false); }

absl::Status HeadDrafts::KeepVerified(const GraphKey& key) const {
  return Keep(key, hidden_.narrow(0, 0, key.padded_num_seqs + key.num_earlier_logits),
              last_place());
}

absl::Status HeadDrafts::Keep(const GraphKey& key, const at::Tensor& hidden,
                              const int32_t* place) const {
  const StepArrays& arrays = options_.memory->arrays();
  return options_.driver->KeepStates(
      {.hidden = static_cast<const std::byte*>(hidden.const_data_ptr()),
       .num_hidden = static_cast<int>(hidden.size(0)),
       .row_bytes = hidden.size(1) * static_cast<int64_t>(hidden.element_size()),
       .positions = arrays.positions,
       .table_row = arrays.table_row,
       .last_token = arrays.logits_indices,
       .sample_slot = arrays.sample_slot,
       .place = place,
       .num_tokens = static_cast<int>(key.padded_num_tokens),
       .num_rows = static_cast<int>(key.padded_num_seqs),
       .states = static_cast<std::byte*>(slot_hidden_.data_ptr()),
       .state_positions = positions_.data_ptr<int32_t>(),
       .num_slots = options_.max_num_seqs,
       .num_kept = 1});
}

int64_t HeadDrafts::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& tensor :
       {slot_hidden_, positions_, hidden_, last_place_, chosen_, offsets_, logits_}) {
    if (tensor.defined()) bytes += static_cast<int64_t>(tensor.nbytes());
  }
  return bytes;
}

void HeadDrafts::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("hidden states", slot_hidden_.data_ptr());
  fingerprint.AddAddress("tokens of heads", chosen_.data_ptr());
}

}  // namespace reprise
