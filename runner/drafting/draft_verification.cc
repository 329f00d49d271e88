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
  const VerifyDraftsArgs drafts = {
      .chosen = chosen,
      .slots = memory.slots(),
      .arrays = arrays,
      .num_rows = key.padded_num_seqs,
      .max_drafts = options_.max_drafts,
      .tokens = output.tokens,
      .num_new = output.num_new,
      .new_tokens = output.new_tokens,
      .output_stride = output.stride,
      .last_place = options_.heads == nullptr ? nullptr : options_.heads->last_place(),
      .place_tokens = output.place_tokens};
  REPRISE_RETURN_IF_ERROR(options_.trees != nullptr ? options_.trees->Verify(drafts, key.num_drafts)
                                                    : driver.VerifyDrafts(drafts));
  return options_.heads == nullptr ? absl::OkStatus() : options_.heads->KeepVerified(key);
}

void DraftVerification::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("chosen tokens", chosen_.data_ptr());
}

}  // namespace reprise
