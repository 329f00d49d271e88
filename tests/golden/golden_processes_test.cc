// The golden models divided over ranks that are processes, by LibTorch's process groups: gloo on
// CPUs, and with REPRISE_TEST_ON_GPU NCCL on two GPUs. Ranks are forked, so nothing here touches
// CUDA.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/testing/all_cases.h"
#include "reprise/distributed/agreement.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/share.h"
#include "reprise/distributed/testing/rank_reports.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/ranked_steps.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_model.h"
#include "tests/golden/golden_ranks.h"
#include "tests/golden/golden_runner.h"
#include "tests/golden/odd_sizes.h"
#include "tests/golden/rank_traffic.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {
namespace {

using Mode = GraphSetOptions::Mode;

constexpr double kTolerance = 5e-4;
#ifdef REPRISE_TEST_ON_GPU
constexpr int kWorlds[] = {2};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr char kNoGpus[] = "too few GPUs";
#else
constexpr int kWorlds[] = {2, 4};
constexpr DType kDTypes[] = {DType::kFloat32};
#endif

absl::StatusOr<c10::Device> DeviceOf(const RankPlace& place) {
#ifdef REPRISE_TEST_ON_GPU
  if (c10::cuda::device_count() < place.ranks.world) return absl::NotFoundError(kNoGpus);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
#else
  static_cast<void>(place);
  at::set_num_threads(1);
  return c10::Device(c10::kCPU);
#endif
}

class GoldenProcessesTest : public testing::TestWithParam<std::tuple<const char*, int, DType>> {};

// Runs `body` as ranks that must all return OK.
void ExpectOnAll(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body) {
  const RankReports reports(world, body, absl::Seconds(100));
#ifdef REPRISE_TEST_ON_GPU
  if (reports.of(0) && reports.of(0)->message() == kNoGpus) GTEST_SKIP() << kNoGpus;
  // Other tests of the program may have touched CUDA.
  if (absl::IsFailedPrecondition(reports.status())) {
    GTEST_SKIP() << reports.status() << ": run *ProcessesTest.* by themselves";
  }
#endif
  EXPECT_TRUE(reports.ok()) << reports.text();
}

void CheckOverProcesses(const std::string& name, int world, const ShardedGoldenCheck& check) {
  const absl::StatusOr<Golden> golden = LoadGolden(name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  ExpectOnAll(world, [&](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
    REPRISE_ASSIGN_OR_RETURN(const auto collectives, ConnectRanks(place, device));
    REPRISE_RETURN_IF_ERROR(CheckShardedGolden(*golden, *collectives, device, check,
                                               {.graphs = Mode::kEager, .block_size = 4}));
    ShardedGoldenCheck eager = check;
    eager.replays = false;
    return CheckShardedGolden(*golden, *collectives, device, eager,
                              {.graphs = Mode::kOff, .prefill_chunk = 7});
  });
}

TEST_P(GoldenProcessesTest, LogitsAreGoldenWithGraphsAndWithout) {
  const auto [name, world, dtype] = GetParam();
  CheckOverProcesses(name, world, {.tolerance = kTolerance, .dtype = dtype});
}

// Steps of a runner, and what they gave.
class RecordedSteps final : public StepRunner {
 public:
  explicit RecordedSteps(StepRunner* steps) : steps_(*steps) {}

  const RunnerShape& shape() const override { return steps_.shape(); }
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    return steps_.CheckLogits(request);
  }
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    return steps_.Launch(batch);
  }
  absl::StatusOr<StepResult> Await(int64_t step) override {
    absl::StatusOr<StepResult> result = steps_.Await(step);
    if (result.ok()) {
      absl::StrAppend(&tokens_, "tokens of step ", step, "=", absl::StrJoin(result->tokens, ","),
                      "\n");
    }
    return result;
  }
  absl::Status status() const override { return steps_.status(); }
  const GraphReport& graph_report() const override { return steps_.graph_report(); }

  // A line for each step, and one for their kinds.
  std::string text() const {
    return absl::StrCat(tokens_, "num_replays=", graph_report().num_replays(),
                        "\nnum_eager_steps=", graph_report().num_eager_steps(), "\n");
  }

 private:
  StepRunner& steps_;
  std::string tokens_;
};

