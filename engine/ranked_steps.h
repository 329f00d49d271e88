// Keeps the ranks of a divided model in step: rank 0 schedules, and all ranks run the same steps.
//
//   // On rank 0, around the steps of its own runner:
//   RankedSteps steps(std::move(own_runner), collectives);   // then as any StepRunner
//   // On every other rank, until rank 0's RankedSteps is gone:
//   REPRISE_RETURN_IF_ERROR(FollowSteps(*own_runner, *collectives));
//
// Launch() broadcasts the batch as bytes (runner/slots/batch_bytes.h) and then launches it; the
// others launch what they receive. Nothing else travels: slots, tables and sampling follow from the
// batches alone. Between steps the others wait for the next, no longer than the timeout of the
// Collectives: an engine without work calls Idle() from time to time, which AsyncEngine does.
//
// Failures. With each step rank 0 says how many batches its runner has refused and how many steps
// have failed; the others await the same steps before they launch. A batch that all refuse, or a
// step that fails on all, is as without ranks. A rank that differs can not go on with the others:
// it returns Internal, which says what it got and rank 0 did not, or the other way round, and tells
// the others (Collectives::Fail()); so does a rank, rank 0 among them, whose steps can not go on
// (status()). That, and a rank that has ended or does not come in time, is an
// error of the Collectives on all others, and then of status(): no further step can be run.
//
// Thread safety: none; one owner. A step of up to 8 KB of bytes is one broadcast, a longer one two.

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
  // The collectives must outlive it. REQUIRES: collectives->ranks().rank is 0.
  RankedSteps(std::unique_ptr<StepRunner> steps, Collectives* collectives);
  // Tells the others to stop.
  ~RankedSteps() override;

  const RunnerShape& shape() const override { return steps_->shape(); }
  const StepRunner& local() const override { return steps_->local(); }

  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    return steps_->CheckTokens(argument, tokens);
  }

  // Also InvalidArgument for rows on a GPU, which do not travel.
  absl::Status CheckEmbeddings(std::string_view argument, const EmbeddingRows& rows) const override;

  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return steps_->CheckLogits(request);
  }

  // Errors: also those of Collectives::Broadcast().
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override;
  absl::StatusOr<StepResult> Await(int64_t step) override;
  // Tells the others to wait on. Errors: those of Collectives::Broadcast().
  absl::Status Idle() override;
  absl::Status status() const override;

  const GraphReport& graph_report() const override { return steps_->graph_report(); }
  std::optional<StepTimes> step_times() const override { return steps_->step_times(); }

 private:
  absl::Status Send(int64_t kind);
  // Tells the others where this rank's steps can not go on.
  void TellIfDead();

  std::unique_ptr<StepRunner> steps_;
  Collectives& collectives_;
  absl::Status sent_;  // the first failure to send
  int64_t num_refused_ = 0, num_awaited_ = 0, num_failed_ = 0;
  std::vector<std::byte> bytes_;
  at::Tensor message_;  // uint8, on the host
};

// Runs the steps of rank 0 until its RankedSteps is destroyed. Errors: those of
// Collectives::Broadcast(); Internal if this rank's steps do not go as rank 0's; steps.status().
// REQUIRES: this is another rank, and its steps are of the same model and options.
absl::Status FollowSteps(StepRunner& steps, Collectives& collectives);

}  // namespace reprise

#endif  // REPRISE_ENGINE_RANKED_STEPS_H_
