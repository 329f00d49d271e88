// An engine that is driven step by step: what AsyncEngine needs of one. Engine and EngineCore are
// such engines.
//
//   REPRISE_ASSIGN_OR_RETURN(const SequenceId id, engine.Add({.prompt = {1, 2, 3}}));
//   std::vector<TokenEvent> events;
//   while (engine.has_work()) {
//     events.clear();
//     REPRISE_RETURN_IF_ERROR(engine.Step(events));
//     for (const TokenEvent& event : events) ...
//   }
//
// Thread safety: none; one owner.

#ifndef ENGINE_STEP_ENGINE_H_
#define ENGINE_STEP_ENGINE_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "engine/engine_metrics.h"
#include "engine/request.h"

namespace reprise {

class StepEngine {
 public:
  virtual ~StepEngine() = default;

  // Queues a request. Errors, with nothing changed: InvalidArgument for what can never be served,
  // ResourceExhausted if too many wait, Unavailable, with the cause, if no step can be run any more.
  virtual absl::StatusOr<SequenceId> Add(Request request) = 0;

  // Ends the request's unfinished sequences: appends an event kCancelled for each. They get no
  // other. Errors: NotFound if none is unfinished.
  virtual absl::Status Cancel(SequenceId id, std::vector<TokenEvent>& events) = 0;

  // Whether Step() has anything to do.
  virtual bool has_work() const = 0;

  // Takes the work one step further and appends what has happened to the events. A failure ends the
  // sequences concerned, with an event kError each, and the result is OK. Any other result says why
  // no further step can be run: all sequences have had their last event.
  virtual absl::Status Step(std::vector<TokenEvent>& events) = 0;

  // Call it from time to time while there is no work: the other ranks of a divided model wait for the
  // next step no longer than the timeout of their Collectives. Errors: as Step().
  virtual absl::Status Idle() { return absl::OkStatus(); }

  // Nothing that has been computed so far is found as a prefix from now on: for weights that have
  // changed. Running sequences go on from what they have.
  virtual void ForgetPrefixes() {}

  // What has been counted so far.
  virtual EngineMetrics metrics() const = 0;
};

}  // namespace reprise

#endif  // ENGINE_STEP_ENGINE_H_
