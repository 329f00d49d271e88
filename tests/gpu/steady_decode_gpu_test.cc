// The CUDA calls of a steady decode step, counted by CUPTI: one refill, one graph, one sampling; no
// wait for the device before the next launch, no copy to the host, no allocation.

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/testing/allocation_counter.h"
#include "examples/models/llama/llama_model.h"
#include "examples/models/llama/llama_weights.h"
#include "examples/models/llama/public_configs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runner/model_runner.h"
#include "runner/sampling/logits_params.h"
#include "runner/step_trace.h"
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
        runner_,
        ModelRunner::Create(model_.get(), {.max_num_seqs = 8,
                                           .max_num_tokens = 64,
                                           .max_seq_len = 256,
                                           .logits = {.allowed_tokens = true, .max_log_probs = 2},
                                           .speculation = speculation_,
                                           .trace = trace_}));
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

  // One step ahead of the host, as in an engine. `prepare`: changes rows_ before each step.
  // `awaited`: sees each step's result.
  absl::Status Run(
      int num_steps, const std::function<void(int step)>& prepare = [](int) {},
      const std::function<void(int step, const StepResult& result)>& awaited =
          [](int, const StepResult&) {}) {
    std::optional<StepTicket> oldest;
    for (int step = 0; step <= num_steps; ++step) {
      std::optional<StepTicket> next;
      if (step < num_steps) {
        prepare(step);
        REPRISE_ASSIGN_OR_RETURN(next, runner_->Launch({.rows = rows_}));
      }
      if (oldest.has_value()) {
        REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(*oldest));
        awaited(step - 1, result);
      }
      oldest = next;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<LlamaModel> model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<ScheduledRow> rows_;
  StepTrace* trace_ = nullptr;  // of runners that Start() makes
  SpeculationOptions speculation_ = {};
};

// No wait for the device but for the fence of a step's tokens, no copy, no allocation.
void ExpectNothingWaits(const DeviceTrace& trace) {
  for (const auto& [name, count] : trace.runtime_calls) {
    SCOPED_TRACE(testing::Message() << name << " x " << count);
    EXPECT_EQ(name.find("StreamSynchronize"), std::string::npos);
    EXPECT_EQ(name.find("DeviceSynchronize"), std::string::npos);
    EXPECT_EQ(name.find("Malloc"), std::string::npos);
    EXPECT_EQ(name.find("Memcpy"), std::string::npos);
  }
  for (const DeviceEvent& event : trace.events) {
    EXPECT_NE(event.kind, DeviceEvent::Kind::kCopy) << event.name;
  }
}

