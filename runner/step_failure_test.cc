// Failures within a step: which sequences they affect, and how the runner reports them.

#include <ATen/ops/argmax.h>
#include <ATen/ops/equal.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/forwarding_driver.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kBlockSize = 4;
constexpr int kColumns = 4;  // per slot: its blocks start at 1 + slot * kColumns

// Errors that a CPU device returns on request.
struct DeviceFaults {
  absl::Status refill;
  absl::Status sample;
  absl::Status fence;
  absl::Status health;
};

class FaultyFence : public Fence {
 public:
  explicit FaultyFence(const DeviceFaults* faults) : faults_(faults) {}
  void Arm() override {}
  bool Passed() override { return true; }
  absl::Status Wait() override { return faults_->fence; }

 private:
  const DeviceFaults* faults_;
};

class FaultyDriver : public ForwardingDriver {
 public:
  FaultyDriver(std::unique_ptr<DeviceDriver> cpu, const DeviceFaults* faults)
      : ForwardingDriver(std::move(cpu)), faults_(faults) {}

  absl::Status Health() override { return faults_->health; }
  absl::StatusOr<std::unique_ptr<Fence>> MakeFence() override {
    return std::make_unique<FaultyFence>(faults_);
  }
  absl::Status Refill(const RefillArgs& args) override {
    REPRISE_RETURN_IF_ERROR(faults_->refill);
    return ForwardingDriver::Refill(args);
  }
  absl::Status Sample(const SampleArgs& args) override {
    REPRISE_RETURN_IF_ERROR(faults_->sample);
    return ForwardingDriver::Sample(args);
  }

 private:
  const DeviceFaults* faults_;
};

class FailingModel : public ToyModel {
 public:
  using ToyModel::ToyModel;
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    REPRISE_RETURN_IF_ERROR(failure);
    if (throws) throw std::runtime_error("thrown by the model");
    return ToyModel::Forward(step);
  }
  absl::Status failure;
  bool throws = false;
};

class StepFailureTest : public testing::Test {
 protected:
  StepFailureTest() { Make(1); }

  void Make(int max_steps_in_flight, StepLogits step_logits = StepLogits::kIfSynchronous) {
    faults_ = {};
    runner_ = nullptr;
    auto runner = ModelRunner::Create(
        &model_,
        {.max_num_seqs = 3,
         .max_num_tokens = 16,
         .max_seq_len = kBlockSize * kColumns,
         .max_steps_in_flight = max_steps_in_flight,
         .cache = {.block_size = kBlockSize},
         .logits = {.step_logits = step_logits}},
        std::make_unique<FaultyDriver>(*MakeDeviceDriver(c10::kCPU, {}), &faults_));
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  // Launches a step: the slots in `joins` join with their prompts, the other `slots` decode, and
  // `leaves` leave.
  absl::StatusOr<int64_t> Launch(const std::vector<int>& slots, const std::vector<int>& joins,
                                 const std::vector<int>& leaves = {}) {
    std::vector<SlotId> leaving(leaves.begin(), leaves.end());
    std::vector<SlotJoin> joining;
    std::vector<BlockTableUpdate> updates;
    for (const int slot : joins) {
      joining.push_back(JoinOf(SlotId(slot), {}, prompts_[slot].size()));
      for (int column = 0; column < kColumns; ++column) {
        updates.push_back({.slot = SlotId(slot),
                           .column = column,
                           .block = BlockId(1 + slot * kColumns + column)});
      }
    }
    std::vector<ScheduledRow> rows;
    for (const int slot : slots) {
      const bool is_new = absl::c_linear_search(joins, slot);
      rows.push_back(
          {.slot = SlotId(slot),
           .tokens = is_new ? absl::MakeConstSpan(prompts_[slot]) : absl::Span<const int32_t>()});
    }
    return runner_->Launch({.leaves = leaving, .joins = joining, .updates = updates, .rows = rows});
  }

  // Runs a step and returns its tokens.
  absl::StatusOr<std::vector<int32_t>> Step(const std::vector<int>& slots,
                                            const std::vector<int>& joins = {},
                                            const std::vector<int>& leaves = {}) {
    REPRISE_ASSIGN_OR_RETURN(const int64_t ticket, Launch(slots, joins, leaves));
    REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(ticket));
    return std::vector<int32_t>(result.tokens.begin(), result.tokens.end());
  }

  // Returns the tokens that follow the slot's prompt in a run without other rows.
  std::vector<int32_t> Alone(int slot, int num_tokens) const {
    std::vector<int32_t> text = prompts_[slot];
    std::vector<int32_t> tokens;
    while (static_cast<int>(tokens.size()) < num_tokens) {
      tokens.push_back(model_.DenseLogits(text).argmax().item<int32_t>());
      text.push_back(tokens.back());
    }
    return tokens;
  }

