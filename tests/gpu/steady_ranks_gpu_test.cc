// The CUDA calls of a steady decode step of a model that is divided over ranks, counted by CUPTI:
// one graph launch, what chooses the tokens, no copy, no wait for the device before the next
// launch.
//
// RanksGpuTest.* fork their ranks before anything has touched CUDA: run them by themselves.

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/share.h"
#include "reprise/distributed/testing/rank_reports.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/runner/model_runner.h"
#include "tests/benchmarks/device/device_trace.h"

namespace reprise {
namespace {

constexpr int kNumRows = 5;  // in a graph of 8
constexpr int kNumSteps = 20;

// A model's runner and its rows: prompts, then decodes with one step ahead of the host.
class SteadyRank {
 public:
  static absl::StatusOr<std::unique_ptr<SteadyRank>> Create(Collectives* collectives,
                                                            c10::Device device,
                                                            const SamplingParams& sampling,
                                                            std::optional<bool> shards = true) {
    std::unique_ptr<SteadyRank> rank(new SteadyRank);
    REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, LlamaPreset("jargon"));
    REPRISE_ASSIGN_OR_RETURN(
        DecoderWeights weights,
        MakeRandomWeights(
            config, {.device = device, .dtype = DType::kBFloat16, .ranks = RanksOf(collectives)}));
    REPRISE_ASSIGN_OR_RETURN(rank->model_, DecoderModel::Create(config, std::move(weights),
                                                                {.collectives = collectives}));
    REPRISE_ASSIGN_OR_RETURN(
        rank->runner_,
        ModelRunner::Create(rank->model_.get(), {.max_num_seqs = 8,
                                                 .max_num_tokens = 64,
                                                 .max_seq_len = 256,
                                                 .cache = {.size = NumBlocks{100}},
                                                 .ranks = {.collectives = collectives},
                                                 .debug = {.sample_shards = shards}}));
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    std::vector<ScheduledRow> prompts;
    const std::vector<int32_t> prompt = {1, 2, 3};
    for (int slot = 0; slot < kNumRows; ++slot) {
      joins.push_back(JoinOf(SlotId(slot), {}, prompt.size(), sampling));
      for (int column = 0; column < 8; ++column) {
        updates.push_back(
            {.slot = SlotId(slot), .column = column, .block = BlockId(1 + 8 * slot + column)});
      }
      prompts.push_back({.slot = SlotId(slot), .tokens = prompt});
      rank->rows_.push_back({.slot = SlotId(slot)});
    }
    REPRISE_RETURN_IF_ERROR(
        rank->runner_->Step({.joins = joins, .updates = updates, .rows = prompts}).status());
    REPRISE_RETURN_IF_ERROR(rank->Run(4));
    return rank;
  }

  absl::Status Run(int num_steps) {
    std::optional<int64_t> oldest;
    for (int step = 0; step <= num_steps; ++step) {
      std::optional<int64_t> next;
      if (step < num_steps) {
        REPRISE_ASSIGN_OR_RETURN(next, runner_->Launch({.rows = rows_}));
      }
      if (oldest.has_value()) {
        REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(*oldest));
        tokens_.insert(tokens_.end(), result.tokens.begin(), result.tokens.end());
      }
      oldest = next;
    }
    return absl::OkStatus();
  }

  const std::vector<int32_t>& tokens() const { return tokens_; }  // of all runs
  int64_t num_replays() const { return runner_->graph_report().num_replays(); }
  int vocab_size() const { return model_->spec().vocab_size; }

