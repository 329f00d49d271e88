// The interfaces through which a ModelRunner runs its optional parts. A part implements the roles that
// it has; the runner calls the roles of all parts in the order of one list (runner/parts/runner_parts.h).
//
//   role         runs                                         may refuse the batch
//   BatchInput   before the step's graph, for each batch      yes
//   StepStage    with the step's graph: captured with it      no
//   TokenChooser after the step's graph                       no
//
// A new optional feature is one file with a StepPart and one line in RunnerSetup::AddParts(). Its device memory is
// counted, and what captured graphs hold of it is compared at replays, because both are collected from
// the list.

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

// Work before the step's graph, on the step's stream. Apply() allocates nothing in the steady state.
class BatchInput {
 public:
  virtual ~BatchInput() = default;

  // Refuses a batch that the part cannot serve, with nothing changed.
  virtual absl::Status Check(const ScheduledBatch&) const { return absl::OkStatus(); }

  // Enqueues the part's work for a batch that has been accepted.
  virtual absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) = 0;
};

// How a step differs from others at its key.
struct StepVariant {
  bool calibrates = false;        // sets the scales of a quantised cache from its keys
  StepWatch* watch = nullptr;     // sees the step's tensors, or null
  bool has_given_tokens = false;  // some rows bring tokens of the host
  bool runs_drafter = true;       // false: the step is repeated, and its drafter has run
  bool verifies_drafts = false;   // at its end, if refill names an output
};

// Work of the step itself. Its methods are called when a graph is captured and for eager steps only;
// what they return runs in each step, on the step's stream, with the step's memory.
class StepStage {
 public:
  using Work = std::function<absl::Status()>;

  virtual ~StepStage() = default;

  // Changes what the model's step at `key` reads and writes.
  virtual void Fill(const GraphKey&, const StepVariant&, Step::Parts&) const {}

  // Work before the model's forward pass and after it; null: none.
  virtual Work Before(const GraphKey&, const StepVariant&) { return nullptr; }
  virtual Work After(const GraphKey&, const StepVariant&) { return nullptr; }

  // The reason why this step must run eagerly; kNone: it need not. Called before the step runs.
  virtual EagerReason EagerReasonFor(const StepPlan&) const { return EagerReason::kNone; }
  // The step has run, or is enqueued, eagerly for that reason.
  virtual void RanFor(EagerReason) {}
};

// How the tokens of a step are chosen.
class TokenChooser {
 public:
  virtual ~TokenChooser() = default;

  // Whether this chooser chooses the tokens of such a step.
  virtual bool Serves(const StepPlan& plan) const = 0;

  // Makes whole logits of the step available in StepMemory::logits(), if the forward pass has not.
  virtual absl::Status CompleteLogits(const StepPlan&) { return absl::OkStatus(); }

  // Chooses the tokens from `logits`, into the step's output at `out`, on the device.
  virtual absl::Status Choose(const StepPlan& plan, const LogitsStep& logits, int32_t* out) = 0;
};

// An optional part of a runner. Thread safety: none; one owner.
class StepPart {
 public:
  virtual ~StepPart() = default;

  // Bytes of device memory that the part holds.
  virtual int64_t bytes() const = 0;

  // Adds what captured graphs hold of the part by value: addresses and sizes.
  virtual void AddTo(Fingerprint& fingerprint) const = 0;

  // Called when the cache has been allocated: at its final size and, where steps are measured first,
  // at a minimal size before that.
  virtual absl::Status SetCache() { return absl::OkStatus(); }

  // Changes the refill of a step.
  virtual void FillRefill(const StepPlan&, RefillArgs&) const {}

  // The roles of the part; null if it does not have the role.
  //
  // Updates the slots on the device. After a failure the slots differ from the host's mirror, so
  // the runner can run no further steps.
  virtual BatchInput* slot_input() { return nullptr; }
  // Work of one step: a failure fails this step only.
  virtual BatchInput* step_input() { return nullptr; }
  virtual StepStage* stage() { return nullptr; }
  virtual TokenChooser* chooser() { return nullptr; }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_PART_H_