// Runs the prompts of a golden on all ranks, some tokens sampled, and compares what each rank's
// runner has done.
absl::Status CheckSameSteps(const Golden& golden, Model& model, Collectives& collectives) {
  REPRISE_ASSIGN_OR_RETURN(const auto runner,
                           ModelRunner::Create(&model, {.max_num_seqs = 4,
                                                        .max_num_tokens = 128,
                                                        .max_steps_in_flight = 2,
                                                        .cache = {.size = NumBlocks{128}},
                                                        .graphs = {.mode = Mode::kEager},
                                                        .ranks = {.collectives = &collectives}}));
  auto owned = std::make_unique<RecordedSteps>(runner.get());
  RecordedSteps& recorded = *owned;
  if (collectives.ranks().rank > 0) {
    REPRISE_RETURN_IF_ERROR(FollowSteps(recorded, collectives));
    return CheckSameTextOverRanks(&collectives, recorded.text());
  }
  std::string text;
  {
    REPRISE_ASSIGN_OR_RETURN(const auto engine, Engine::Create(std::make_unique<RankedSteps>(
                                                    std::move(owned), &collectives)));
    for (const GoldenPrompt& prompt : golden.prompts) {
      Request request = GreedyRequest(prompt);
      REPRISE_RETURN_IF_ERROR(engine->Add(request).status());
      request.sampling = {.temperature = 1, .seed = 7};
      REPRISE_RETURN_IF_ERROR(engine->Add(request).status());
    }
    std::vector<TokenEvent> events;
    while (engine->has_work()) REPRISE_RETURN_IF_ERROR(engine->Step(events));
    for (const TokenEvent& event : events) REPRISE_RETURN_IF_ERROR(event.error);
    text = recorded.text();
  }
  EXPECT_GT(runner->graph_report().num_replays(), 5);
  return CheckSameTextOverRanks(&collectives, text);
}

