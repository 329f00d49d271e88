// The interfaces through which a ModelRunner runs its optional parts. A part implements one or more
// roles. The runner calls the roles of all parts in the order of one list
// (runner/parts/runner_parts.h).
//
//   role         runs                                         may reject the batch
//   BatchInput   before the step's graph, for each batch      yes
//   StepStage    with the step's graph: captured with it      no
//   TokenChooser after the step's graph                       no
//
// To add an optional feature, write one file with a StepPart and add it to RunnerSetup::AddParts().
// The runner then counts its device memory, and compares the values that captured graphs contain at
// replays.

#ifndef REPRISE_RUNNER_STEP_PART_H_
#define REPRISE_RUNNER_STEP_PART_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/sampling/logits_stage.h"
#include "reprise/runner/slots/refill_args.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step.h"
#include "reprise/runner/step_plan.h"
#include "reprise/runner/step_watch.h"

namespace reprise {

// Work before the step's graph, on the step's stream. Apply() does not allocate in the steady
// state.
class BatchInput {
 public:
  virtual ~BatchInput() = default;

  // Returns an error if the part cannot serve the batch. Changes nothing.
  virtual absl::Status Check(const ScheduledBatch&) const { return absl::OkStatus(); }

  // Enqueues the part's work for an accepted batch.
  virtual absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) = 0;
};

// Differences between steps with the same key.
struct StepVariant {
  bool calibrates = false;        // computes the scales of a quantised cache from this step's keys
  StepWatch* watch = nullptr;     // receives the step's tensors; null: none
  bool has_given_tokens = false;  // some rows pass tokens from the host
  bool runs_drafter = true;       // false: the step is repeated, and its drafter has already run
  bool verifies_drafts = false;  // verifies drafts at the end of the step if refill names an output
};

// Work that is part of the step. Fill(), Before() and After() are called only when a graph is
// captured and for eager steps; the work that they return runs in each step, on the step's stream,
// with the step's memory.
class StepStage {
 public:
  using Work = std::function<absl::Status()>;

  virtual ~StepStage() = default;

  // Changes the inputs and outputs of the model's step at `key`.
  virtual void Fill(const GraphKey&, const StepVariant&, Step::Parts&) const {}

  // Returns the work before and after the model's forward pass; null: none.
  virtual Work Before(const GraphKey&, const StepVariant&) { return nullptr; }
  virtual Work After(const GraphKey&, const StepVariant&) { return nullptr; }

  // Returns the reason why this step must run eagerly; kNone if it may be replayed. Called before
  // the step runs, possibly several times.
  virtual EagerReason EagerReasonFor(const StepPlan&) const { return EagerReason::kNone; }
  // Called after the step has run, or was enqueued, eagerly for this reason.
  virtual void RanFor(EagerReason) {}
};

// Chooses the tokens of a step.
class TokenChooser {
 public:
  virtual ~TokenChooser() = default;

  // Returns whether this chooser can choose the tokens of the step.
  virtual bool Serves(const StepPlan& plan) const = 0;

  // Ensures that StepMemory::logits() has the step's whole logits, if the forward pass has not
  // written them.
  virtual absl::Status CompleteLogits(const StepPlan&) { return absl::OkStatus(); }

  // Chooses the tokens from `logits`, and writes them to the step's output `out` on the device.
  virtual absl::Status Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) = 0;
};

// An optional part of a runner. Thread safety: none; one owner.
class StepPart {
 public:
  virtual ~StepPart() = default;

  // Returns the number of bytes of device memory that the part holds.
  virtual int64_t bytes() const = 0;

  // Adds the part's values that captured graphs contain: addresses and sizes.
  virtual void AddTo(Fingerprint& fingerprint) const = 0;

  // Called when the cache has been allocated: at its final size, and before that at a minimal size
  // if steps are measured.
  virtual absl::Status SetCache() { return absl::OkStatus(); }

  // Changes the arguments of a step's refill.
  virtual void FillRefill(const StepPlan&, RefillArgs&) const {}

  // The following return the roles of the part; null if the part does not have the role.
  //
  // Updates the slots on the device. After a failure, the slots differ from the host's mirror, so
  // the runner can run no further steps.
  virtual BatchInput* slot_input() { return nullptr; }
  // Work of one step. A failure fails only this step.
  virtual BatchInput* step_input() { return nullptr; }
  virtual StepStage* stage() { return nullptr; }
  virtual TokenChooser* chooser() { return nullptr; }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_PART_H_