  const std::vector<std::vector<int32_t>> prompts_ = {{1, 2, 3}, {7, 5}, {9, 9, 1, 4}};
  FailingModel model_{ToyModelOptions()};
  DeviceFaults faults_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(StepFailureTest, FailingForwardFailsOnlyTheRowsOfItsStep) {
  const std::vector<int32_t> expected = Alone(1, 4);
  EXPECT_THAT(*Step({0, 1}, {0, 1}), ElementsAre(Alone(0, 1)[0], expected[0]));
  for (const bool throws : {false, true}) {
    SCOPED_TRACE(throws);
    model_.failure = throws ? absl::OkStatus() : absl::InvalidArgumentError("no such expert");
    model_.throws = throws;
    // The batch fits and is accepted, so the error belongs to the step.
    const auto ticket = throws ? Launch({2}, {2}, {0, 2}) : Launch({0}, {});
    ASSERT_TRUE(ticket.ok()) << ticket.status();
    const absl::Status failed = runner_->Await(*ticket).status();
    EXPECT_EQ(failed.code(),
              throws ? absl::StatusCode::kInternal : absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(failed.message()),
                HasSubstr(throws ? "thrown by the model" : "no such expert"));
    EXPECT_EQ(runner_->status(), absl::OkStatus());
    model_.failure = absl::OkStatus();
    model_.throws = false;
    EXPECT_THAT(*Step({1}), ElementsAre(expected[throws ? 2 : 1]));
  }
  // The slots of the failed sequences can be used again.
  EXPECT_THAT(*Step({2, 1, 0}, {0, 2}, {2}),
              ElementsAre(Alone(2, 1)[0], expected[3], Alone(0, 1)[0]));
}

TEST_F(StepFailureTest, CreateFailsIfTheSpecThrows) {
  class NoSpec : public ToyModel {
   public:
    using ToyModel::ToyModel;
    const ModelSpec& spec() const override { throw std::runtime_error("no weights were loaded"); }
  };
  NoSpec model{ToyModelOptions()};
  const absl::Status refused =
      ModelRunner::Create(&model, {.max_num_seqs = 1, .max_num_tokens = 4}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("no weights were loaded"));
}

TEST_F(StepFailureTest, FailedStepHasNoLogits) {
  for (const StepLogits step_logits : {StepLogits::kIfSynchronous, StepLogits::kOfEvery}) {
    Make(1, step_logits);
    ASSERT_TRUE(Step({0}, {0}).ok());
    ASSERT_TRUE(runner_->logits(0).ok());
    model_.failure = absl::AbortedError("no forward today");
    EXPECT_EQ(Step({0}).status().code(), absl::StatusCode::kAborted);
    model_.failure = absl::OkStatus();
    for (const auto& logits : {runner_->logits(1), runner_->earlier_logits(1)}) {
      EXPECT_EQ(logits.status(),
                absl::FailedPreconditionError("step 1 has failed: it has no logits"));
    }
  }
}

TEST_F(StepFailureTest, RejectsReadsOfOverwrittenLogits) {
  for (const StepLogits step_logits : {StepLogits::kIfSynchronous, StepLogits::kOfEvery}) {
    Make(1, step_logits);
    ASSERT_TRUE(Step({0}, {0}).ok());
    const absl::StatusOr<at::Tensor> before = runner_->logits(0);
    ASSERT_TRUE(before.ok()) << before.status();
    const at::Tensor expected = before->clone();
    ASSERT_TRUE(Launch({0}, {}).ok());
    const absl::StatusOr<at::Tensor> after = runner_->logits(0);
    if (step_logits == StepLogits::kOfEvery) {
      ASSERT_TRUE(after.ok()) << after.status();
      EXPECT_TRUE(at::equal(*after, expected));
    } else {
      EXPECT_EQ(after.status(), absl::FailedPreconditionError(
                                    "the logits of step 0 must be read before the next launch"));
    }
    ASSERT_TRUE(runner_->Await(1).ok());
    EXPECT_TRUE(runner_->logits(1).ok());
  }
}

// A driver that uses itself after the work of OnStream(), and whose PlanWork() fails.
class DriverWithoutPlans : public ForwardingDriver {
 public:
  explicit DriverWithoutPlans(int* num_on_stream)
      : ForwardingDriver(*MakeDeviceDriver(c10::kCPU, {})), num_on_stream_(num_on_stream) {}
  ~DriverWithoutPlans() override { *num_on_stream_ = depth_; }