TEST_P(GoldenProcessesTest, AllRanksReplayTheSameStepsAndChooseTheSameTokens) {
  const auto [name, world, dtype] = GetParam();
  const absl::StatusOr<Golden> golden = LoadGolden(name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  ExpectOnAll(world, [&, dtype = dtype](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
    REPRISE_ASSIGN_OR_RETURN(const auto collectives, ConnectRanks(place, device));
    REPRISE_ASSIGN_OR_RETURN(
        const auto model,
        LoadGoldenModel(*golden, device, dtype, MlaCache::kLatent, collectives.get()));
    return CheckSameSteps(*golden, *model, *collectives);
  });
}

class ContextProcessesTest : public GoldenProcessesTest {};

// The keys of each sequence are divided.
TEST_P(ContextProcessesTest, LogitsAreGoldenWithGraphsAndWithout) {
  const auto [name, world, dtype] = GetParam();
  CheckOverProcesses(
      name, world,
      {.tolerance = kTolerance, .dtype = dtype, .sharded = ShardedGoldenCheck::Sharded::kContext});
}

// A golden, the ranks, and how many of them divide the keys.
class GridProcessesTest : public testing::TestWithParam<std::tuple<const char*, int, int>> {};

// Grids of which the ranks of a row divide the weights, and those of a column the keys.
TEST_P(GridProcessesTest, LogitsAreGoldenWithGraphsAndWithout) {
  const auto& [name, world, context_ranks] = GetParam();
  const absl::StatusOr<Golden> golden = LoadGolden(name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  ExpectOnAll(world, [&, context_ranks = context_ranks](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
    REPRISE_ASSIGN_OR_RETURN(const auto grid, ConnectGrid(place, device, context_ranks));
    REPRISE_RETURN_IF_ERROR(
        CheckShardedGolden(*golden, *grid, device, {.tolerance = kTolerance},
                           {.graphs = Mode::kEager, .block_size = 4, .context_interleave = 2}));
    return CheckShardedGolden(*golden, *grid, device, {.tolerance = kTolerance, .replays = false},
                              {.graphs = Mode::kOff, .prefill_chunk = 7});
  });
}

// Ranks, and how many of them divide the keys.
class TrafficProcessesTest : public testing::TestWithParam<std::tuple<int, int>> {};

// Texts under preemption, prefixes and cancels.
TEST_P(TrafficProcessesTest, TextsAreThoseOfOneRank) {
  const auto [world, context_ranks] = GetParam();
  ExpectOnAll(world, [&, context_ranks = context_ranks](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
    REPRISE_ASSIGN_OR_RETURN(const auto grid, ConnectGrid(place, device, context_ranks));
    TrafficTexts expected;
    if (place.ranks.rank == 0) {
      RankGrid alone(OneRank(), 1);
      REPRISE_ASSIGN_OR_RETURN(expected, TrafficOverRanks(alone, device));
    }
    REPRISE_ASSIGN_OR_RETURN(const TrafficTexts texts, TrafficOverRanks(*grid, device));
    EXPECT_EQ(texts, expected);
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Grids, TrafficProcessesTest,
                         testing::Values(std::tuple(2, 1), std::tuple(2, 2), std::tuple(4, 1)),
                         [](const testing::TestParamInfo<std::tuple<int, int>>& info) {
                           return absl::StrCat(std::get<0>(info.param), "_of_",
                                               std::get<1>(info.param));
                         });

TEST(OddSizesProcessesTest, LogitsAreThoseOfOneRank) {
  const absl::StatusOr<OddSizes> odd = WriteOddSizes("odd_sizes_of_processes");
  ASSERT_TRUE(odd.ok()) << odd.status();
  for (const int world : kWorlds) {
    ExpectOnAll(world, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
      REPRISE_ASSIGN_OR_RETURN(const auto collectives, ConnectRanks(place, device));
      const auto run = [&](Collectives* ranks) -> absl::StatusOr<std::vector<float>> {
        REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                                 LoadModel(odd->folder, odd->config,
                                           {.weights = {.device = device}, .collectives = ranks}));
        const GoldenRunOptions options = {
            .graphs = Mode::kEager, .block_size = 4, .collectives = ranks};
        if (RanksOf(ranks).rank != 0) {
          REPRISE_RETURN_IF_ERROR(FollowGolden(*model, odd->requests, options));
          return std::vector<float>();
        }
        REPRISE_ASSIGN_OR_RETURN(const GoldenRun got, RunGolden(*model, odd->requests, options));
        return got.tracks[0].logits;
      };
      std::vector<float> expected;
      if (place.ranks.rank == 0) {
        REPRISE_ASSIGN_OR_RETURN(expected, run(nullptr));
      }
      REPRISE_ASSIGN_OR_RETURN(const std::vector<float> logits, run(collectives.get()));
      EXPECT_EQ(logits.size(), place.ranks.rank == 0 ? odd->num_logits : 0);
      EXPECT_THAT(logits, testing::Pointwise(testing::FloatNear(1e-5f), expected));
      return absl::OkStatus();
    });
    if (testing::Test::IsSkipped()) return;
  }
}

constexpr int kNumTokens = 12;
// By request, to their ends.
using Texts = std::vector<std::vector<int32_t>>;

// Requests of each way to sample: rows that need one choice of each rank, some candidates, and all
// logits.
absl::StatusOr<Texts> SampledTexts(Model& model, Collectives* collectives, bool shards) {
  const ModelEngineOptions options = {.runner = {.max_num_seqs = 3,
                                                 .max_num_tokens = 64,
                                                 .max_seq_len = 64,
                                                 .max_steps_in_flight = 2,
                                                 .cache = {.size = NumBlocks{32}},
                                                 .graphs = {.mode = Mode::kEager},
                                                 .ranks = {.collectives = collectives},
                                                 .debug = {.sample_shards = shards}}};
  if (collectives != nullptr && collectives->ranks().rank > 0) {
    REPRISE_RETURN_IF_ERROR(FollowEngine(&model, options));
    return Texts();
  }
  REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(&model, options));
  const SamplingOptions kinds[] = {{},
                                   {.temperature = 1, .seed = 1},
                                   {.temperature = 1, .top_k = 20, .seed = 2},
                                   {.temperature = 2, .top_k = 9, .top_p = 0.8f, .seed = 3},
                                   {.temperature = 1, .min_p = 0.02f, .seed = 4},
                                   {.temperature = 1, .top_p = 0.9f, .seed = 5}};
  for (int i = 0; i < 6; ++i) {
    REPRISE_RETURN_IF_ERROR(
        engine->Add({.prompt = {5, 1 + i, 9}, .max_new_tokens = kNumTokens, .sampling = kinds[i]})
            .status());
  }
  Texts texts(6);
  std::vector<TokenEvent> events;
  while (engine->has_work()) {
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine->Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      texts[event.sequence.value()].push_back(event.token.value_or(-1));
    }
  }
  return texts;
}

