#include "reprise/runner/model_runner.h"

#include <ATen/ops/argmax.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/runner/testing/forwarding_driver.h"
#include "reprise/runner/testing/model_runner_suite.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

INSTANTIATE_TEST_SUITE_P(Cpu, ModelRunnerSuite, testing::Values(c10::kCPU));

// Returns logits with too few columns if wrong_shape is set.
class PuppetModel : public ToyModel {
 public:
  PuppetModel() : ToyModel({}) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, ToyModel::Forward(step));
    return wrong_shape ? logits.narrow(1, 0, 7) : logits;
  }
  bool wrong_shape = false;
};

class ModelErrorTest : public testing::Test {
 protected:
  ModelErrorTest() {
    auto runner = ModelRunner::Create(&model_, {.max_num_seqs = 1, .max_num_tokens = 8});
    EXPECT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  absl::Status FirstStep() {
    return runner_->Step({.joins = join_, .updates = update_, .rows = row_}).status();
  }

  const std::vector<BlockTableUpdate> update_ = {
      {.slot = SlotId(0), .column = 0, .block = BlockId(1)}};
  const std::vector<int32_t> tokens_ = {1, 2};
  const std::vector<SlotJoin> join_ = {JoinOf(SlotId(0), {}, tokens_.size())};
  const std::vector<ScheduledRow> row_ = {{.slot = SlotId(0), .tokens = tokens_}};
  PuppetModel model_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(ModelErrorTest, RejectsLogitsOfAnotherShape) {
  model_.wrong_shape = true;
  const absl::Status status = FirstStep();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[1, 61], got [1, 7]"));
}

// Allocates no tensors, so that only the runner allocates.
class SilentModel : public ToyModel {
 public:
  SilentModel() : ToyModel({}) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override { return step.logits(); }
};

TEST(ModelRunnerTest, AReplayedStepAllocatesNothingOnTheHeap) {
  SilentModel model;
  // With the search for shared prefixes.
  auto created = ModelRunner::Create(
      &model,
      {.max_num_seqs = 4,
       .max_num_tokens = 16,
       .device = {.cascade = CascadeMode::kAuto,
                  .profile = ProfileWithCascade({.read_tb_per_s = 1, .reread_tb_per_s = 1})}});
  ASSERT_TRUE(created.ok()) << created.status();
  ModelRunner& runner = **created;
  const std::vector<int32_t> token = {1};
  std::vector<SlotJoin> joins;
  std::vector<BlockTableUpdate> updates;
  std::vector<ScheduledRow> first;
  std::vector<ScheduledRow> rows;
  for (int slot = 0; slot < 3; ++slot) {
    joins.push_back(JoinOf(SlotId(slot), {}, token.size()));
    for (int column = 0; column < 8; ++column)
      updates.push_back(
          {.slot = SlotId(slot), .column = column, .block = BlockId(1 + 8 * slot + column)});
    first.push_back({.slot = SlotId(slot), .tokens = token});
    rows.push_back({.slot = SlotId(slot)});
  }
  ASSERT_TRUE(runner.Step({.joins = joins, .updates = updates, .rows = first}).ok());
  ASSERT_TRUE(runner.Step({.rows = rows}).ok());
  AllocationCounter allocations;
  for (int step = 0; step < 100; ++step) {
    const auto result = runner.Step({.rows = rows});
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result->decision.kind, GraphDecision::Kind::kReplay);
  }
  EXPECT_EQ(allocations.count(), 0);
  ASSERT_NE(runner.cascade(), nullptr);
  EXPECT_GE(runner.cascade()->num_steps(CascadeReason::kNoPrefix), 100);
}

// Repeats a step of a prefill chunk and two decodes, with tracing.
TEST(ModelRunnerTest, AReplayedMixedStepAllocatesNothingOnTheHeapAndIsTraced) {
  SilentModel model;
  StepTrace trace;
  auto created = ModelRunner::Create(
      &model, {.max_num_seqs = 4,
               .max_num_tokens = 16,
               .graphs = {.sizes = {1}, .mixed = MixedGraphs::kOn, .mixed_tokens = {8, 16}},
               .debug = {.trace = &trace}});
  ASSERT_TRUE(created.ok()) << created.status();
  ModelRunner& runner = **created;
  const std::vector<int32_t> tokens = {1, 2};
  std::vector<SlotJoin> joins;
  std::vector<BlockTableUpdate> updates;
  std::vector<ScheduledRow> first;
  std::vector<ScheduledRow> rows;
  for (int slot = 0; slot < 3; ++slot) {
    joins.push_back(JoinOf(SlotId(slot), {}, tokens.size()));
    for (int column = 0; column < 8; ++column)
      updates.push_back(
          {.slot = SlotId(slot), .column = column, .block = BlockId(1 + 8 * slot + column)});
    first.push_back({.slot = SlotId(slot), .tokens = tokens});
    rows.push_back({.slot = SlotId(slot)});
  }
  rows[1].tokens = tokens;
  ASSERT_TRUE(runner.Step({.joins = joins, .updates = updates, .rows = first}).ok());
  ASSERT_TRUE(runner.Step({.rows = rows}).ok());
  AllocationCounter allocations;
  for (int step = 0; step < 50; ++step) {
    const auto result = runner.Step({.rows = rows});
    ASSERT_TRUE(result.ok());
    ASSERT_EQ(result->decision.kind, GraphDecision::Kind::kReplay);
    ASSERT_EQ(result->decision.key.padded_num_tokens, 8);
  }
  EXPECT_EQ(allocations.count(), 0);

  const nlohmann::json events = nlohmann::json::parse(trace.ToJson()).at("traceEvents");
  std::vector<std::string> names;
  std::vector<std::string> device_names;
  double device_end = 0;
  for (const nlohmann::json& event : events) {
    const nlohmann::json& args = event.at("args");
    if (event.at("ph") == "X" && args.at("step") == 51) {
      const bool is_of_device = event.at("tid") == 2;
      (is_of_device ? device_names : names).push_back(event.at("name"));
      if (is_of_device) {
        device_end = event.at("ts").get<double>() + event.at("dur").get<double>();
      }
      if (event.at("name") == "await") {
        EXPECT_LE(device_end, event.at("ts").get<double>() + 0.01);
      }
    }
    if (event.at("name") == "replay") {
      EXPECT_EQ(args.at("key"), "4 seqs x 8 (8 tokens), tokens");
    }
  }
  EXPECT_THAT(names, testing::ElementsAre("launch", "plan", "refill", "replay", "sample", "await"));
  EXPECT_THAT(device_names, testing::ElementsAre("refill", "replay", "sample"));
  EXPECT_EQ(events.back().at("name"), "await");
  EXPECT_EQ(trace.num_events(), 52 * 10);  // spans and counts
}

// A CPU driver that reports little free memory.
class SmallDevice : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  std::optional<int64_t> free_bytes() override { return 150'000; }
  absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) override {
    REPRISE_RETURN_IF_ERROR(work());
    return 100'000;
  }
};

