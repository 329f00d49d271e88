// The end of a step with drafts: what each place chooses, which drafts are accepted, and the slots that
// advance by them. Within the graph of the step, or behind it.
//
//   auto verification = *DraftVerification::Create({.driver = driver, .memory = memory, ...});
//   verification->Run(key, {.tokens = tokens, .num_new = num_new, .new_tokens = new_tokens});
//
// Thread safety: none; one owner. All that it is given must outlive it.

#ifndef REPRISE_RUNNER_DRAFTING_DRAFT_VERIFICATION_H_
#define REPRISE_RUNNER_DRAFTING_DRAFT_VERIFICATION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/speculation/accept_drafts_args.h"
#include "reprise/attention/speculation/token_history.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/drafting/draft_trees.h"
#include "reprise/runner/drafting/head_drafts.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/step_memory.h"

namespace reprise {

struct DraftVerificationOptions {
  DeviceDriver* driver = nullptr;
  const StepMemory* memory = nullptr;
  DraftTrees* trees = nullptr;        // null: drafts are chains
  const HeadDrafts* heads = nullptr;  // null: there are none
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  at::Tensor draft_logits = {};  // of rejection: what drafts were drawn from; undefined: none was
  int max_drafts = 0;            // of a row
  int max_logits = 0;            // rows of a step
};

// The arrays for the results. AcceptDraftsArgs defines them.
struct VerifiedOutput {
  int32_t* tokens = nullptr;
  int32_t* num_new = nullptr;
  int32_t* new_tokens = nullptr;
  int64_t stride = 0;  // above 0: of a ring, at the output that refill names on the device
  PlaceTokens place_tokens = {};
};

class DraftVerification {
 public:
  // Allocates. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<DraftVerification>> Create(
      const DraftVerificationOptions& options);

  // Of the step at `key`, whose logits are there. May be captured, and then repeats nothing if refill
  // names no output: what it does besides has no effect.
  absl::Status Run(const GraphKey& key, const VerifiedOutput& output,
                   SamplingFeatures features = SamplingFeatures::kGeneral) const;

  int64_t bytes() const { return static_cast<int64_t>(chosen_.nbytes()); }
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit DraftVerification(const DraftVerificationOptions& options) : options_(options) {}

  // The acceptance of the step at `key`, without the moves of trees. `chosen_` has the choices.
  AcceptDraftsArgs ArgsOf(const GraphKey& key, const VerifiedOutput& output) const;

  DraftVerificationOptions options_;
  at::Tensor chosen_;  // [max_logits] int32
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_DRAFT_VERIFICATION_H_