TEST(SampledProcessesTest, TextsAreThoseOfOneRank) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  for (const int world : kWorlds) {
    ExpectOnAll(world, [&](const RankPlace& place) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
      REPRISE_ASSIGN_OR_RETURN(const auto collectives, ConnectRanks(place, device));
      Texts expected;
      if (place.ranks.rank == 0) {
        REPRISE_ASSIGN_OR_RETURN(const auto alone,
                                 LoadGoldenModel(*golden, device, DType::kFloat32));
        REPRISE_ASSIGN_OR_RETURN(expected, SampledTexts(*alone, nullptr, true));
      }
      REPRISE_ASSIGN_OR_RETURN(
          const auto model,
          LoadGoldenModel(*golden, device, DType::kFloat32, MlaCache::kLatent, collectives.get()));
      for (const bool shards : {true, false}) {
        if (!shards && world > 2) continue;
        REPRISE_ASSIGN_OR_RETURN(const Texts texts,
                                 SampledTexts(*model, collectives.get(), shards));
        EXPECT_EQ(texts, expected) << (shards ? "from shards" : "from whole logits");
        for (const std::vector<int32_t>& text : texts)
          EXPECT_EQ(static_cast<int>(text.size()), kNumTokens);
      }
      return absl::OkStatus();
    });
  }
}

// By token of the first request: its logits. The others run beside it.
absl::StatusOr<std::vector<at::Tensor>> LogitsBeside(Engine& engine, int num_others) {
  for (int i = 0; i <= num_others; ++i) {
    Request request = {.max_new_tokens = kNumTokens};
    for (int j = 0; j < 5 + i; ++j) request.prompt.push_back(1 + (7 * i + 3 * j) % 200);
    REPRISE_RETURN_IF_ERROR(engine.Add(request).status());
  }
  std::vector<at::Tensor> logits;
  std::vector<TokenEvent> events;
  std::optional<SequenceId> first;
  while (engine.has_work()) {
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      if (!first.has_value() || event.sequence < *first) first = event.sequence;
      if (event.sequence == *first) logits.push_back(LogitsOf(engine, event)->clone());
    }
  }
  return logits;
}

// What LibTorch's sums over more than two ranks do not keep: they add an element in an order that
// depends on how many there are.
TEST(InvariantProcessesTest, ARowHasTheSameBitsAloneAndAmongOthers) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  ExpectOnAll(4, [&](const RankPlace& place) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
    REPRISE_ASSIGN_OR_RETURN(const auto collectives, ConnectRanks(place, device));
    REPRISE_ASSIGN_OR_RETURN(
        const auto model,
        LoadGoldenModel(*golden, device, DType::kFloat32, MlaCache::kLatent, collectives.get()));
    const ModelEngineOptions options = {
        .runner = {.max_num_seqs = 8,
                   .max_num_tokens = 128,
                   .max_seq_len = 64,
                   .cache = {.size = NumBlocks{64}},
                   .graphs = {.mode = Mode::kEager},
                   .logits = {.step_logits = StepLogits::kOfEvery},
                   .ranks = {.collectives = collectives.get()},
                   .device = {.batch_invariance = BatchInvariance::kOn}},
        .scheduler = {.prefix_reuse = PrefixReuse::kOff}};
    if (place.ranks.rank > 0) return FollowEngine(model.get(), options);
    REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<at::Tensor> alone, LogitsBeside(*engine, 0));
    REPRISE_ASSIGN_OR_RETURN(const std::vector<at::Tensor> among, LogitsBeside(*engine, 7));
    EXPECT_EQ(alone.size(), static_cast<size_t>(kNumTokens));
    EXPECT_EQ(among.size(), alone.size());
    for (size_t i = 0; i < std::min(alone.size(), among.size()); ++i) {
      EXPECT_TRUE(alone[i].equal(among[i])) << "token " << i;
    }
    return absl::OkStatus();
  });
}

// Faults: rank 1 is killed, and rank 0's engine says so.

constexpr char kEnough[] = "as expected";  // how rank 0 returns what it expected
const ConnectOptions kQuick = {.timeout = absl::Seconds(3), .grace = absl::Seconds(1)};

absl::Status ExpectRankOneIsNamed(const absl::Status& status,
                                  absl::StatusCode code = absl::StatusCode::kUnavailable,
                                  const char* what = "has ended") {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 1 (process"));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(what));
  return absl::AbortedError(kEnough);
}

// A model that does something before each forward pass.
class ActingModel final : public Model {
 public:
  ActingModel(std::unique_ptr<Model> model, std::function<void()> act)
      : model_(std::move(model)), act_(std::move(act)) {}

  const ModelSpec& spec() const override { return model_->spec(); }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    act_();
    return model_->Forward(step);
  }

 private:
  std::unique_ptr<Model> model_;
  std::function<void()> act_;
};