// Records the largest step that it was called with.
class NotingModel : public ToyModel {
 public:
  NotingModel() : ToyModel({}) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    num_tokens = std::max(num_tokens, step.num_tokens());
    max_query_len = std::max(max_query_len, step.max_query_len());
    return ToyModel::Forward(step);
  }
  int num_tokens = 0;
  int max_query_len = 0;
};

TEST(ModelRunnerTest, CacheGetsTheMemoryThatTheLargestStepLeaves) {
  NotingModel model;
  auto created =
      ModelRunner::Create(&model, {.max_num_seqs = 3, .max_num_tokens = 20, .max_seq_len = 16},
                          std::make_unique<SmallDevice>(*MakeDeviceDriver(c10::kCPU, {})));
  ASSERT_TRUE(created.ok()) << created.status();
  ModelRunner& runner = **created;
  EXPECT_EQ(model.num_tokens, 20);  // rows of 16, 3 and 1
  EXPECT_EQ(model.max_query_len, 16);
  EXPECT_EQ(runner.memory_use().eager_bytes, 100'000);
  EXPECT_EQ(runner.memory_use().free_bytes, 150'000);
  // 9/10 of the remaining memory, in blocks of 16 tokens: 2 layers of k and v, 2 heads of 32 dims,
  // 4 bytes.
  EXPECT_EQ(runner.shape().num_blocks, 45'000 / (16 * 2 * 2 * 2 * 32 * 4));
  // The largest step has left no state.
  const std::vector<SlotJoin> join = {JoinOf(SlotId(0), {}, 2)};
  const std::vector<BlockTableUpdate> update = {
      {.slot = SlotId(0), .column = 0, .block = BlockId(1)}};
  const std::vector<int32_t> tokens = {5, 6};
  const std::vector<ScheduledRow> row = {{.slot = SlotId(0), .tokens = tokens}};
  const auto result = runner.Step({.joins = join, .updates = update, .rows = row});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens[0], model.DenseLogits(tokens).argmax().item<int32_t>());
}

TEST(ModelRunnerTest, HistoriesExistOnlyForProposersThatReadThem) {
  const auto step_bytes = [](const DraftProposer& proposer, int max_seq_len) {
    ToyModel model({.max_position = 4096});
    const auto runner =
        ModelRunner::Create(&model, {.max_num_seqs = 2,
                                     .max_num_tokens = 8,
                                     .max_seq_len = max_seq_len,
                                     .cache = {.block_size = 2048},
                                     .speculation = {.max_drafts = 2, .proposer = proposer}});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return (*runner)->memory_use().step_bytes;
  };
  // Two blocks per sequence in both cases, so that only the histories grow: 1,000 tokens for each
  // of 2 slots, up to the alignment of buffers.
  EXPECT_EQ(step_bytes(NoProposer{}, 4000) - step_bytes(NoProposer{}, 3000), 0);
  EXPECT_GE(step_bytes(NgramProposer{}, 4000) - step_bytes(NgramProposer{}, 3000),
            2 * 1000 * 4 - 256);
}

// Each optional part must count its memory, and add the addresses in captured graphs to the
// fingerprint.
struct PartCase {
  std::string name;
  ModelRunnerOptions options;
  std::string entry;  // an entry of the fingerprint
  ToyModelOptions model = {};
};

class RunnerPartsOfOptionsTest : public testing::TestWithParam<PartCase> {
 protected:
  static std::unique_ptr<ModelRunner> MakeRunner(ToyModel& model, ModelRunnerOptions options) {
    options.max_num_seqs = 2;
    options.max_num_tokens = 16;
    options.max_seq_len = 64;
    options.cache.size = NumBlocks{20};
    auto runner = ModelRunner::Create(&model, options);
    EXPECT_TRUE(runner.ok()) << runner.status();
    return *std::move(runner);
  }
};

TEST_P(RunnerPartsOfOptionsTest, CountsItsMemoryAndListsItsAddresses) {
  ToyModel plain_model({}), model(GetParam().model);
  const auto plain = MakeRunner(plain_model, {});
  const auto runner = MakeRunner(model, GetParam().options);
  EXPECT_GT(runner->memory_use().step_bytes, plain->memory_use().step_bytes);
  EXPECT_THAT(plain->fingerprint().ToString(), Not(HasSubstr(GetParam().entry)));
  EXPECT_THAT(runner->fingerprint().ToString(), HasSubstr(GetParam().entry));
  EXPECT_EQ(runner->fingerprint(), runner->fingerprint());
}

ModelRunnerOptions NgramDrafts(DraftShape shape) {
  return {.speculation = {.max_drafts = 2, .shape = shape, .proposer = NgramProposer{}}};
}

INSTANTIATE_TEST_SUITE_P(
    Parts, RunnerPartsOfOptionsTest,
    testing::Values(PartCase{"Drafts", NgramDrafts(DraftShape::kChain), "chosen tokens"},
                    PartCase{"Trees", NgramDrafts(DraftShape::kTree), "tree of drafts"},
                    PartCase{"Embeddings", {}, "is_embedded", {.takes_embeddings = true}}),
    [](const auto& info) { return info.param.name; });

TEST(ModelRunnerTest, CountsTheMemoryOfLogitsFeatures) {
  const auto step_bytes = [](const LogitsOptions& logits) {
    ToyModel model({});
    const auto runner =
        ModelRunner::Create(&model, {.max_num_seqs = 2, .max_num_tokens = 8, .logits = logits});
    EXPECT_TRUE(runner.ok()) << runner.status();
    return (*runner)->memory_use().step_bytes;
  };
  const int64_t plain = step_bytes({});
  EXPECT_GE(step_bytes({.penalties = true}), plain + 2 * 2 * 61);
  EXPECT_GT(step_bytes({.max_biases = 300}), plain);
}

TEST(ModelRunnerTest, RejectsTokensOutsideTheVocabularyByArgumentAndIndex) {
  ToyModel model({});
  auto runner = ModelRunner::Create(&model, {.max_num_seqs = 1, .max_num_tokens = 8});
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_TRUE((*runner)->CheckTokens("prompt", {0, 60}).ok());
  const absl::Status status = (*runner)->CheckTokens("prompt", {0, 61});
  EXPECT_EQ(status.message(), "prompt must hold ids in [0, 61): got 61 at index 1");
  EXPECT_FALSE((*runner)->CheckTokens("prompt", {-1}).ok());
}

}  // namespace
}  // namespace reprise
