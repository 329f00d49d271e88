// The list of a runner's optional parts. RunnerSetup::AddParts() fills it, and is the only code
// that names all parts.
//
// The order of the list is the order in which the parts of each role run:
//
//   1. block moves             first, before the step reads or overwrites the blocks
//   2. logits stages           slots that join get their parameters before their first row
//   3. refill                  slots and step arrays, which all parts below read
//   4. scales, watch           cover the whole forward pass and nothing after it
//   5. speculation             reads the refilled slots; proposes drafts before metadata is built
//   6. context ranks           reads the positions of drafts
//   7. encoder, embeddings     inputs of this step; run after all updates of slots
//   8. logits shards           after the forward pass
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_PARTS_RUNNER_PARTS_H_
#define REPRISE_RUNNER_PARTS_RUNNER_PARTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/runner/step_part.h"

namespace reprise {

class RunnerParts {
 public:
  // Appends a part. Null has no effect.
  void Add(std::unique_ptr<StepPart> part);

  const std::vector<std::unique_ptr<StepPart>>& all() const { return parts_; }
  absl::Span<BatchInput* const> slot_inputs() const { return slot_inputs_; }
  absl::Span<BatchInput* const> step_inputs() const { return step_inputs_; }
  absl::Span<StepStage* const> stages() const { return stages_; }
  absl::Span<TokenChooser* const> choosers() const { return choosers_; }

  // Returns the device memory of all parts, in bytes.
  int64_t bytes() const;
  absl::Status SetCache() const;
  void FillRefill(const StepPlan& plan, RefillArgs& args) const;

  // Returns an error if a part cannot serve the batch.
  absl::Status Check(const ScheduledBatch& batch) const;

 private:
  std::vector<std::unique_ptr<StepPart>> parts_;
  std::vector<BatchInput*> slot_inputs_;
  std::vector<BatchInput*> step_inputs_;
  std::vector<StepStage*> stages_;
  std::vector<TokenChooser*> choosers_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_RUNNER_PARTS_H_