ModelEngineOptions FaultyEngine(Collectives* collectives) {
  return {.runner = {.max_num_seqs = 2,
                     .max_num_tokens = 64,
                     .max_seq_len = 64,
                     .cache = {.size = NumBlocks{32}},
                     .ranks = {.collectives = collectives}}};
}

// The groups of a rank: of a grid, or one for all.
struct RankGroups {
  Collectives* all = nullptr;
  Collectives* weights = nullptr;
  Collectives* context = nullptr;  // null: no grid
};

// Runs `body` as two ranks, of which rank 1 does not return. context_ranks: of a grid; 0: none.
void ExpectRankZeroSeesTheEnd(
    int context_ranks,
    absl::FunctionRef<absl::Status(const RankPlace&, const RankGroups&, c10::Device)> body) {
  const RankReports reports(
      2,
      [&](const RankPlace& place) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
        if (context_ranks == 0) {
          REPRISE_ASSIGN_OR_RETURN(const auto ranks, ConnectRanks(place, device, kQuick));
          return body(place, {.all = ranks.get(), .weights = ranks.get()}, device);
        }
        REPRISE_ASSIGN_OR_RETURN(const auto grid,
                                 ConnectGrid(place, device, context_ranks, kQuick));
        return body(place,
                    {.all = &grid->all(), .weights = &grid->weights(), .context = &grid->context()},
                    device);
      },
      absl::Seconds(100));
#ifdef REPRISE_TEST_ON_GPU
  if (reports.of(0) && reports.of(0)->message() == kNoGpus) GTEST_SKIP() << kNoGpus;
  if (absl::IsFailedPrecondition(reports.status())) {
    GTEST_SKIP() << reports.status() << ": run *ProcessesTest.* by themselves";
  }
#endif
  ASSERT_TRUE(reports.of(0).has_value()) << reports.text();
  EXPECT_EQ(reports.of(0)->message(), kEnough) << reports.text();
  EXPECT_FALSE(reports.of(1).has_value()) << reports.text();
}

TEST(FaultProcessesTest, ARankThatIsKilledWhileItLoadsIsNamedByTheEngine) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  ExpectRankZeroSeesTheEnd(
      0, [&](const RankPlace& place, const RankGroups& groups, c10::Device device) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(golden->folder));
        LoadModelOptions load = {.weights = {.device = device, .dtype = DType::kFloat32},
                                 .collectives = groups.weights};
        if (place.ranks.rank == 1) {
          load.weights.on_progress = [](int64_t, int64_t) { raise(SIGKILL); };
        }
        REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(golden->folder, config, load));
        return ExpectRankOneIsNamed(CreateEngine(model.get(), FaultyEngine(groups.all)).status());
      });
}

TEST(FaultProcessesTest, ARankThatIsKilledWhileItsRunnerIsMadeIsNamedByTheEngine) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  ExpectRankZeroSeesTheEnd(
      0, [&](const RankPlace& place, const RankGroups& groups, c10::Device device) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(
            std::unique_ptr<Model> model,
            LoadGoldenModel(*golden, device, DType::kFloat32, MlaCache::kLatent, groups.weights));
        ModelEngineOptions options = FaultyEngine(groups.all);
        options.runner.cache.swap = NumBlocks{8};  // steps are timed then
        if (place.ranks.rank == 1) {
          ActingModel killed(std::move(model), [] { raise(SIGKILL); });
          return FollowEngine(&killed, options);
        }
        return ExpectRankOneIsNamed(CreateEngine(model.get(), options).status());
      });
}

// Of ranks, and how many of them divide the keys.
class LoadingFaultProcessesTest : public testing::TestWithParam<std::tuple<int, int>> {};

