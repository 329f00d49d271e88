// Runs the same steps on all ranks of a sharded model: rank 0 schedules and broadcasts the batches.
//
//   // On rank 0, wraps the local runner:
//   RankedSteps steps(std::move(own_runner), collectives);   // used like any StepRunner
//   // On every other rank, until rank 0's RankedSteps is destroyed:
//   REPRISE_RETURN_IF_ERROR(FollowSteps(*own_runner, *collectives));
//
// Launch() broadcasts the batch as bytes (runner/slots/batch_bytes.h) and then launches it. All
// other ranks launch the batch that they receive. No other data is sent: slots, tables and sampling
// follow from the batches. Between steps, the other ranks wait for the next batch, at most for the
// timeout of the Collectives. An engine without work must therefore call Idle() regularly;
// AsyncEngine does.
//
// Failures. With each step, rank 0 sends how many batches its runner has refused, how many steps it
// has awaited, and how many of these have failed. The other ranks await the same steps before they
// launch, and compare:
//   1. A batch that all ranks refuse, and a step that fails on all ranks, have the same effect as
//      with a single rank.
//   2. A rank whose outcome differs from rank 0's returns Internal with both outcomes, and fails
//      the Collectives (Collectives::Fail()).
//   3. A rank that can run no further steps (status()), rank 0 included, fails the Collectives.
//   4. After a failure of the Collectives, and if a rank ends or times out, status() of all other
//      ranks returns the error, and no further step can run.
//
// Thread safety: not thread-safe; one owner. Cost: one broadcast per step, or two if the header and
// the batch exceed 8 KB.

#ifndef REPRISE_ENGINE_RANKED_STEPS_H_
#define REPRISE_ENGINE_RANKED_STEPS_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/slots/embedding_rows.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_result.h"
#include "reprise/runner/step_runner.h"

namespace reprise {

class RankedSteps final : public StepRunner {
 public:
  // `collectives` must outlive this object. REQUIRES: collectives->ranks().rank is 0.
  RankedSteps(std::unique_ptr<StepRunner> steps, Collectives* collectives);
  // Stops the other ranks.
  ~RankedSteps() override;

  const RunnerShape& shape() const override { return steps_->shape(); }
  const StepRunner& local() const override { return steps_->local(); }

  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    return steps_->CheckTokens(argument, tokens);
  }

  // Errors: also InvalidArgument for rows on a GPU, because only host memory is sent to other
  // ranks.
  absl::Status CheckEmbeddings(std::string_view argument, const EmbeddingRows& rows) const override;

  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return steps_->CheckLogits(request);
  }

  // Errors: also the errors of Collectives::Broadcast().
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override;
  absl::StatusOr<StepResult> Await(int64_t step) override;
  // Restarts the timeout of the other ranks. Errors: the errors of Collectives::Broadcast().
  absl::Status Idle() override;
  absl::Status status() const override;

  const GraphReport& graph_report() const override { return steps_->graph_report(); }
  std::optional<StepTimes> step_times() const override { return steps_->step_times(); }

 private:
  absl::Status Send(int64_t kind);
  // Fails the Collectives if this rank can run no further steps.
  void TellIfDead();

  std::unique_ptr<StepRunner> steps_;
  Collectives& collectives_;
  absl::Status sent_;  // OK, or the error of the last broadcast
  int64_t num_refused_ = 0, num_awaited_ = 0, num_failed_ = 0;
  std::vector<std::byte> bytes_;
  at::Tensor message_;  // [8192] uint8, on the host
};

// Runs the steps of rank 0 until its RankedSteps is destroyed. Errors: the errors of
// Collectives::Broadcast(); Internal if the outcome of a step differs from rank 0's;
// steps.status(). REQUIRES: this rank is not 0, and `steps` has the same model and options as rank
// 0's runner.
absl::Status FollowSteps(StepRunner& steps, Collectives& collectives);

}  // namespace reprise

#endif  // REPRISE_ENGINE_RANKED_STEPS_H_
