// The CUDA calls of a steady decode step, counted by CUPTI: one refill, one graph, one sampling; no
// wait for the device before the next launch, no copy to the host, no allocation.

#include <c10/cuda/CUDAFunctions.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/testing/allocation_counter.h"
#include "examples/models/llama/llama_model.h"
#include "examples/models/llama/llama_weights.h"
#include "examples/models/llama/public_configs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runner/model_runner.h"
#include "tests/benchmarks/device/device_trace.h"
#include "tests/benchmarks/device/step_trace.h"

namespace reprise {
namespace {

constexpr int kNumRows = 5;  // in a graph of 8
constexpr int kNumSteps = 20;

class SteadyDecodeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    const absl::Status status = Start();
    ASSERT_TRUE(status.ok()) << status;
  }

  absl::Status Start() {
    rows_.clear();
    runner_.reset();
    REPRISE_ASSIGN_OR_RETURN(const LlamaConfig config, LlamaPreset("jargon"));
    REPRISE_ASSIGN_OR_RETURN(LlamaWeights weights,
                             MakeRandomWeights(config, {.device = c10::Device(c10::kCUDA, 0),
                                                        .dtype = DType::kBFloat16}));
    REPRISE_ASSIGN_OR_RETURN(model_, LlamaModel::Create(config, std::move(weights), {}));
    REPRISE_ASSIGN_OR_RETURN(
        runner_, ModelRunner::Create(
                     model_.get(), {.max_num_seqs = 8, .max_num_tokens = 64, .max_seq_len = 256}));
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    std::vector<ScheduledRow> prefill;
    const std::vector<int32_t> prompt = {1, 2, 3};
    for (int slot = 0; slot < kNumRows; ++slot) {
      joins.push_back({.slot = slot});
      for (int column = 0; column < 8; ++column) {
        updates.push_back({slot, column, 1 + 8 * slot + column});
      }
      prefill.push_back({.slot = SlotId(slot), .tokens = prompt});
      rows_.push_back({.slot = SlotId(slot)});
    }
    REPRISE_RETURN_IF_ERROR(
        runner_->Step({.joins = joins, .updates = updates, .rows = prefill}).status());
    return Run(4);
  }

  // One step ahead of the host, as in an engine.
  absl::Status Run(int num_steps) {
    REPRISE_ASSIGN_OR_RETURN(StepTicket oldest, runner_->Launch({.rows = rows_}));
    for (int step = 1; step < num_steps; ++step) {
      REPRISE_ASSIGN_OR_RETURN(const StepTicket next, runner_->Launch({.rows = rows_}));
      REPRISE_RETURN_IF_ERROR(runner_->Await(oldest).status());
      oldest = next;
    }
    return runner_->Await(oldest).status();
  }

  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<ScheduledRow> rows_;
};

TEST_F(SteadyDecodeTest, AStepIsOneRefillOneGraphAndOneSampling) {
  const int64_t replays_before = runner_->graph_report().num_replays();
  const auto trace = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(runner_->graph_report().num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(trace->num_calls_like("LaunchKernel"), 2 * kNumSteps);  // refill and sampling

  for (const auto& [name, count] : trace->runtime_calls) {
    SCOPED_TRACE(testing::Message() << name << " x " << count);
    EXPECT_EQ(name.find("StreamSynchronize"), std::string::npos);
    EXPECT_EQ(name.find("DeviceSynchronize"), std::string::npos);
    EXPECT_EQ(name.find("Malloc"), std::string::npos);
    EXPECT_EQ(name.find("Memcpy"), std::string::npos);
  }
  for (const DeviceEvent& event : trace->events) {
    EXPECT_NE(event.kind, DeviceEvent::Kind::kCopy) << event.name;
  }
}

TEST_F(SteadyDecodeTest, AStepAllocatesNothingOnTheHeap) {
  AllocationCounter allocations;
  const absl::Status status = Run(kNumSteps);
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(status.ok()) << status;
}

// The next launch does not wait for the tokens of the last: two steps are enqueued while a token is
// not awaited.
TEST_F(SteadyDecodeTest, ReadingTokensLateChangesNothing) {
  std::vector<std::vector<int32_t>> late;
  StepTicket oldest = *runner_->Launch({.rows = rows_});
  for (int step = 0; step < kNumSteps; ++step) {
    const auto next = runner_->Launch({.rows = rows_});
    ASSERT_TRUE(next.ok()) << next.status();
    const auto result = runner_->Await(oldest);
    ASSERT_TRUE(result.ok()) << result.status();
    late.emplace_back(result->tokens.begin(), result->tokens.end());
    oldest = *next;
  }
  ASSERT_TRUE(runner_->Await(oldest).ok());

  const absl::Status again = Start();
  ASSERT_TRUE(again.ok()) << again;
  for (int step = 0; step < kNumSteps; ++step) {
    const auto result = runner_->Step({.rows = rows_});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(std::vector<int32_t>(result->tokens.begin(), result->tokens.end()), late[step])
        << "step " << step;
  }
}

}  // namespace
}  // namespace reprise
