#include "reprise/runner/step_graphs.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/runner/cache_plan.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/model_runner_options.h"
#include "reprise/runner/parts/runner_parts.h"
#include "reprise/runner/rank_session.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/step_part.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kNumBlocks = 4;
constexpr int kBlockSize = 4;
constexpr GraphKey kDecode = {.padded_num_seqs = 1, .padded_num_tokens = 1, .max_query_len = 1};

// Adding an optional part takes only such a class, and one line that adds it to the list.
class CountingPart final : public StepPart, public StepStage {
 public:
  int64_t bytes() const override { return 64; }
  void AddTo(Fingerprint& fingerprint) const override {
    fingerprint.AddAddress("buffer of the counting part", buffer);
  }
  StepStage* stage() override { return this; }

  void Fill(const GraphKey&, const StepVariant&, Step::Parts& parts) const override {
    num_tokens_seen = parts.token_ids.numel();
  }
  Work Before(const GraphKey&, const StepVariant&) override {
    return [this] {
      calls.push_back("before");
      return absl::OkStatus();
    };
  }
  Work After(const GraphKey&, const StepVariant&) override {
    return [this] {
      calls.push_back("after");
      return after_status;
    };
  }
  EagerReason EagerReasonFor(const StepPlan&) const override { return reason; }
  void RanFor(EagerReason ran) override { ran_for.push_back(ran); }

  const void* buffer = this;
  absl::Status after_status;
  EagerReason reason = EagerReason::kNone;
  mutable int64_t num_tokens_seen = 0;
  std::vector<std::string> calls;
  std::vector<EagerReason> ran_for;
};

class StepGraphsTest : public testing::Test {
 protected:
  StepGraphsTest() : model_({.max_position = 16}), ranks_(nullptr) {
    auto part = std::make_unique<CountingPart>();
    part_ = part.get();
    parts_.Add(std::move(part));
  }

  void Start(bool checks_replays) {
    const ModelSpec& spec = model_.spec();
    const auto classes = CollectLayerClasses(spec.layers);
    ASSERT_TRUE(classes.ok()) << classes.status();
    auto driver = MakeDeviceDriver(c10::kCPU, {});
    ASSERT_TRUE(driver.ok()) << driver.status();
    auto memory = RunnerMemory::Create({.spec = spec,
                                        .num_model_layers = static_cast<int>(spec.layers.size()),
                                        .classes = *classes,
                                        .block_size = kBlockSize,
                                        .metadata = {.layers = spec.layers,
                                                     .classes = *classes,
                                                     .dtype = spec.dtype,
                                                     .max_rows = 2,
                                                     .max_tokens = 2,
                                                     .max_seq_len = 16},
                                        .steps = {.max_rows = 2,
                                                  .max_tokens = 2,
                                                  .max_blocks = 4,
                                                  .num_groups = classes->num_groups(),
                                                  .vocab_size = spec.vocab_size}},
                                       *std::move(driver));
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
    const ModelRunnerOptions options = {
        .max_seq_len = 16,
        .cache = {.block_size = kBlockSize, .size = NumBlocks{kNumBlocks}, .dtype = spec.dtype}};
    const auto plan = CachePlan::Create(options, spec, *classes);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_EQ(memory_->AllocateCache(*plan, kNumBlocks), absl::OkStatus());
    auto graphs = StepGraphs::Create(
        {.graphs = {.mode = GraphSetOptions::Mode::kEager, .max_num_seqs = 2, .max_seq_len = 16},
         .checks_replays = checks_replays},
        &model_, memory_.get(), &parts_, &ranks_);
    ASSERT_TRUE(graphs.ok()) << graphs.status();
    graphs_ = *std::move(graphs);
    ASSERT_EQ(graphs_->Capture(), absl::OkStatus());
    part_->calls.clear();
  }

  absl::Status RunDecode() {
    plan_ = {.num_rows = 1,
             .shape = {.num_seqs = 1, .num_tokens = 1, .max_query_len = 1, .max_seq_len = 1}};
    plan_.decision = graphs_->Decide(plan_.shape);
    EXPECT_EQ(plan_.decision.key, kDecode);
    return graphs_->Run(plan_);
  }

