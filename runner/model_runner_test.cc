#include "runner/model_runner.h"

#include <ATen/ops/argmax.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/testing/allocation_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runner/testing/forwarding_driver.h"
#include "runner/testing/model_runner_suite.h"
#include "runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Cpu, ModelRunnerSuite, testing::Values(c10::kCPU));

// Returns a preset result.
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

  const std::vector<SlotJoin> join_ = {{.slot = 0}};
  const std::vector<BlockTableUpdate> update_ = {{.slot = 0, .column = 0, .block = 1}};
  const std::vector<int32_t> tokens_ = {1, 2};
  const std::vector<ScheduledRow> row_ = {{.slot = SlotId(0), .tokens = tokens_}};
  PuppetModel model_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(ModelErrorTest, LogitsOfAnotherShapeAreRefused) {
  model_.wrong_shape = true;
  const absl::Status status = FirstStep();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[1, 61], got [1, 7]"));
}

// Makes no tensors, so that what is allocated is the runner's.
class SilentModel : public ToyModel {
 public:
  SilentModel() : ToyModel({}) {}
  absl::StatusOr<at::Tensor> Forward(const Step& step) override { return step.logits(); }
};

TEST(ModelRunnerTest, AReplayedStepAllocatesNothingOnTheHeap) {
  SilentModel model;
  // Looking for prefixes to share, too.
  auto created =
      ModelRunner::Create(&model, {.max_num_seqs = 4,
                                   .max_num_tokens = 16,
                                   .cascade = CascadeMode::kAuto,
                                   .cascade_costs = {.read_tb_per_s = 1, .reread_tb_per_s = 1}});
  ASSERT_TRUE(created.ok()) << created.status();
  ModelRunner& runner = **created;
  const std::vector<int32_t> token = {1};
  std::vector<SlotJoin> joins;
  std::vector<BlockTableUpdate> updates;
  std::vector<ScheduledRow> first;
  std::vector<ScheduledRow> rows;
  for (int slot = 0; slot < 3; ++slot) {
    joins.push_back({.slot = slot});
    for (int column = 0; column < 8; ++column)
      updates.push_back({slot, column, 1 + 8 * slot + column});
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

// A chunk of a prompt and two decodes, again and again; traced.
TEST(ModelRunnerTest, AReplayedMixedStepAllocatesNothingOnTheHeapAndIsTraced) {
  SilentModel model;
  StepTrace trace;
  auto created = ModelRunner::Create(&model, {.max_num_seqs = 4,
                                              .max_num_tokens = 16,
                                              .graph_sizes = {1},
                                              .mixed_graphs = MixedGraphs::kOn,
                                              .mixed_graph_tokens = {8, 16},
                                              .trace = &trace});
  ASSERT_TRUE(created.ok()) << created.status();
  ModelRunner& runner = **created;
  const std::vector<int32_t> tokens = {1, 2};
  std::vector<SlotJoin> joins;
  std::vector<BlockTableUpdate> updates;
  std::vector<ScheduledRow> first;
  std::vector<ScheduledRow> rows;
  for (int slot = 0; slot < 3; ++slot) {
    joins.push_back({.slot = slot});
    for (int column = 0; column < 8; ++column)
      updates.push_back({slot, column, 1 + 8 * slot + column});
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
  EXPECT_EQ(trace.num_events(), 52 * 10);  // those and the counts
}

// A device with little memory, over the CPU.
class SmallDevice : public ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  std::optional<int64_t> free_bytes() override { return 150'000; }
  absl::StatusOr<int64_t> MeasurePeakBytes(absl::FunctionRef<absl::Status()> work) override {
    REPRISE_RETURN_IF_ERROR(work());
    return 100'000;
  }
};

// Notes the largest step that it was given.
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

TEST(ModelRunnerTest, TheCacheGetsWhatTheLargestStepLeaves) {
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
  // 9/10 of the rest, in blocks of 16 tokens: 2 layers of k and v, 2 heads of 32 dims, 4 bytes.
  EXPECT_EQ(runner.num_blocks(), 45'000 / (16 * 2 * 2 * 2 * 32 * 4));
  // What that step left behind is gone.
  const std::vector<SlotJoin> join = {{.slot = 0}};
  const std::vector<BlockTableUpdate> update = {{.slot = 0, .column = 0, .block = 1}};
  const std::vector<int32_t> tokens = {5, 6};
  const std::vector<ScheduledRow> row = {{.slot = SlotId(0), .tokens = tokens}};
  const auto result = runner.Step({.joins = join, .updates = update, .rows = row});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens[0], model.DenseLogits(tokens).argmax().item<int32_t>());
}

TEST(ModelRunnerTest, RefusesTokensOutsideTheVocabularyByArgumentAndIndex) {
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