  absl::Status OnStream(absl::FunctionRef<absl::Status()> work) override {
    ++depth_;
    const absl::Status status = ForwardingDriver::OnStream(work);
    --depth_;
    return status;
  }
  absl::StatusOr<TileSchedulePlan> PlanWork(const TileScheduleOptions&) override {
    return absl::ResourceExhaustedError("no room for plans");
  }

 private:
  int depth_ = 0;
  int* num_on_stream_;
};

TEST_F(StepFailureTest, DriverOutlivesItsWorkIfCreateFails) {
  int num_on_stream = -1;
  const absl::Status refused =
      ModelRunner::Create(&model_, {.max_num_seqs = 1, .max_num_tokens = 4},
                          std::make_unique<DriverWithoutPlans>(&num_on_stream))
          .status();
  EXPECT_EQ(refused, absl::ResourceExhaustedError("no room for plans"));
  EXPECT_EQ(num_on_stream, 0);
}

TEST_F(StepFailureTest, AnEarlierStepInFlightKeepsItsTokens) {
  Make(2);
  const auto first = Launch({0, 1}, {0, 1});
  model_.failure = absl::AbortedError("no forward today");
  const auto second = Launch({0}, {});
  model_.failure = absl::OkStatus();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(runner_->Await(*first)->tokens, ElementsAre(Alone(0, 1)[0], Alone(1, 1)[0]));
  EXPECT_EQ(runner_->Await(*second).status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(*Step({1}, {}, {0}), ElementsAre(Alone(1, 2)[1]));
}

TEST_F(StepFailureTest, DeviceFaultDoesNotReportOldTokens) {
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(Step({0}, i == 0 ? std::vector{0} : std::vector<int>()).ok());
  const auto ticket = Launch({0}, {});
  faults_.fence = faults_.health = absl::InternalError("an illegal memory access");
  const auto result = runner_->Await(*ticket);
  EXPECT_EQ(result.status(), faults_.fence);
  EXPECT_EQ(runner_->status(), faults_.fence);
  const absl::Status next = Launch({0}, {}).status();
  EXPECT_EQ(next.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(next.message()), HasSubstr("an illegal memory access"));
}

TEST_F(StepFailureTest, DeviceFaultInAStepFailsTheRunner) {
  ASSERT_TRUE(Step({0}, {0}).ok());
  faults_.sample = absl::InternalError("launch failure");
  faults_.health = absl::InternalError("the device is lost");
  const auto ticket = Launch({0}, {});
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(runner_->status(), faults_.health);
  EXPECT_EQ(runner_->Await(*ticket).status(), faults_.sample);
}

TEST_F(StepFailureTest, SamplingErrorOnAHealthyDeviceFailsTheStep) {
  ASSERT_TRUE(Step({1, 0}, {0, 1}).ok());
  faults_.sample = absl::ResourceExhaustedError("no memory");
  EXPECT_EQ(Step({0}).status(), faults_.sample);
  faults_.sample = absl::OkStatus();
  EXPECT_THAT(*Step({1}), ElementsAre(Alone(1, 2)[1]));
}

// The slots on the device then differ permanently from the host's mirror.
TEST_F(StepFailureTest, RefillErrorFailsTheRunner) {
  ASSERT_TRUE(Step({0}, {0}).ok());
  faults_.refill = absl::InternalError("launch failure");
  EXPECT_EQ(Step({0}).status(), faults_.refill);
  EXPECT_EQ(runner_->status(), faults_.refill);
  faults_.refill = absl::OkStatus();
  EXPECT_EQ(Step({0}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StepFailureTest, RejectedBatchChangesNothing) {
  const std::vector<int32_t> expected = Alone(0, 3);
  EXPECT_THAT(*Step({0}, {0}), ElementsAre(expected[0]));
  EXPECT_EQ(Launch({0, 2}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Launch({0, 0}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Launch({0}, {}, {0, 1, 2, 0}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(*Step({0}), ElementsAre(expected[1]));
  EXPECT_THAT(*Step({0}), ElementsAre(expected[2]));
}

TEST_F(StepFailureTest, RejectsMoreUpdatesThanTheDeltaHolds) {
  const std::vector<SlotJoin> join = {JoinOf(SlotId(0), {}, 1)};
  const int num_entries = 3 * kColumns;  // entries of all slots
  const std::vector<BlockTableUpdate> updates(
      num_entries + 1, {.slot = SlotId(0), .column = 0, .block = BlockId(1)});
  const absl::Status status = runner_->Launch({.joins = join, .updates = updates}).status();
  EXPECT_EQ(status.message(), "updates: a batch has at most 12, got 13");
  const auto most = absl::MakeConstSpan(updates).first(num_entries);
  EXPECT_TRUE(runner_->Step({.joins = join, .updates = most}).ok());
}

TEST_F(StepFailureTest, RejectsAwaitOutOfOrder) {
  EXPECT_EQ(runner_->Await(0).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto first = Launch({0}, {0});
  EXPECT_EQ(Launch({0}, {}).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(runner_->Await(1).status().message(),
            "steps are awaited once, in the order of their launch: expected step 0, got step 1");
  EXPECT_THAT(runner_->Await(*first)->tokens, SizeIs(1));
  EXPECT_EQ(runner_->Await(*first).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(*Step({0}), ElementsAre(Alone(0, 2)[1]));
}

TEST_F(StepFailureTest, EachStepInFlightHasSeparateLogits) {
  Make(3, StepLogits::kOfEvery);
  std::vector<int64_t> tickets = {*Launch({0, 1}, {0, 1}), *Launch({1}, {}), *Launch({0, 1}, {})};
  for (const int64_t ticket : tickets) {
    const auto result = runner_->Await(ticket);
    ASSERT_TRUE(result.ok()) << result.status();
    const at::Tensor logits = *runner_->logits(ticket);
    ASSERT_EQ(logits.size(0), static_cast<int64_t>(result->tokens.size()));
    for (size_t row = 0; row < result->tokens.size(); ++row) {
      EXPECT_EQ(logits[row].argmax().item<int32_t>(), result->tokens[row]);
    }
  }
  Make(3);
  const int64_t step = runner_->Await(*Launch({0}, {0}))->step;
  EXPECT_THAT(std::string(runner_->logits(step).status().message()),
              HasSubstr("with StepLogits::kOfEvery: got 3 steps in flight"));
  Make(1);
  const int64_t first = runner_->Await(*Launch({0}, {0}))->step;
  EXPECT_EQ(runner_->logits(first)->size(0), 1);
  EXPECT_THAT(std::string(runner_->logits(first + 1).status().message()),
              HasSubstr("expected step 0, got 1"));
}

// With N steps in flight, N - 1 later steps may have been launched when a step is awaited.
TEST_F(StepFailureTest, AResultStaysReadableUntilTheSecondLaunchAfterItsAwait) {
  for (const int num_in_flight : {1, 2, 3, 4}) {
    SCOPED_TRACE(num_in_flight);
    Make(num_in_flight, StepLogits::kOfEvery);
    std::vector<int64_t> tickets = {*Launch({0}, {0})};
    while (static_cast<int>(tickets.size()) < num_in_flight) tickets.push_back(*Launch({0}, {}));
    const auto result = runner_->Await(tickets[0]);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<int32_t> tokens(result->tokens.begin(), result->tokens.end());
    const at::Tensor kept = *runner_->logits(tickets[0]);
    const at::Tensor logits = kept.clone();
    ASSERT_TRUE(Launch({0}, {}).ok());  // writes to other memory of the ring
    EXPECT_THAT(result->tokens, testing::ElementsAreArray(tokens));
    EXPECT_TRUE(at::equal(kept, logits));
    EXPECT_EQ(logits[0].argmax().item<int32_t>(), tokens[0]);
  }
}

TEST(LogitsDtypeTest, FloatLogitsOfA16BitModelAreNotRounded) {
  const std::vector<SlotJoin> join = {JoinOf(SlotId(0), {}, 1)};
  const std::vector<BlockTableUpdate> update = {
      {.slot = SlotId(0), .column = 0, .block = BlockId(1)}};
  const std::vector<int32_t> tokens = {1, 2};
  const std::vector<ScheduledRow> row = {{.slot = SlotId(0), .tokens = tokens}};
  const auto first_logits = [&](std::optional<DType> logits_dtype) {
    ToyModel model({.dtype = DType::kBFloat16, .logits_dtype = logits_dtype});
    auto runner = *ModelRunner::Create(&model, {.max_num_seqs = 1, .max_num_tokens = 8});
    const auto result = runner->Step({.joins = join, .updates = update, .rows = row});
    return runner->logits(result->step)->clone();
  };
  const at::Tensor rounded = first_logits(std::nullopt);
  const at::Tensor exact = first_logits(DType::kFloat32);
  EXPECT_EQ(rounded.scalar_type(), at::kBFloat16);
  EXPECT_EQ(exact.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(exact.to(at::kBFloat16), rounded));
  EXPECT_FALSE(at::equal(exact.to(at::kBFloat16).to(at::kFloat), exact));
}

}  // namespace
}  // namespace reprise