  ToyModel model_;
  RankSession ranks_;
  RunnerParts parts_;
  CountingPart* part_;
  std::unique_ptr<RunnerMemory> memory_;
  std::unique_ptr<StepGraphs> graphs_;  // destroyed first
  StepPlan plan_;
};

TEST_F(StepGraphsTest, RunsAPartAroundTheForwardPassOfAReplay) {
  Start(/*checks_replays=*/false);
  const int num_forwards = model_.num_forwards();
  ASSERT_EQ(RunDecode(), absl::OkStatus());
  EXPECT_EQ(plan_.decision.kind, GraphDecision::Kind::kReplay);
  EXPECT_THAT(part_->calls, ElementsAre("before", "after"));
  EXPECT_EQ(model_.num_forwards(), num_forwards + 1);
  EXPECT_THAT(part_->ran_for, IsEmpty());
}

TEST_F(StepGraphsTest, RunsAPartAroundTheForwardPassOfAnEagerStep) {
  Start(/*checks_replays=*/false);
  part_->reason = EagerReason::kCalibrates;
  ASSERT_EQ(RunDecode(), absl::OkStatus());
  EXPECT_EQ(plan_.decision.kind, GraphDecision::Kind::kEager);
  EXPECT_EQ(plan_.decision.reason, EagerReason::kCalibrates);
  EXPECT_THAT(part_->calls, ElementsAre("before", "after"));
  EXPECT_THAT(part_->ran_for, ElementsAre(EagerReason::kCalibrates));
  EXPECT_EQ(part_->num_tokens_seen, 1);
}

TEST_F(StepGraphsTest, DoesNotRunAReplayThatWasDecidedAgainst) {
  Start(/*checks_replays=*/false);
  EXPECT_TRUE(graphs_->ReplaysCaptured(
      {.decision = {.kind = GraphDecision::Kind::kReplay, .key = kDecode}}));
  part_->reason = EagerReason::kCalibrates;
  EXPECT_FALSE(graphs_->ReplaysCaptured(
      {.decision = {.kind = GraphDecision::Kind::kReplay, .key = kDecode}}));
}

TEST_F(StepGraphsTest, ReturnsTheErrorOfAPart) {
  Start(/*checks_replays=*/false);
  part_->after_status = absl::AbortedError("not today");
  EXPECT_THAT(RunDecode().message(), HasSubstr("not today"));
}

TEST_F(StepGraphsTest, CollectsTheFingerprintOfAPart) {
  Start(/*checks_replays=*/false);
  EXPECT_THAT(graphs_->fingerprint().ToString(), HasSubstr("buffer of the counting part"));
}

// A graph contains addresses, so its replay would read the old memory.
TEST_F(StepGraphsTest, RejectsAReplayIfABufferHasMoved) {
  Start(/*checks_replays=*/true);
  ASSERT_EQ(RunDecode(), absl::OkStatus());
  const void* const captured = std::exchange(part_->buffer, this);
  const absl::Status status = RunDecode();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("buffer of the counting part: expected"));
  part_->buffer = captured;
  EXPECT_EQ(RunDecode(), absl::OkStatus());
}

TEST_F(StepGraphsTest, RejectsAReplayIfTheCacheHasMoved) {
  Start(/*checks_replays=*/true);
  ASSERT_EQ(RunDecode(), absl::OkStatus());
  const ModelRunnerOptions options = {.max_seq_len = 16,
                                      .cache = {.block_size = kBlockSize,
                                                .size = NumBlocks{kNumBlocks + 1},
                                                .dtype = model_.spec().dtype}};
  const auto plan = CachePlan::Create(options, model_.spec(), memory_->classes());
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(memory_->AllocateCache(*plan, kNumBlocks + 1), absl::OkStatus());
  const absl::Status status = RunDecode();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("num_blocks: expected 4, got 5"));
}

}  // namespace
}  // namespace reprise