// What survivors get, and when, if one of the ranks of a grid does `fault` while it reads its
// weights.
void ExpectFaultWhileLoading(const std::tuple<int, int>& ranks, void (*fault)(),
                             absl::StatusCode code, const std::string& text) {
  const int world = std::get<0>(ranks);
  const int context_ranks = std::get<1>(ranks);
  const absl::StatusOr<Golden> golden = LoadGolden("qwen3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const int victim = world / 2;
  const RankReports reports(
      world,
      [&](const RankPlace& place) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
        REPRISE_ASSIGN_OR_RETURN(const auto grid,
                                 ConnectGrid(place, device, context_ranks, kQuick));
        REPRISE_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(golden->folder));
        LoadModelOptions load = {.weights = {.device = device, .dtype = DType::kFloat32},
                                 .collectives = &grid->weights(),
                                 .context = &grid->context()};
        if (place.ranks.rank == victim) {
          load.weights.on_progress = [&](int64_t, int64_t) { fault(); };
        }
        REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(golden->folder, config, load));
        ModelEngineOptions options = FaultyEngine(&grid->all());
        options.runner.ranks.context_ranks = std::max(context_ranks, 1);
        const absl::Time begin = absl::Now();
        const absl::Status status = place.ranks.rank == 0
                                        ? CreateEngine(model.get(), options).status()
                                        : FollowEngine(model.get(), options);
        // The timeout, the grace, and what a busy machine adds.
        EXPECT_LT(absl::Now() - begin, kQuick.timeout + kQuick.grace + absl::Seconds(3));
        return status;
      },
      absl::Seconds(60));
#ifdef REPRISE_TEST_ON_GPU
  if (reports.of(0) && reports.of(0)->message() == kNoGpus) GTEST_SKIP() << kNoGpus;
  if (absl::IsFailedPrecondition(reports.status())) {
    GTEST_SKIP() << reports.status() << ": run *ProcessesTest.* by themselves";
  }
#endif
  EXPECT_FALSE(reports.of(victim).has_value()) << reports.text();
  for (int rank = 0; rank < world; ++rank) {
    if (rank == victim) continue;
    ASSERT_TRUE(reports.of(rank).has_value()) << "rank " << rank << ": " << reports.text();
    EXPECT_EQ(reports.of(rank)->code(), code) << *reports.of(rank);
    EXPECT_THAT(std::string(reports.of(rank)->message()),
                testing::HasSubstr(absl::StrCat("rank ", victim, " (process")));
    EXPECT_THAT(std::string(reports.of(rank)->message()), testing::HasSubstr(text));
  }
}

void EndByASignal() { raise(SIGKILL); }
TEST_P(LoadingFaultProcessesTest, ARankThatIsKilledIsNamedByAll) {
  ExpectFaultWhileLoading(GetParam(), EndByASignal, absl::StatusCode::kUnavailable, "has ended");
}

TEST_P(LoadingFaultProcessesTest, ARankThatHangsIsNamedByAll) {
  ExpectFaultWhileLoading(GetParam(), HangUntilOthersReturn, absl::StatusCode::kDeadlineExceeded,
                          "did not reach");
}

// How many of the two ranks of a grid divide the keys; 0: no grid.
class StepFaultProcessesTest : public testing::TestWithParam<int> {};

// Whether rank 1 is killed, or hangs in a forward pass, when the ranks are generating.
enum class StepFault { kKilled, kHangs };

void ExpectFaultInAStep(int context_ranks, StepFault fault) {
  const absl::StatusOr<Golden> golden = LoadGolden("qwen3");
  ASSERT_TRUE(golden.ok()) << golden.status();
  // Set by rank 0 when the ranks are generating.
  void* const shared =
      mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& generates = *new (shared) std::atomic<int>(0);
  ExpectRankZeroSeesTheEnd(
      context_ranks,
      [&](const RankPlace& place, const RankGroups& groups, c10::Device device) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(
            std::unique_ptr<Model> model,
            LoadGoldenModel(*golden, device, DType::kFloat32, MlaCache::kLatent, groups.weights,
                            groups.context));
        ModelEngineOptions options = FaultyEngine(groups.all);
        options.runner.ranks.context_ranks = std::max(context_ranks, 1);
        if (fault == StepFault::kHangs) options.runner.graphs.mode = Mode::kOff;
        if (place.ranks.rank == 1 && fault == StepFault::kHangs) {
          ActingModel hanging(std::move(model), [&] {
            if (generates != 0) HangUntilOthersReturn();
          });
          return FollowEngine(&hanging, options);
        }
        if (place.ranks.rank == 1) {
          std::thread([&] {
            while (generates == 0) absl::SleepFor(absl::Milliseconds(1));
            raise(SIGKILL);
          }).detach();
          return FollowEngine(model.get(), options);
        }
        REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
        const Request request = {.prompt = {1, 2, 3}, .max_new_tokens = 40};
        std::vector<TokenEvent> events;
        for (int step = 0; step < 100'000; ++step) {
          if (!engine->has_work()) REPRISE_RETURN_IF_ERROR(engine->Add(request).status());
          if (step == 20) generates = 1;
          events.clear();
          const absl::Status status = engine->Step(events);
          for (const TokenEvent& event : events) {
            if (event.error.ok()) continue;
            EXPECT_EQ(event.finish, FinishReason::kError);
            EXPECT_FALSE(engine->has_work());
            return fault == StepFault::kKilled
                       ? ExpectRankOneIsNamed(event.error)
                       : ExpectRankOneIsNamed(event.error, absl::StatusCode::kDeadlineExceeded,
                                              "did not reach");
          }
          REPRISE_RETURN_IF_ERROR(status);
        }
        return absl::InternalError("expected that the end of rank 1 is seen");
      });
  munmap(shared, sizeof(int));
}

