// Sets of several ranks capture the same keys, even if graphs take more memory on some ranks.

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/graphs/graph_set.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using Mode = GraphSetOptions::Mode;

// A backend whose graphs take `bytes` each.
class PricedBackend : public GraphBackend {
 public:
  explicit PricedBackend(int64_t bytes) : bytes_(bytes) {}

  absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) override {
    return std::make_unique<Graph>(std::move(step), bytes_);
  }
  absl::StatusOr<GraphBytes> TrialCapture(std::function<absl::Status()>) override {
    return GraphBytes{.driver = bytes_};
  }
  absl::Status RunBetweenGraphs(std::function<absl::Status()> work) override { return work(); }

 private:
  class Graph : public CapturedGraph {
   public:
    Graph(std::function<absl::Status()> step, int64_t bytes)
        : step_(std::move(step)), bytes_(bytes) {}
    absl::Status Replay() override { return step_(); }
    int num_graphs() const override { return 1; }
    GraphBytes bytes() const override { return {.driver = bytes_}; }

   private:
    std::function<absl::Status()> step_;
    int64_t bytes_;
  };

  int64_t bytes_;
};

// Computes whether either of two ranks is over its budget. Each rank waits for the other.
class Agreement {
 public:
  bool Any(bool over) {
    if (over) any_ = true;
    met_.arrive_and_wait();
    const bool any = any_;
    met_.arrive_and_wait();
    return any;
  }

 private:
  std::barrier<> met_{2};
  std::atomic<bool> any_ = false;  // stays true: no capture follows the first one over the budget
};

// Returns the numbers of sequences that a rank captures within a budget of 250 bytes, if each graph
// takes `bytes`.
std::vector<int> CapturedSizes(Mode mode, int64_t bytes,
                               std::function<absl::StatusOr<bool>(bool)> agree) {
  PricedBackend backend(bytes);
  const auto set = GraphSet::Create({.mode = mode,
                                     .max_num_seqs = 8,
                                     .sizes = {1, 2, 4, 8},
                                     .max_seq_len = 64,
                                     .memory_budget_bytes = 250,
                                     .agree_over_budget = std::move(agree)},
                                    &backend);
  EXPECT_TRUE(set.ok()) << set.status();
  const auto make_step = [](const GraphKey&) { return [] { return absl::OkStatus(); }; };
  EXPECT_TRUE((*set)->CaptureAll(make_step, {}).ok());
  std::vector<int> sizes;
  for (const GraphKey& key : (*set)->keys()) {
    const StepShape shape = {
        .num_seqs = key.padded_num_seqs, .num_tokens = key.padded_num_seqs, .max_seq_len = 10};
    const GraphDecision decision = (*set)->Decide(shape);
    if (mode == Mode::kLazy && decision.kind == GraphDecision::Kind::kReplay) {
      EXPECT_TRUE((*set)->Replay(decision.key, make_step, {}).ok());
    }
    if ((*set)->is_captured(key)) sizes.push_back(key.padded_num_seqs);
  }
  return sizes;
}

TEST(GraphAgreementTest, RanksWithDifferentCostsCaptureTheSameKeys) {
  for (const Mode mode : {Mode::kEager, Mode::kLazy}) {
    EXPECT_THAT(CapturedSizes(mode, 60, nullptr), ElementsAre(8, 4, 2, 1)) << "alone";
    Agreement agreement;
    const auto agree = [&](bool over) -> absl::StatusOr<bool> { return agreement.Any(over); };
    std::vector<int> sizes[2];
    std::thread other([&] { sizes[1] = CapturedSizes(mode, 100, agree); });
    sizes[0] = CapturedSizes(mode, 60, agree);
    other.join();
    for (const std::vector<int>& of_rank : sizes) EXPECT_THAT(of_rank, ElementsAre(8, 4));
  }
}

TEST(GraphAgreementTest, CaptureFailsIfTheAgreementFails) {
  PricedBackend backend(10);
  const auto set = GraphSet::Create({.max_num_seqs = 1,
                                     .max_seq_len = 64,
                                     .memory_budget_bytes = 250,
                                     .agree_over_budget = [](bool) -> absl::StatusOr<bool> {
                                       return absl::UnavailableError("rank 1 has ended");
                                     }},
                                    &backend);
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ((*set)->CaptureAll([](const GraphKey&) { return [] { return absl::OkStatus(); }; }, {}),
            absl::UnavailableError("rank 1 has ended"));
}

}  // namespace
}  // namespace reprise