 private:
  SteadyRank() = default;

  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<ScheduledRow> rows_;
  std::vector<int32_t> tokens_;
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

int NumKernelsLike(const DeviceTrace& trace, const std::string& part) {
  return static_cast<int>(std::count_if(
      trace.events.begin(), trace.events.end(),
      [&](const DeviceEvent& event) { return event.name.find(part) != std::string::npos; }));
}

// Traces steady steps. The kernels that choose tokens are `num_tops`, one choice and one that takes
// the best a step.
absl::StatusOr<DeviceTrace> TraceSteps(SteadyRank& rank, int num_tops) {
  const int64_t replays_before = rank.num_replays();
  REPRISE_ASSIGN_OR_RETURN(DeviceTrace trace, TraceDevice([&] { return rank.Run(kNumSteps); }));
  EXPECT_EQ(rank.num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(trace.num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(NumKernelsLike(trace, "ShardTopKernel"), num_tops * kNumSteps);
  EXPECT_EQ(NumKernelsLike(trace, "ShardChoiceKernel"), kNumSteps);
  EXPECT_EQ(NumKernelsLike(trace, "ShardTokensKernel"), kNumSteps);
  EXPECT_EQ(NumKernelsLike(trace, "SampleKernel"), 0);
  // The host waits for the tokens of each step, and for nothing else.
  EXPECT_EQ(trace.num_calls_like("Synchronize"), kNumSteps);
  ExpectNothingWaits(trace);
  return trace;
}

// Rank 0 of two without the other, whose choices stay none. What it does on its device is what it
// does among others, but for their messages.
class LoneRank final : public Collectives {
 public:
  LoneRank() : Collectives({.rank = 0, .world = 2}) {}
  std::string Fingerprint() const override { return "one of two ranks, alone"; }

 protected:
  absl::Status DoAllReduce(at::Tensor&) override { return absl::OkStatus(); }
  // What ranks agree on, on the host, is what this one says.
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    if (in.is_cpu()) out.copy_(in.clone().unsqueeze(0).expand_as(out));
    return absl::OkStatus();
  }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
};

const SamplingParams kTopK = {.temperature = 1, .top_k = 20, .seed = 3};

TEST(LoneRankTest, AStepIsOneRefillOneGraphAndTheChoiceOfTokens) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  for (const bool greedy : {true, false}) {
    SCOPED_TRACE(greedy ? "greedy" : "top_k");
    LoneRank alone;
    const auto rank =
        SteadyRank::Create(&alone, c10::Device(c10::kCUDA, 0), greedy ? SamplingParams() : kTopK);
    ASSERT_TRUE(rank.ok()) << rank.status();
    const auto trace = TraceSteps(**rank, /*num_tops=*/greedy ? 0 : 1);
    ASSERT_TRUE(trace.ok()) << trace.status();
    // Refill, and what chooses the tokens.
    EXPECT_EQ(trace->num_calls_like("LaunchKernel"), (greedy ? 3 : 4) * kNumSteps);
    EXPECT_THAT((*rank)->tokens(), testing::Each(testing::AllOf(
                                       testing::Ge(0), testing::Lt((*rank)->vocab_size() / 2))));
  }
}

// As runners are by default: the gather of the logits is in the graph.
TEST(LoneRankTest, ByDefaultAStepIsOneRefillOneGraphAndOneSampling) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  for (const bool greedy : {true, false}) {
    SCOPED_TRACE(greedy ? "greedy" : "top_k");
    LoneRank alone;
    const auto rank = SteadyRank::Create(&alone, c10::Device(c10::kCUDA, 0),
                                         greedy ? SamplingParams() : kTopK, std::nullopt);
    ASSERT_TRUE(rank.ok()) << rank.status();
    const int64_t replays_before = (*rank)->num_replays();
    const auto trace = TraceDevice([&] { return (*rank)->Run(kNumSteps); });
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ((*rank)->num_replays() - replays_before, kNumSteps);
    EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
    EXPECT_EQ(trace->num_calls_like("LaunchKernel"), 2 * kNumSteps);  // refill and sampling
    EXPECT_EQ(trace->num_calls_like("Synchronize"), kNumSteps);
    EXPECT_EQ(NumKernelsLike(*trace, "SampleKernel"), kNumSteps);
    EXPECT_EQ(NumKernelsLike(*trace, "Shard"), 0);
    ExpectNothingWaits(*trace);
  }
}

// Two ranks with a GPU each.
TEST(RanksGpuTest, ASteadyStepIsOneGraphAndNothingIsCopiedOrAwaited) {
  const SamplingParams kinds[] = {{}, kTopK, {.temperature = 1, .top_p = 0.9f, .seed = 4}};
  for (const SamplingParams& sampling : kinds) {
    SCOPED_TRACE(absl::StrCat("top_k ", sampling.top_k, ", top_p ", sampling.top_p));
    const RankReports reports(
        2,
        [&](const RankPlace& place) -> absl::Status {
          if (c10::cuda::device_count() < 2) return absl::NotFoundError("needs two GPUs");
          const auto index = static_cast<c10::DeviceIndex>(place.local_rank);
          const c10::cuda::CUDAGuard guard(index);
          const c10::Device device(c10::kCUDA, index);
          REPRISE_ASSIGN_OR_RETURN(const auto ranks, ConnectRanks(place, device));
          REPRISE_ASSIGN_OR_RETURN(const auto rank,
                                   SteadyRank::Create(ranks.get(), device, sampling));
          REPRISE_RETURN_IF_ERROR(ranks->Barrier());
          if (sampling.top_p < 1) {
            // All logits are gathered, after the graph.
            REPRISE_ASSIGN_OR_RETURN(const DeviceTrace trace,
                                     TraceDevice([&] { return rank->Run(kNumSteps); }));
            EXPECT_EQ(trace.num_calls_like("GraphLaunch"), kNumSteps);
            EXPECT_EQ(NumKernelsLike(trace, "SampleKernel"), kNumSteps);
            EXPECT_EQ(NumKernelsLike(trace, "AllGather"), kNumSteps);
            ExpectNothingWaits(trace);
          } else {
            const int num_tops = sampling.top_k > 0 ? 1 : 0;
            REPRISE_ASSIGN_OR_RETURN(const DeviceTrace trace, TraceSteps(*rank, num_tops));
            EXPECT_EQ(NumKernelsLike(trace, "AllGather"), (1 + num_tops) * kNumSteps);
          }
          // All ranks have chosen the same.
          const at::Tensor own = at::tensor(rank->tokens(), at::kInt);
          at::Tensor all = at::empty({2, own.numel()}, at::kInt);
          REPRISE_RETURN_IF_ERROR(ranks->AllGather(own, all));
          EXPECT_TRUE(all[0].equal(all[1]));
          return ranks->Barrier();
        },
        absl::Seconds(100));
    if (reports.of(0) && reports.of(0)->message() == "needs two GPUs") {
      GTEST_SKIP() << "needs two GPUs";
    }
    if (absl::IsFailedPrecondition(reports.status())) {
      GTEST_SKIP() << reports.status() << ": run RanksGpuTest.* by themselves";
    }
    EXPECT_TRUE(reports.ok()) << reports.text();
  }
}

}  // namespace
}  // namespace reprise
