// The optional parts of a runner, in one list. RunnerSetup::AddParts() fills it, and is the only place
// that names all parts.
//
// The order of the list is the order in which each role of the parts runs:
//
//   1. blocks are moved        before refill and graph read or overwrite them
//   2. logits stages           slots that join get their parameters before their first row
//   3. refill                  slots and step arrays, which all parts below read
//   4. scales, watch           see all that the forward pass computes, and nothing after it
//   5. speculation             reads the refilled slots; proposes before metadata is built
//   6. ranks' keys             read the positions of drafts
//   7. encoder, embeddings     inputs of this step; need the refilled tables
//   8. shards of logits        after the forward pass
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
  // Appends a part; null: nothing.
  void Add(std::unique_ptr<StepPart> part);

  const std::vector<std::unique_ptr<StepPart>>& all() const { return parts_; }
  absl::Span<BatchInput* const> slot_inputs() const { return slot_inputs_; }
  absl::Span<BatchInput* const> step_inputs() const { return step_inputs_; }
  absl::Span<StepStage* const> stages() const { return stages_; }
  absl::Span<TokenChooser* const> choosers() const { return choosers_; }

  // Device memory of all parts.
  int64_t bytes() const;
  absl::Status SetCache() const;
  void FillRefill(const StepPlan& plan, RefillArgs& args) const;

  // Refuses a batch that a part cannot serve.
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
