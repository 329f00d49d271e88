// A StepRunner over a PuppetDevice, with failures on demand.
//
//   PuppetRunner runner(options);
//   runner.fate_of_next = {.fails = true};
//
// Thread safety: none; one owner.

#ifndef REPRISE_ENGINE_TESTING_PUPPET_RUNNER_H_
#define REPRISE_ENGINE_TESTING_PUPPET_RUNNER_H_

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/graphs/graph_report.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/sampling/logits_request.h"
#include "reprise/runner/step_result.h"
#include "reprise/runner/step_runner.h"

namespace reprise {

class PuppetRunner : public StepRunner {
 public:
  explicit PuppetRunner(const SchedulerOptions& options) : device_(options) {
    report_.AddGraph(kKey, {}, /*capture_ms=*/0);
  }

  const RunnerShape& shape() const override { return device_.shape(); }

  // Supports all logits requests with at most `max_log_probs` log-probabilities.
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    if (request.params.num_log_probs > max_log_probs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "num_log_probs: expected -1 to ", max_log_probs, ", got ", request.params.num_log_probs));
    }
    return CheckLogitsParams(request.params, request.biases, kPuppetVocab);
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    if (std::exchange(next_launch_throws, false)) throw std::runtime_error("no launch");
    if (!death.ok()) return absl::FailedPreconditionError("dead");
    if (!std::exchange(refusal_of_next, absl::OkStatus()).ok()) {
      return absl::InvalidArgumentError("rows: refused");
    }
    device_.Launch(batch, std::exchange(fate_of_next, {}));
    report_.AddReplay(kKey, static_cast<int>(batch.rows.size()));
    return num_launched_++;
  }

  absl::StatusOr<StepResult> Await(int64_t step) override {
    if (step != num_awaited_++) return absl::InternalError("awaited out of order");
    if (!death.ok()) return death;
    const absl::StatusOr<std::vector<int32_t>> tokens = device_.Await();
    if (std::exchange(next_await_throws, false)) throw std::runtime_error("no await");
    if (!tokens.ok()) return tokens.status();
    return device_.output();
  }

  absl::Status Idle() override {
    if (is_broken) throw std::runtime_error("no idling");
    return absl::OkStatus();
  }
  absl::Status status() const override {
    if (is_broken) throw std::runtime_error("no status");
    return death;
  }
  const GraphReport& graph_report() const override { return report_; }

  void set_right_drafts(int per_thousand) { device_.set_right_drafts(per_thousand); }

  // Injected failures: the fate or refusal of the next launch. While `death` is an error, the
  // runner is dead.
  PuppetDevice::Fate fate_of_next = {};
  int max_log_probs = kMaxTopLogProbs;
  absl::Status refusal_of_next = absl::OkStatus();
  absl::Status death = absl::OkStatus();
  // Injected exceptions: in the next Launch(), the next Await(), or every Idle() and status().
  bool next_launch_throws = false;
  bool next_await_throws = false;
  bool is_broken = false;

 private:
  // One graph serves all steps.
  static constexpr GraphKey kKey = {.padded_num_seqs = 1 << 20};

  PuppetDevice device_;
  GraphReport report_;
  int64_t num_launched_ = 0;
  int64_t num_awaited_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_PUPPET_RUNNER_H_
