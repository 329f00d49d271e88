// Verifies the drafts of a step: samples a token for each position, accepts drafts, and advances
// the slots. Runs in the graph of the step, or after it.
//
//   auto verification = *DraftVerification::Create({.driver = driver, .memory = memory, ...});
//   verification->Run(key, {.tokens = tokens, .num_new = num_new, .new_tokens = new_tokens});
//
// Thread safety: none; one owner. The objects that it is given must outlive it.

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
  const HeadDrafts* heads = nullptr;  // null: no heads without layers
  DraftAcceptance acceptance = DraftAcceptance::kSameText;
  // kRejection only: the logits that drafts were sampled from; undefined: no draft was sampled.
  at::Tensor draft_logits = {};
  int max_drafts = 0;  // maximum number of drafts per row
  int max_logits = 0;  // rows of logits per step
};

// Destination of the results. AcceptDraftsArgs defines the arrays.
struct VerifiedOutput {
  int32_t* tokens = nullptr;
  int32_t* num_new = nullptr;
  int32_t* new_tokens = nullptr;
  // Above 0: each array is a ring whose outputs are `stride` elements apart, and refill names the
  // output on the device (StepArrays::output). 0: the arrays hold one output.
  int64_t stride = 0;
  PlaceTokens place_tokens = {};
};

class DraftVerification {
 public:
  // Allocates. Errors: ResourceExhausted if the device has too little memory.
  static absl::StatusOr<std::unique_ptr<DraftVerification>> Create(
      const DraftVerificationOptions& options);

  // Verifies the drafts of the step at `key`. REQUIRES: the step's logits have been computed. May
  // be captured; a replay for which refill names no output verifies nothing, and must be followed
  // by a call outside of the graph.
  absl::Status Run(const GraphKey& key, const VerifiedOutput& output,
                   SamplingFeatures features = SamplingFeatures::kGeneral) const;

  int64_t bytes() const { return static_cast<int64_t>(chosen_.nbytes()); }
  void AddTo(Fingerprint& fingerprint) const;

 private:
  explicit DraftVerification(const DraftVerificationOptions& options) : options_(options) {}

  // Returns the arguments of the acceptance for the step at `key`, without the moves of trees.
  // `chosen_` holds the sampled tokens.
  AcceptDraftsArgs ArgsOf(const GraphKey& key, const VerifiedOutput& output) const;

  DraftVerificationOptions options_;
  at::Tensor chosen_;  // [max_logits] int32
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_DRAFTING_DRAFT_VERIFICATION_H_
