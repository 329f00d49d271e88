// The interface between an engine, or any other loop that schedules batches, and the runner that
// computes their steps. ModelRunner implements it; RankedSteps decorates it; tests use fakes.
//
//   REPRISE_ASSIGN_OR_RETURN(const int64_t step, runner.Launch(batch));
//   REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner.Await(step));
//
// Up to shape().max_steps_in_flight steps may be launched before the oldest is awaited. Steps must
// be awaited in the order of their launch.
//
// Errors. An error of Launch() rejects the batch: nothing has changed. An error of Await() for the
// oldest step means that this step failed: the sequences of its rows must leave, and all other
// sequences continue. An error of status() means that no further step can run. An engine treats an
// exception of these calls as an error.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_STEP_RUNNER_H_
#define REPRISE_RUNNER_STEP_RUNNER_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/graphs/graph_report.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/embedding_rows.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_result.h"

namespace reprise {

// Durations of eager steps without a common prefix, in microseconds on the device's clock.
struct StepTimes {
  int num_tokens = 0;     // number of tokens in the largest step
  double largest_us = 0;  // duration of the largest step
  double min_us = 0;      // duration of a step with one token, which also reads all weights
};

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // Constant for the lifetime of the runner.
  virtual const RunnerShape& shape() const = 0;

  // Returns the runner that computes the steps of this process; a decorator returns the decorated
  // runner.
  virtual const StepRunner& local() const { return *this; }

  // Checks that all ids are in [0, shape().vocab_size). Errors: InvalidArgument naming `argument`.
  virtual absl::Status CheckTokens(std::string_view argument,
                                   absl::Span<const int32_t> tokens) const;

  // Checks that the rows are valid ScheduledEmbeddings::rows. Errors: InvalidArgument naming
  // `argument`.
  virtual absl::Status CheckEmbeddings(std::string_view argument, const EmbeddingRows& rows) const {
    return CheckEmbeddingRows(argument, rows, shape().embeddings);
  }

  // Checks that sequences may make this request. Ignores the request's slot. Errors:
  // InvalidArgument naming the parameter.
  virtual absl::Status CheckLogits(const LogitsRequest& request) const = 0;

  // Enqueues a step, and returns its number for Await(). An error rejects the batch: nothing has
  // changed.
  virtual absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) = 0;

  // Blocks until the step's tokens are known. An error means that this step failed; other steps can
  // be awaited as long as status() is OK.
  virtual absl::StatusOr<StepResult> Await(int64_t step) = 0;

  // Keeps the other ranks of a sharded model from timing out while there is no work
  // (Engine::Idle()).
  virtual absl::Status Idle() { return absl::OkStatus(); }

  // OK, or the reason why no further step can run.
  virtual absl::Status status() const = 0;

  // Returns how many steps replayed a graph, and how many ran eagerly for each reason.
  virtual const GraphReport& graph_report() const = 0;

  // Returns measured durations of steps, for the costs of preemption. nullopt: not measured.
  virtual std::optional<StepTimes> step_times() const { return std::nullopt; }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_RUNNER_H_
