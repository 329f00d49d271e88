// A StepRunner that forwards to a runner of the test, so that the test can use the runner during
// the engine's life:
//
//   PuppetRunner runner(options);
//   auto engine = Engine::Create(Borrowed(runner), {});
//   runner.fate_of_next = {.fails = true};
//
// Thread safety: the thread safety of the runner. The runner must outlive this object.

#ifndef REPRISE_ENGINE_TESTING_BORROWED_RUNNER_H_
#define REPRISE_ENGINE_TESTING_BORROWED_RUNNER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "reprise/runner/step_runner.h"

namespace reprise {

class BorrowedRunner final : public StepRunner {
 public:
  explicit BorrowedRunner(StepRunner* runner) : runner_(*runner) {}

  const RunnerShape& shape() const override { return runner_.shape(); }
  const StepRunner& local() const override { return runner_.local(); }
  absl::Status CheckTokens(std::string_view argument,
                           absl::Span<const int32_t> tokens) const override {
    return runner_.CheckTokens(argument, tokens);
  }
  absl::Status CheckEmbeddings(std::string_view argument,
                               const EmbeddingRows& rows) const override {
    return runner_.CheckEmbeddings(argument, rows);
  }
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return runner_.CheckLogits(request);
  }
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    return runner_.Launch(batch);
  }
  absl::StatusOr<StepResult> Await(int64_t step) override { return runner_.Await(step); }
  absl::Status Idle() override { return runner_.Idle(); }
  absl::Status status() const override { return runner_.status(); }
  const GraphReport& graph_report() const override { return runner_.graph_report(); }
  std::optional<StepTimes> step_times() const override { return runner_.step_times(); }

 private:
  StepRunner& runner_;
};

inline std::unique_ptr<StepRunner> Borrowed(StepRunner& runner) {
  return std::make_unique<BorrowedRunner>(&runner);
}

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_BORROWED_RUNNER_H_