TEST_F(SteadyDecodeTest, AStepIsOneRefillOneGraphAndOneSampling) {
  const int64_t replays_before = runner_->graph_report().num_replays();
  const auto trace = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(runner_->graph_report().num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(trace->num_calls_like("LaunchKernel"), 2 * kNumSteps);  // refill and sampling
  ExpectNothingWaits(*trace);
}

// Drafts, their verification and the slots that advance are in the graph.
TEST_F(SteadyDecodeTest, AStepWithDraftsIsOneRefillAndOneGraph) {
  for (const bool tree : {false, true}) {
    for (const DraftAcceptance acceptance :
         {DraftAcceptance::kSameText, DraftAcceptance::kRejection}) {
      if (tree && acceptance == DraftAcceptance::kRejection) continue;
      SCOPED_TRACE(testing::Message()
                   << "tree " << tree << ", acceptance " << static_cast<int>(acceptance));
      speculation_ = {.max_drafts = 3,
                      .shape = tree ? DraftShape::kTree : DraftShape::kChain,
                      .proposer = SpeculationOptions::Proposer::kNgram,
                      .acceptance = acceptance};
      const absl::Status started = Start();
      ASSERT_TRUE(started.ok()) << started;
      for (ScheduledRow& row : rows_) row.num_drafts = 3;
      ASSERT_TRUE(Run(2).ok());
      const auto trace = TraceDevice([&] { return Run(kNumSteps); });
      ASSERT_TRUE(trace.ok()) << trace.status();
      EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
      EXPECT_EQ(trace->num_calls_like("LaunchKernel"), kNumSteps);  // refill
      ExpectNothingWaits(*trace);
      AllocationCounter allocations;
      ASSERT_TRUE(Run(5).ok());
      EXPECT_EQ(allocations.count(), 0);
    }
  }
}

// Two rows with a mask of their own in each step: one token of which the test knows that it must be
// chosen, another one in every step.
TEST_F(SteadyDecodeTest, MasksThatChangeEveryStepAreAKernelMoreAndNeitherWaitNorCopy) {
  const int vocab_size = model_->spec().vocab_size;
  const size_t num_words = static_cast<size_t>(MaskWords(vocab_size));
  const auto allowed = [&](int step, int row) { return (7 * step + 31 * row + 3) % vocab_size; };
  std::vector<int32_t> masks(2 * num_words);
  const std::vector<int> masked_rows = {1, 3};
  // Written into the same memory before each step: a runner reads it during Launch() alone.
  const auto set_masks = [&](int step) {
    std::fill(masks.begin(), masks.end(), 0);
    for (size_t i = 0; i < masked_rows.size(); ++i) {
      const int token = allowed(step, masked_rows[i]);
      const absl::Span<int32_t> mask = absl::MakeSpan(masks).subspan(i * num_words, num_words);
      mask[token / 32] = static_cast<int32_t>(uint32_t{1} << (token % 32));
      rows_[masked_rows[i]].allowed_tokens = mask;
    }
  };
  const auto check_tokens = [&](int step, const StepResult& result) {
    for (const int row : masked_rows) {
      EXPECT_EQ(result.tokens[row], allowed(step, row)) << "step " << step << ", row " << row;
    }
  };
  const auto plain = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(Run(4, set_masks, check_tokens).ok());
  const int64_t replays_before = runner_->graph_report().num_replays();
  const auto masked = TraceDevice([&] { return Run(kNumSteps, set_masks, check_tokens); });
  ASSERT_TRUE(masked.ok()) << masked.status();
  EXPECT_EQ(runner_->graph_report().num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(masked->num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(masked->num_calls_like("LaunchKernel"),
            plain->num_calls_like("LaunchKernel") + kNumSteps);
  // The host waits for the tokens of each step, and for nothing else: no ring is waited for.
  EXPECT_EQ(plain->num_calls_like("Synchronize"), kNumSteps);
  EXPECT_EQ(masked->num_calls_like("Synchronize"), kNumSteps);
  ExpectNothingWaits(*masked);

  const std::function<void(int)> prepare = set_masks;  // which may allocate
  AllocationCounter allocations;
  const absl::Status status = Run(kNumSteps, prepare);
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(status.ok()) << status;
}

// -1 before the first one.
int LastStepOf(const StepTrace& trace) {
  int last = -1;
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("tid") == 1) {
      last = std::max(last, event.at("args").at("step").get<int>());
    }
  }
  return last;
}

// Marks of the device's spans are events: what they add waits for nothing, and what they tell lies
// where the host saw it.
TEST_F(SteadyDecodeTest, ATraceOfTheDeviceDoesNotWaitForIt) {
  StepTrace trace;
  trace_ = &trace;
  const absl::Status started = Start();
  ASSERT_TRUE(started.ok()) << started;
  ASSERT_TRUE(Run(4).ok());
  const int64_t events_before = trace.num_events();
  const int64_t first_step = 1 + LastStepOf(trace);
  const auto device = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectNothingWaits(*device);
  EXPECT_EQ(device->num_calls_like("LaunchKernel"), 2 * kNumSteps);
  // launch, plan, refill, replay, sample, await, counts; refill, replay and sample of the device
  EXPECT_EQ(trace.num_events() - events_before, 10 * kNumSteps);
  double replay_us = 0;
  double kernel_us = 0;
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  int num_replays = 0;
  std::map<int, double> launched, awaited;  // begin of the launch, end of the await, by step
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("tid") != 1) continue;
    const int step = event.at("args").at("step");
    const double begin = event.at("ts");
    if (event.at("name") == "launch") launched[step] = begin;
    if (event.at("name") == "await") awaited[step] = begin + event.at("dur").get<double>();
  }
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("tid") != 2) continue;
    const int step = event.at("args").at("step");
    const double begin = event.at("ts");
    const double us = event.at("dur");
    EXPECT_GE(begin, launched.at(step) - 0.01) << event.at("name");
    EXPECT_LE(begin + us, awaited.at(step) + 0.01) << event.at("name");
    if (event.at("name") != "replay" || step < first_step) continue;
    ++num_replays;
    replay_us += us;
  }
  EXPECT_EQ(num_replays, kNumSteps);
  for (const DeviceEvent& event : device->events) kernel_us += event.duration_us;
  // Kernels run within the spans, but for those of refill and sampling, which are short.
  EXPECT_GT(replay_us, 0.5 * kernel_us);
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
