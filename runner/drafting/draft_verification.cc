#include "reprise/runner/drafting/draft_verification.h"

#include <ATen/ops/zeros.h>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<DraftVerification>> DraftVerification::Create(
    const DraftVerificationOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<DraftVerification>> {
    auto made = std::unique_ptr<DraftVerification>(new DraftVerification(options));
    made->chosen_ = at::zeros({options.max_logits},
                              at::TensorOptions(options.driver->device()).dtype(at::kInt));
    return made;
  });
}

absl::Status DraftVerification::Run(const GraphKey& key, const VerifiedOutput& output,
                                    SamplingFeatures features) const {
  DeviceDriver& driver = *options_.driver;
  const StepMemory& memory = *options_.memory;
  const StepArrays& arrays = memory.arrays();
  const at::Tensor logits = memory.logits(key.padded_num_seqs + key.num_earlier_logits);
  auto* chosen = chosen_.data_ptr<int32_t>();
  REPRISE_RETURN_IF_ERROR(driver.Sample({.logits = logits,
                                         .slots = memory.slots().sampling_slots(),
                                         .sample_slot = arrays.sample_slot,
                                         .sample_offset = arrays.sample_offset,
                                         .out = chosen,
                                         .features = features}));
  if (options_.acceptance == DraftAcceptance::kRejection && features != SamplingFeatures::kGreedy) {
    RejectDraftsArgs args = {.dtype = *FromScalarType(logits.scalar_type()),
                             .logits = logits.const_data_ptr(),
                             .logits_stride = logits.stride(0),
                             .vocab_size = static_cast<int>(logits.size(1)),
                             .slots = memory.slots().sampling_slots(),
                             .arrays = arrays,
                             .first_row = key.padded_num_seqs,
                             .num_rows = key.num_earlier_logits,
                             .chosen = chosen};
    if (options_.draft_logits.defined()) {
      args.draft_logits = options_.draft_logits.const_data_ptr();
      args.draft_logits_stride = options_.draft_logits.stride(0);
      args.num_draft_rows = static_cast<int>(options_.draft_logits.size(0));
    }
    REPRISE_RETURN_IF_ERROR(driver.RejectDrafts(args));
  }
  const AcceptDraftsArgs args = ArgsOf(key, output);
  REPRISE_RETURN_IF_ERROR(options_.trees != nullptr ? options_.trees->Accept(args, key.num_drafts)
                                                    : driver.AcceptDrafts(args));
  return options_.heads == nullptr ? absl::OkStatus() : options_.heads->KeepVerified(key);
}

AcceptDraftsArgs DraftVerification::ArgsOf(const GraphKey& key,
                                           const VerifiedOutput& output) const {
  const StepArrays& arrays = options_.memory->arrays();
  const SlotState& slots = options_.memory->slots();
  return {.query_start_loc = arrays.query_start_loc,
          .context_lens = arrays.context_lens,
          .token_ids = arrays.token_ids,
          .parents = {.nodes = arrays.parents},
          .slot_mapping = arrays.slot_mapping,
          .group_stride = arrays.max_tokens,
          .num_groups = slots.num_groups,
          .chosen = chosen_.const_data_ptr<int32_t>(),
          .first_verified = arrays.first_verified,
          .slot_of_row = arrays.sample_slot,
          .num_rows = key.padded_num_seqs,
          .num_tokens = arrays.max_tokens,
          .num_logits = key.padded_num_seqs + key.num_earlier_logits,
          .max_drafts = options_.max_drafts,
          .slots = {.seq_len = slots.seq_len,
                    .last_token = slots.last_token,
                    .sample_index = slots.sample_index,
                    .drafted_len = slots.drafted_len,
                    .history = slots.history,
                    .num_slots = slots.num_slots},
          .place_tokens = output.place_tokens,
          .tokens = output.tokens,
          .num_new = output.num_new,
          .new_tokens = output.new_tokens,
          .new_tokens_stride = 1 + int64_t{options_.max_drafts},
          .output = arrays.output,
          .output_stride = output.stride,
          .last_place = options_.heads == nullptr ? nullptr : options_.heads->last_place()};
}

void DraftVerification::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("chosen tokens", chosen_.data_ptr());
}

}  // namespace reprise
