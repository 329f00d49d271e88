// A StepRunner over a PuppetDevice, with failures on demand.
//
//   PuppetRunner runner(options);
//   runner.fate_of_next = {.fails = true};
//
// Thread safety: none; one owner.

#ifndef ENGINE_TESTING_PUPPET_RUNNER_H_
#define ENGINE_TESTING_PUPPET_RUNNER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/scheduler.h"
#include "engine/step_output.h"
#include "engine/step_runner.h"
#include "engine/testing/puppet_device.h"
#include "runner/sampling/logits_params.h"
#include "runner/sampling/logits_request.h"

namespace reprise {

class PuppetRunner : public StepRunner {
 public:
  explicit PuppetRunner(const SchedulerOptions& options) : device_(options) {}

  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    for (const int32_t token : tokens) {
      if (token >= 0 && token < kPuppetVocab) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(argument), " must hold ids in [0, ", kPuppetVocab, ")"));
    }
    return absl::OkStatus();
  }

  // Serves all but more log-probabilities than `max_log_probs`.
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    if (request.params.num_log_probs > max_log_probs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "num_log_probs: expected -1 to ", max_log_probs, ", got ", request.params.num_log_probs));
    }
    return CheckLogitsParams(request.params, request.biases, kPuppetVocab);
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    if (!death.ok()) return absl::FailedPreconditionError("dead");
    if (!std::exchange(refusal_of_next, absl::OkStatus()).ok()) {
      return absl::InvalidArgumentError("rows: refused");
    }
    device_.Launch(batch, std::exchange(fate_of_next, {}));
    return num_launched_++;
  }

  absl::StatusOr<StepOutput> Await(int64_t ticket) override {
    if (ticket != num_awaited_++) return absl::InternalError("awaited out of order");
    if (!death.ok()) return death;
    const absl::StatusOr<std::vector<int32_t>> tokens = device_.Await();
    if (!tokens.ok()) return tokens.status();
    return device_.output();
  }

  absl::Status status() const override { return death; }
  int64_t num_replays() const override { return num_launched_; }

  void set_right_drafts(int per_thousand) { device_.set_right_drafts(per_thousand); }

  // What happens to the next launch. Once death is an error, the runner is dead.
  PuppetDevice::Fate fate_of_next = {};
  int max_log_probs = kMaxTopLogProbs;
  absl::Status refusal_of_next = absl::OkStatus();
  absl::Status death = absl::OkStatus();

 private:
  PuppetDevice device_;
  int64_t num_launched_ = 0;
  int64_t num_awaited_ = 0;
};

}  // namespace reprise

#endif  // ENGINE_TESTING_PUPPET_RUNNER_H_
