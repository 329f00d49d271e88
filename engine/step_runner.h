// What an engine needs of a runner. ModelRunner is behind it where models run (engine/engine.h),
// and a double in tests of the engine's own logic.
//
// Thread safety: none; one owner.

#ifndef ENGINE_STEP_RUNNER_H_
#define ENGINE_STEP_RUNNER_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/step_output.h"
#include "runner/sampling/logits_request.h"
#include "runner/slots/embedding_rows.h"
#include "runner/slots/scheduled_batch.h"

namespace reprise {

class StepRunner {
 public:
  virtual ~StepRunner() = default;

  // InvalidArgument, naming `argument`, unless all ids are in the vocabulary.
  virtual absl::Status CheckTokens(std::string_view argument,
                                   absl::Span<const int32_t> tokens) const = 0;

  // InvalidArgument, naming `argument`, unless the rows can be ScheduledEmbeddings::rows.
  virtual absl::Status CheckEmbeddings(std::string_view argument, const EmbeddingRows& rows) const {
    return CheckEmbeddingRows(argument, rows, {});
  }

  // InvalidArgument, naming the parameter, unless sequences may ask for this. Its slot and output
  // are ignored.
  virtual absl::Status CheckLogits(const LogitsRequest& request) const = 0;

  // Enqueues a step; its ticket. An error refuses the batch: nothing has changed.
  virtual absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) = 0;

  // Blocks until the step's tokens are known; what it returns is valid until the next Launch().
  // Steps are awaited in the order of their launch. An error is the step's: others are served as
  // long as status() is OK.
  virtual absl::StatusOr<StepOutput> Await(int64_t ticket) = 0;

  // Keeps waiting what waits for the next step (StepEngine::Idle()).
  virtual absl::Status Idle() { return absl::OkStatus(); }

  // OK, or why no further step can be run.
  virtual absl::Status status() const = 0;

  // Steps that replayed a graph, and those that did not.
  virtual int64_t num_replays() const { return 0; }
  virtual int64_t num_eager_steps() const { return 0; }
};

}  // namespace reprise

#endif  // ENGINE_STEP_RUNNER_H_