TEST_P(StepFaultProcessesTest, ARankThatIsKilledEndsTheSequencesOfTheEngine) {
  ExpectFaultInAStep(GetParam(), StepFault::kKilled);
}

TEST_P(StepFaultProcessesTest, ARankThatHangsEndsTheSequencesOfTheEngine) {
  ExpectFaultInAStep(GetParam(), StepFault::kHangs);
}

INSTANTIATE_TEST_SUITE_P(Grids, StepFaultProcessesTest, testing::Values(0, 1, 2));

std::string NameOf(const testing::TestParamInfo<std::tuple<const char*, int, DType>>& info) {
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_on_" + std::to_string(std::get<1>(info.param)) + "_" +
         std::string(DTypeName(std::get<2>(info.param)));
}

// With TakesAllCases() each model runs on every number of ranks, else on one of them.
std::vector<std::tuple<const char*, int, DType>> CasesOf(const std::vector<const char*>& models) {
  const std::vector<int> worlds(std::begin(kWorlds), std::end(kWorlds));
  std::vector<std::tuple<const char*, int, DType>> cases;
  for (size_t i = 0; i < models.size(); ++i) {
    for (size_t j = 0; j < worlds.size(); ++j) {
      if (!TakesAllCases() && j != i % worlds.size()) continue;
      for (const DType dtype : kDTypes) cases.emplace_back(models[i], worlds[j], dtype);
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, GoldenProcessesTest,
                         testing::ValuesIn(CasesOf({"llama-rope-llama3", "llama-bias-untied",
                                                    "qwen2", "qwen3", "qwen3-moe", "gemma2",
                                                    "deepseek-mla", "llama4-chunked", "bart"})),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(All, ContextProcessesTest,
                         testing::ValuesIn(CasesOf({"llama-rope-llama3", "gemma2", "qwen3-moe",
                                                    "gpt-oss-sinks", "deepseek-mla"})),
                         NameOf);

std::string NameOfGrid(const testing::TestParamInfo<std::tuple<const char*, int, int>>& info) {
  const auto [model, world, context_ranks] = info.param;
  std::string name = model;
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_on_" + std::to_string(world) + "_of_" + std::to_string(context_ranks);
}

// Of 2 KV heads (llama), of 8 q heads and latents, with sinks and windows, with ALiBi.
INSTANTIATE_TEST_SUITE_P(All, GridProcessesTest,
                         testing::Combine(testing::Values("llama-rope-llama3", "qwen3", "gemma2",
                                                          "gpt-oss-sinks", "deepseek-mla",
                                                          "bloom-alibi"),
                                          testing::Values(4), testing::Values(2)),
                         NameOfGrid);

// Rows and columns of one rank.
INSTANTIATE_TEST_SUITE_P(OfTwo, GridProcessesTest,
                         testing::Combine(testing::Values("llama-rope-llama3", "gemma2"),
                                          testing::Values(2), testing::Values(1, 2)),
                         NameOfGrid);

// Ranks, and how many of them divide the keys.
const std::tuple<int, int> kLoadingGrids[] = {
#ifdef REPRISE_TEST_ON_GPU
    {2, 1},
    {2, 2},
#endif
    {4, 1},
    {4, 2}};

INSTANTIATE_TEST_SUITE_P(Grids, LoadingFaultProcessesTest, testing::ValuesIn(kLoadingGrids));

}  // namespace
}  // namespace reprise
