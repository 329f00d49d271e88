// The golden models divided over ranks that are threads, and what else an engine over ranks serves.

#include "tests/golden/golden_ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/random_checkpoint.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_model.h"
#include "tests/golden/golden_runner.h"
#include "tests/golden/odd_sizes.h"
#include "tests/golden/rank_traffic.h"
#include "tests/golden/sixteen_bits.h"

namespace reprise {
namespace {

using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using testing::StartsWith;
using Mode = GraphSetOptions::Mode;

constexpr double kTolerance = 5e-4;

Golden Loaded(const std::string& name) {
  absl::StatusOr<Golden> golden = LoadGolden(name);
  EXPECT_TRUE(golden.ok()) << golden.status();
  return golden.ok() ? *std::move(golden) : Golden();
}

std::vector<absl::Status> Check(const Golden& golden, int world, const ShardedGoldenCheck& check,
                                const GoldenRunOptions& options) {
  return RunThreadRanks(world, [&](Collectives& collectives) {
    at::set_num_threads(1);  // of this thread's products
    return CheckShardedGolden(golden, collectives, c10::kCPU, check, options);
  });
}

std::string NameOfRanks(const testing::TestParamInfo<std::tuple<const char*, int>>& info) {
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_on_" + std::to_string(std::get<1>(info.param));
}

class ShardedGoldenTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(ShardedGoldenTest, LogitsAreGolden) {
  const auto [name, world] = GetParam();
  const Golden golden = Loaded(name);
  EXPECT_THAT(Check(golden, world, {.tolerance = kTolerance}, {.block_size = 4}),
              Each(absl::OkStatus()));
  EXPECT_THAT(Check(golden, world, {.tolerance = kTolerance, .replays = false},
                    {.graphs = Mode::kOff, .block_size = 16, .prefill_chunk = 7}),
              Each(absl::OkStatus()));
}

// Of KV heads there are 2 and of q heads 8, but for gqa5 (10), bias-untied (6 and 6), MLA and BLOOM
// (8 each) and GPT-2 and BART (4):
// with 4 ranks a KV head is on two of them, and in the first two of these shares are of different
// sizes.
INSTANTIATE_TEST_SUITE_P(
    All, ShardedGoldenTest,
    testing::Combine(testing::Values("llama-rope-llama3", "llama-bias-untied", "llama-gqa5",
                                     "mistral-window", "llama4-chunked", "qwen2", "qwen3",
                                     "qwen3-moe", "gemma2", "gemma3", "gpt-oss-sinks",
                                     "deepseek-mla", "deepseek-mla-yarn", "gpt2", "bloom-alibi",
                                     "bart"),
                     testing::Values(2, 4)),
    NameOfRanks);

// Fused products; experts and one KV head on both ranks; latents, 3 q heads, groups of experts and
// a shared one.
constexpr const char* kFamilies[] = {"phi3", "mixtral", "deepseek-v3"};

INSTANTIATE_TEST_SUITE_P(Families, ShardedGoldenTest,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::Values(2)),
                         NameOfRanks);

// Ranks that divide the keys of each sequence. The goldens' contexts are of 40 to 100 tokens.
class ShardedContextTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

constexpr auto kContext = ShardedGoldenCheck::Sharded::kContext;

TEST_P(ShardedContextTest, LogitsAreGolden) {
  const auto [name, world] = GetParam();
  const Golden golden = Loaded(name);
  EXPECT_THAT(Check(golden, world, {.tolerance = kTolerance, .sharded = kContext},
                    {.block_size = 4, .context_interleave = 2}),
              Each(absl::OkStatus()));
  EXPECT_THAT(Check(golden, world, {.tolerance = kTolerance, .replays = false, .sharded = kContext},
                    {.graphs = Mode::kOff, .block_size = 3, .prefill_chunk = 7}),
              Each(absl::OkStatus()));
}

INSTANTIATE_TEST_SUITE_P(All, ShardedContextTest,
                         testing::Combine(testing::Values("llama-rope-llama3", "mistral-window",
                                                          "qwen3", "gemma2", "gpt-oss-sinks",
                                                          "deepseek-mla", "gpt2", "bloom-alibi"),
                                          testing::Values(2, 4)),
                         NameOfRanks);

INSTANTIATE_TEST_SUITE_P(Families, ShardedContextTest,
                         testing::Combine(testing::ValuesIn(kFamilies), testing::Values(2)),
                         NameOfRanks);

// Of models with experts and without: rounding may choose other experts over ranks, too.
class ShardedSixteenBitsTest
    : public testing::TestWithParam<std::tuple<const char*, ShardedGoldenCheck::Sharded>> {};

TEST_P(ShardedSixteenBitsTest, TheErrorIsAtMostTwiceThatOfTransformers) {
  const auto [name, sharded] = GetParam();
  const Golden golden = Loaded(name);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    EXPECT_THAT(Check(golden, 2, {.dtype = dtype, .sharded = sharded}, {.block_size = 4}),
                Each(absl::OkStatus()));
    EXPECT_THAT(Check(golden, 2, {.dtype = dtype, .replays = false, .sharded = sharded},
                      {.graphs = Mode::kOff, .prefill_chunk = 7}),
                Each(absl::OkStatus()));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardedSixteenBitsTest,
                         testing::Combine(testing::Values("qwen3", "qwen3-moe", "gpt-oss-sinks",
                                                          "phi3", "mixtral", "deepseek-v3"),
                                          testing::Values(ShardedGoldenCheck::Sharded::kWeights,
                                                          kContext)),
                         [](const testing::TestParamInfo<ShardedSixteenBitsTest::ParamType>& info) {
                           std::string name = std::get<0>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name +
                                  (std::get<1>(info.param) == kContext ? "_keys" : "_weights");
                         });

TEST(SixteenBitsTest, LargeErrorsAndTooFewPositionsAreNamed) {
  const Golden golden = Loaded("qwen3");
  std::vector<SixteenBitError> errors(2 * golden.prompts.size(),
                                      {.rms = 0.5, .allowed = 1, .num_positions = 40});
  const auto over_ranks = [&] { return CheckSmall(errors, golden, kPositionsToOneOverRanks); };
  EXPECT_EQ(over_ranks(), absl::OkStatus());
  for (SixteenBitError& error : errors) error.num_positions = 20;
  EXPECT_EQ(CheckSmall(errors, golden), absl::OkStatus());
  errors[0].num_positions = 19;
  EXPECT_THAT(std::string(CheckSmall(errors, golden).message()), HasSubstr("199 of 400 positions"));
  for (SixteenBitError& error : errors) error.num_positions = 14;
  EXPECT_EQ(over_ranks(), absl::OkStatus());
  errors[0].num_positions = 7;
  EXPECT_THAT(std::string(over_ranks().message()), HasSubstr("133 of 400 positions"));
  errors[3].rms = std::nan("");
  EXPECT_THAT(std::string(CheckSmall(errors, golden).message()),
              HasSubstr("prompt 1, random track: an rms error of nan in the first 14 positions"));
}

TEST(ShardedContextTest, ExpandedMla) {
  EXPECT_THAT(
      Check(Loaded("deepseek-mla"), 2,
            {.tolerance = kTolerance, .mla_cache = MlaCache::kExpanded, .sharded = kContext}, {}),
      Each(absl::OkStatus()));
}

TEST(ShardedContextTest, PreemptedSequencesGetGoldenLogits) {
  EXPECT_THAT(Check(Loaded("llama-rope-llama3"), 2,
                    {.tolerance = kTolerance, .sharded = kContext, .preempts = true},
                    {.block_size = 2, .num_blocks = 64, .prefill_chunk = 16}),
              Each(absl::OkStatus()));
}

TEST(ShardedContextTest, MixedGraphsAndHeadMajorBlocks) {
  EXPECT_THAT(Check(Loaded("qwen3"), 2, {.tolerance = kTolerance, .sharded = kContext},
                    {.mixed_graphs = MixedGraphs::kOn,
                     .block_size = 8,
                     .prefill_chunk = 9,
                     .kv_order = KvOrder::kHND,
                     .context_interleave = 8}),
              Each(absl::OkStatus()));
}

// Of what all ranks are told, with the golden's model as `options` have it.
std::vector<absl::Status> ContextStatuses(const char* name, const ShardedGoldenCheck& check,
                                          const GoldenRunOptions& options) {
  ShardedGoldenCheck own = check;
  own.sharded = kContext;
  return Check(Loaded(name), 2, own, options);
}

TEST(ShardedContextTest, WhatCannotBeDividedIsRefusedByAll) {
  const ShardedGoldenCheck check = {.tolerance = kTolerance};
  for (const absl::Status& status : ContextStatuses("llama4-chunked", check, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(),
                HasSubstr("context_ranks above 1 require layers with full attention"));
  }
  for (const absl::Status& status : ContextStatuses("qwen3", check, {.context_interleave = 3})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(),
                HasSubstr("block_size must be a multiple of debug.context_interleave"));
  }
  for (const absl::Status& status : ContextStatuses("bart", check, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(status.message(), HasSubstr("models of BART do not divide keys"));
  }
}

// A runner that divides the keys of a model that knows nothing of it.
TEST(ShardedContextTest, AModelThatDoesNotMergeIsRefused) {
  const Golden golden = Loaded("qwen3");
  const std::vector<absl::Status> results =
      RunThreadRanks(2, [&](Collectives& collectives) -> absl::Status {
        at::set_num_threads(1);
        REPRISE_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(golden.folder));
        REPRISE_ASSIGN_OR_RETURN(
            const std::unique_ptr<Model> model,
            LoadModel(golden.folder, config, {.weights = {.dtype = DType::kFloat32}}));
        const GoldenRunOptions options = {
            .graphs = Mode::kOff, .collectives = &collectives, .shards_context = true};
        const std::vector<Request> requests = {GreedyRequest(golden.prompts[0])};
        if (collectives.ranks().rank != 0) return FollowGolden(*model, requests, options);
        return RunGolden(*model, requests, options).status();
      });
  EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument) << results[0];
  EXPECT_THAT(results[0].message(), HasSubstr("are divided over 2 ranks"));
}

TEST(ShardedModelTest, OneRankWithCollectivesIsAsWithout) {
  EXPECT_THAT(Check(Loaded("qwen3"), 1, {.tolerance = kTolerance}, {}), Each(absl::OkStatus()));
}

TEST(ShardedModelTest, ExpandedMla) {
  EXPECT_THAT(Check(Loaded("deepseek-mla"), 2,
                    {.tolerance = kTolerance, .mla_cache = MlaCache::kExpanded}, {}),
              Each(absl::OkStatus()));
}

TEST(ShardedModelTest, PreemptedSequencesGetGoldenLogits) {
  EXPECT_THAT(Check(Loaded("llama-rope-llama3"), 2, {.tolerance = kTolerance, .preempts = true},
                    {.block_size = 4, .num_blocks = 64, .prefill_chunk = 16}),
              Each(absl::OkStatus()));
}

TEST(ShardedModelTest, MoreRanksThanQHeadsAreRefusedByAll) {
  for (const absl::Status& status :
       Check(Loaded("llama-bias-untied"), 7, {.tolerance = kTolerance}, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("num_q_heads must give each rank one"));
  }
}

TEST(ShardedModelTest, MoreRanksThanHeadsOfBartAreRefusedByAll) {
  for (const absl::Status& status : Check(Loaded("bart"), 5, {.tolerance = kTolerance}, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("encoder.num_heads"));
  }
}

TEST(ShardedModelTest, MoreRanksThanHeadsOfGptAreRefusedByAll) {
  for (const absl::Status& status : Check(Loaded("gpt2"), 5, {.tolerance = kTolerance}, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("num_heads"));
  }
}

TEST(ShardedModelTest, OptionsThatDifferAreRefusedByAll) {
  const Golden golden = Loaded("qwen3");
  const std::vector<absl::Status> results = RunThreadRanks(2, [&](Collectives& collectives) {
    return CheckShardedGolden(golden, collectives, c10::kCPU, {.tolerance = kTolerance},
                              {.block_size = collectives.ranks().rank == 0 ? 4 : 8});
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("block_size must be the same on all ranks"));
  }
}

TEST(ShardedModelTest, WhatOneRankCannotServeAloneIsRefusedByAll) {
  const Golden golden = Loaded("qwen3");
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(golden.folder);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto results = [&](const ModelEngineOptions& of_first,
                           const ModelEngineOptions& of_others) {
    return RunThreadRanks(2, [&](Collectives& collectives) -> absl::Status {
      at::set_num_threads(1);
      REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(golden.folder, *config,
                                                           {.weights = {.dtype = DType::kFloat32},
                                                            .collectives = &collectives}));
      const bool is_first = collectives.ranks().rank == 0;
      ModelEngineOptions options = is_first ? of_first : of_others;
      options.runner.max_seq_len = 64;
      options.runner.max_steps_in_flight = 2;
      options.runner.ranks.collectives = &collectives;
      if (!is_first) return FollowEngine(model.get(), options);
      return CreateEngine(model.get(), options).status();
    });
  };
  // Some steps' logits would be gathered by one rank only.
  for (const absl::Status& status :
       results({.runner = {.logits = {.step_logits = StepLogits::kOfEvery}}}, {.runner = {}})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("step_logits must be the same on all ranks"));
  }
  // The second has no memory, or no runner at all.
  for (const absl::Status& status : results({}, {.runner = {.cache = {.size = NumBytes{1}}}})) {
    EXPECT_THAT(std::string(status.message()), StartsWith("rank 1: budget_bytes"));
  }
  for (const absl::Status& status : results({}, {.runner = {.cache = {.block_size = 0}}})) {
    EXPECT_THAT(std::string(status.message()), StartsWith("rank 1: cache.block_size"));
  }
  // What the engine refuses, not the runner: on both ranks, or on one of them.
  const ModelEngineOptions no_proposer = {
      .runner = {}, .scheduler = {.speculation = SpeculationPolicy{.num_drafts = 3}}};
  for (const bool is_first : {true, false}) {
    const ModelEngineOptions others = is_first ? ModelEngineOptions() : no_proposer;
    for (const absl::Status& status :
         results(is_first ? no_proposer : ModelEngineOptions(), others)) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()),
                  StartsWith(is_first ? "rank 0: speculation.num_drafts"
                                      : "rank 1: speculation.num_drafts"));
    }
  }
  // What rank 0's scheduler alone refuses, before the others follow.
  for (const absl::Status& status : results({.runner = {}, .scheduler = {.max_waiting = -1}}, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("rank 0: max_waiting"));
  }
}

// Runs a request alone.
absl::Status AppendText(Engine& engine, const Request& request, std::vector<int32_t>& tokens) {
  REPRISE_RETURN_IF_ERROR(engine.Add(request).status());
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      tokens.push_back(event.token.value_or(-1));
    }
  }
  return absl::OkStatus();
}

// The texts of grids of {ranks, context ranks} are those of one rank.
void CheckTraffic(const std::vector<std::pair<int, int>>& grids) {
  const auto texts_of = [&](int world, int context_ranks) {
    TrafficTexts texts;
    const auto run = [&](RankGrid& grid) -> absl::Status {
      at::set_num_threads(1);
      REPRISE_ASSIGN_OR_RETURN(const TrafficTexts own, TrafficOverRanks(grid, c10::kCPU));
      if (grid.all().ranks().rank == 0) texts = own;
      return absl::OkStatus();
    };
    EXPECT_THAT(RunThreadGrid(world, context_ranks, run), Each(absl::OkStatus()));
    return texts;
  };
  const TrafficTexts expected = texts_of(1, 1);
  EXPECT_EQ(expected.size(), 12u);
  for (const auto& [world, context_ranks] : grids) {
    EXPECT_EQ(texts_of(world, context_ranks), expected) << world << " ranks";
  }
}

TEST(ShardedModelTest, PreemptionsPrefixesAndCancelsGiveTheTextsOfOneRank) {
  CheckTraffic({{2, 1}, {4, 1}});
}

TEST(ShardedContextTest, PreemptionsPrefixesAndCancelsGiveTheTextsOfOneRank) {
  CheckTraffic({{2, 2}, {4, 4}});
}

TEST(ShardedGridTest, PreemptionsPrefixesAndCancelsGiveTheTextsOfOneRank) {
  CheckTraffic({{4, 2}});
}

// What all ranks return.
std::vector<absl::Status> CheckGridOf(const char* name, int world, int context_ranks,
                                      const ShardedGoldenCheck& check,
                                      const GoldenRunOptions& options) {
  const Golden golden = Loaded(name);
  return RunThreadGrid(world, context_ranks, [&](RankGrid& grid) {
    at::set_num_threads(1);
    return CheckShardedGolden(golden, grid, c10::kCPU, check, options);
  });
}

TEST(ShardedGridTest, LogitsAreGolden) {
  for (const auto& [world, context_ranks] :
       std::vector<std::pair<int, int>>{{2, 1}, {2, 2}, {6, 2}, {6, 3}, {8, 2}}) {
    EXPECT_THAT(CheckGridOf("llama-rope-llama3", world, context_ranks, {.tolerance = kTolerance},
                            {.block_size = 4}),
                Each(absl::OkStatus()))
        << world << " ranks, of which " << context_ranks << " divide keys";
  }
  EXPECT_THAT(CheckGridOf("deepseek-mla", 4, 2,
                          {.tolerance = kTolerance, .mla_cache = MlaCache::kExpanded}, {}),
              Each(absl::OkStatus()));
}

TEST(ShardedGridTest, PreemptedSequencesGetGoldenLogits) {
  EXPECT_THAT(CheckGridOf("llama-rope-llama3", 4, 2, {.tolerance = kTolerance, .preempts = true},
                          {.block_size = 2, .num_blocks = 64, .prefill_chunk = 16}),
              Each(absl::OkStatus()));
}

// The model merges over the 2 ranks of a column, and the runner divides keys over all 4, or over
// none.
TEST(ShardedGridTest, ARunnerThatDividesKeysOverOtherRanksIsRefused) {
  const Golden golden = Loaded("qwen2");
  for (const int context_ranks : {1, 4}) {
    const auto results = RunThreadGrid(4, 2, [&](RankGrid& grid) -> absl::Status {
      at::set_num_threads(1);
      REPRISE_ASSIGN_OR_RETURN(
          const auto model, LoadGoldenModel(golden, c10::kCPU, DType::kFloat32, MlaCache::kLatent,
                                            &grid.weights(), &grid.context()));
      const GoldenRunOptions options = {.graphs = Mode::kOff,
                                        .collectives = &grid.all(),
                                        .shards_context = context_ranks > 1,
                                        .context_ranks = context_ranks};
      const std::vector<Request> requests = {GreedyRequest(golden.prompts[0])};
      if (grid.all().ranks().rank != 0) return FollowGolden(*model, requests, options);
      return RunGolden(*model, requests, options).status();
    });
    EXPECT_EQ(results[0].code(), absl::StatusCode::kInvalidArgument) << results[0];
    EXPECT_THAT(results[0].message(), HasSubstr("must divide keys over the same ranks"));
  }
}

TEST(ShardedGridTest, WhatIsNoGridIsRefusedByAll) {
  const Golden golden = Loaded("qwen2");
  const auto statuses_of = [&](int context_ranks, bool same_ranks) {
    return RunThreadGrid(4, 2, [&](RankGrid& grid) -> absl::Status {
      at::set_num_threads(1);
      REPRISE_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(golden.folder));
      LoadModelOptions load = {.weights = {.dtype = DType::kFloat32},
                               .collectives = &grid.weights(),
                               .context = &grid.context()};
      if (same_ranks) load.collectives = load.context = &grid.all();
      REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(golden.folder, config, load));
      const ModelEngineOptions options = {
          .runner = {.cache = {.size = NumBlocks{64}},
                     .ranks = {.collectives = &grid.all(), .context_ranks = context_ranks}}};
      if (grid.all().ranks().rank != 0) return FollowEngine(model.get(), options);
      return CreateEngine(model.get(), options).status();
    });
  };
  for (const absl::Status& status : statuses_of(3, false)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("context_ranks must divide the number of ranks, 4"));
  }
  for (const absl::Status& status : statuses_of(2, true)) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("got one of 4 ranks as both"));
  }
}

// 8 blocks of 4 tokens a rank hold 32 tokens, and two ranks together the 60 of the sequence, with
// which one rank alone refuses it. Drafts are found in the text.
TEST(ShardedContextTest, ASequenceMayBeLongerThanTheCacheOfARank) {
  const Golden golden = Loaded("qwen2");
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(golden.folder);
  ASSERT_TRUE(config.ok()) << config.status();
  Request request = {.max_new_tokens = 20};
  for (int i = 0; i < 40; ++i) request.prompt.push_back(i % 8 * 3);
  const auto text = [&](Collectives& collectives, int num_blocks,
                        std::vector<int32_t>& tokens) -> absl::Status {
    at::set_num_threads(1);
    ModelEngineOptions options = {
        .runner = {
            .max_num_seqs = 2,
            .max_num_tokens = 64,
            .max_seq_len = 60,
            .cache = {.block_size = 4, .size = NumBlocks{num_blocks}},
            .speculation = {.max_drafts = 3, .proposer = NgramProposer{}},
            .ranks = {.collectives = &collectives, .context_ranks = RankOptions::kAllRanks}}};
    REPRISE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Model> model,
        LoadModel(golden.folder, *config,
                  {.weights = {.dtype = DType::kFloat32}, .context = &collectives}));
    if (collectives.ranks().rank != 0) return FollowEngine(model.get(), options);
    REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
    return AppendText(*engine, request, tokens);
  };
  std::vector<int32_t> expected;
  std::vector<int32_t> got;
  ASSERT_THAT(RunThreadRanks(1, [&](auto& ranks) { return text(ranks, 16, expected); }),
              Each(absl::OkStatus()));
  std::vector<int32_t> none;
  EXPECT_THAT(RunThreadRanks(1, [&](auto& ranks) { return text(ranks, 9, none); }),
              Each(testing::Not(absl::OkStatus())));
  ASSERT_THAT(RunThreadRanks(2, [&](auto& ranks) { return text(ranks, 9, got); }),
              Each(absl::OkStatus()));
  EXPECT_EQ(got.size(), 20u);
  EXPECT_EQ(got, expected);
}

// N-grams of a prefix that another sequence computed: ranks that divide its keys know all its
// tokens, so they accept as many drafts as one rank.
TEST(ShardedContextTest, DraftsAreFoundInPrefixesThatOthersComputed) {
  const Golden golden = Loaded("qwen2");
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(golden.folder);
  ASSERT_TRUE(config.ok()) << config.status();
  Request request = {.max_new_tokens = 20};
  for (int i = 0; i < 40; ++i) request.prompt.push_back(i % 8 * 3);
  struct Result {
    std::vector<int32_t> tokens;
    int64_t num_accepted = 0;
    int64_t num_drafts = 0;
  };
  std::map<int, Result> results;
  for (const int world : {1, 2}) {
    const auto run = [&](Collectives& collectives) -> absl::Status {
      at::set_num_threads(1);
      ModelEngineOptions options = {
          .runner = {
              .max_num_seqs = 2,
              .max_num_tokens = 64,
              .max_seq_len = 60,
              .cache = {.block_size = 4 / world, .size = NumBlocks{40}},
              .speculation = {.max_drafts = 3, .proposer = NgramProposer{}},
              .ranks = {.collectives = &collectives, .context_ranks = RankOptions::kAllRanks}}};
      REPRISE_ASSIGN_OR_RETURN(
          const std::unique_ptr<Model> model,
          LoadModel(golden.folder, *config,
                    {.weights = {.dtype = DType::kFloat32}, .context = &collectives}));
      if (collectives.ranks().rank != 0) return FollowEngine(model.get(), options);
      REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
      Result& result = results[world];
      REPRISE_RETURN_IF_ERROR(AppendText(*engine, request, result.tokens));
      REPRISE_RETURN_IF_ERROR(AppendText(*engine, request, result.tokens));
      const EngineMetrics metrics = engine->metrics();
      EXPECT_GT(metrics.num_prefix_tokens_hit, 0);
      result.num_accepted = metrics.speculation.num_accepted;
      result.num_drafts = metrics.speculation.num_drafts;
      return absl::OkStatus();
    };
    ASSERT_THAT(RunThreadRanks(world, run), Each(absl::OkStatus()));
  }
  EXPECT_EQ(results[2].tokens, results[1].tokens);
  EXPECT_GT(results[1].num_accepted, 0);
  EXPECT_EQ(results[2].num_accepted, results[1].num_accepted);
  EXPECT_EQ(results[2].num_drafts, results[1].num_drafts);
}

// A draft model of one head, which two ranks cannot divide: each has all of it, and the text is
// that of the model alone.
TEST(ShardedModelTest, ADraftModelThatCannotBeDividedIsOnEachRank) {
  const Golden golden = Loaded("qwen2");
  const std::string folder = testing::TempDir() + "one_head";
  const nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                               {"model_type", "llama"},
                               {"hidden_size", 32},
                               {"intermediate_size", 64},
                               {"num_hidden_layers", 1},
                               {"num_attention_heads", 1},
                               {"num_key_value_heads", 1},
                               {"head_dim", 32},
                               {"vocab_size", 256},
                               {"max_position_embeddings", 128},
                               {"rms_norm_eps", 1e-5},
                               {"tie_word_embeddings", true},
                               {"torch_dtype", "float32"}};
  ASSERT_TRUE(WriteRandomCheckpoint(folder, json, {}).ok());
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(golden.folder);
  const absl::StatusOr<ModelConfig> draft_config = LoadModelConfig(folder);
  ASSERT_TRUE(config.ok() && draft_config.ok()) << config.status() << draft_config.status();
  Request request = {.max_new_tokens = 24};
  for (int i = 0; i < 20; ++i) request.prompt.push_back(i * 7 % 256);
  const auto text = [&](Collectives& collectives, bool drafts,
                        std::vector<int32_t>& tokens) -> absl::Status {
    at::set_num_threads(1);
    const LoadModelOptions load = {.weights = {.dtype = DType::kFloat32},
                                   .collectives = &collectives};
    REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(golden.folder, *config, load));
    LoadModelOptions load_draft = load;
    if (collectives.ranks().world > 1) {
      EXPECT_FALSE(LoadModel(folder, *draft_config, load_draft).ok());
    }
    load_draft.unsharded = Unsharded::kReplicated;
    REPRISE_ASSIGN_OR_RETURN(const auto draft, LoadModel(folder, *draft_config, load_draft));
    ModelEngineOptions options = {.runner = {.max_num_seqs = 2,
                                             .max_num_tokens = 64,
                                             .max_seq_len = 64,
                                             .cache = {.block_size = 4, .size = NumBlocks{64}},
                                             .ranks = {.collectives = &collectives}}};
    if (drafts) {
      options.runner.speculation = {.max_drafts = 3, .proposer = ModelProposer{*draft}};
    }
    if (collectives.ranks().rank != 0) return FollowEngine(model.get(), options);
    REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
    return AppendText(*engine, request, tokens);
  };
  std::vector<int32_t> plain;
  std::vector<int32_t> drafted;
  ASSERT_THAT(RunThreadRanks(1, [&](auto& ranks) { return text(ranks, false, plain); }),
              Each(absl::OkStatus()));
  ASSERT_THAT(RunThreadRanks(2, [&](auto& ranks) { return text(ranks, true, drafted); }),
              Each(absl::OkStatus()));
  EXPECT_EQ(plain.size(), 24u);
  EXPECT_EQ(drafted, plain);
}

// The draft is the model itself, and leaves nothing in place of the model's divided logits: behind
// a prefix that was decoded without drafts, its own differ.
TEST(ShardedModelTest, AModelMayBeItsOwnDraft) {
  const Golden golden = Loaded("qwen2");
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(golden.folder);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto texts = [&](Collectives& collectives, std::vector<int32_t>& tokens) -> absl::Status {
    at::set_num_threads(1);
    REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(golden.folder, *config,
                                                         {.weights = {.dtype = DType::kFloat32},
                                                          .collectives = &collectives}));
    const ModelEngineOptions options = {
        .runner = {.max_num_seqs = 2,
                   .max_num_tokens = 64,
                   .max_seq_len = 64,
                   .max_steps_in_flight = 2,
                   .cache = {.block_size = 4, .size = NumBlocks{64}},
                   .speculation = {.max_drafts = 3, .proposer = ModelProposer{*model}},
                   .ranks = {.collectives = &collectives}}};
    if (collectives.ranks().rank != 0) return FollowEngine(model.get(), options);
    REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
    Request request = {.max_new_tokens = 24, .max_drafts = 0};
    for (int i = 0; i < 20; ++i) request.prompt.push_back(i * 7 % 256);
    REPRISE_RETURN_IF_ERROR(AppendText(*engine, request, tokens));
    request.prompt.insert(request.prompt.end(), tokens.begin(), tokens.end());
    request.max_new_tokens = 1;
    for (int last = 0; last < 20; ++last) {
      request.prompt.push_back(last);
      REPRISE_RETURN_IF_ERROR(AppendText(*engine, request, tokens));
      request.prompt.pop_back();
    }
    EXPECT_GT(engine->metrics().num_prefix_tokens_hit, 20 * 40);
    return absl::OkStatus();
  };
  std::vector<int32_t> of_one;
  std::vector<int32_t> of_two;
  ASSERT_THAT(RunThreadRanks(1, [&](auto& ranks) { return texts(ranks, of_one); }),
              Each(absl::OkStatus()));
  ASSERT_THAT(RunThreadRanks(2, [&](auto& ranks) { return texts(ranks, of_two); }),
              Each(absl::OkStatus()));
  EXPECT_EQ(of_one.size(), 44u);
  EXPECT_EQ(of_two, of_one);
}

TEST(ShardedModelTest, OddSizesGiveTheLogitsOfOneRank) {
  const absl::StatusOr<OddSizes> odd = WriteOddSizes("odd_sizes");
  ASSERT_TRUE(odd.ok()) << odd.status();
  std::map<int, std::vector<float>> logits;
  // Ranks, and how many of them divide the keys.
  for (const auto& [world, context_ranks] :
       std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {3, 1}, {4, 1}, {6, 2}}) {
    const auto run = [&, context_ranks = context_ranks,
                      world = world](RankGrid& grid) -> absl::Status {
      at::set_num_threads(1);
      const GoldenRunOptions options = {.block_size = 4,
                                        .collectives = &grid.all(),
                                        .shards_context = context_ranks > 1,
                                        .context_ranks = context_ranks};
      REPRISE_ASSIGN_OR_RETURN(
          const std::unique_ptr<Model> model,
          LoadModel(odd->folder, odd->config,
                    {.collectives = &grid.weights(), .context = &grid.context()}));
      if (grid.all().ranks().rank != 0) return FollowGolden(*model, odd->requests, options);
      REPRISE_ASSIGN_OR_RETURN(const GoldenRun got, RunGolden(*model, odd->requests, options));
      logits[world] = got.tracks[0].logits;
      return absl::OkStatus();
    };
    ASSERT_THAT(RunThreadGrid(world, context_ranks, run), Each(absl::OkStatus()))
        << world << " ranks";
    ASSERT_EQ(logits[world].size(), odd->num_logits);
    EXPECT_THAT(logits[world], Pointwise(FloatNear(1e-6f), logits[1])) << world << " ranks";
  }
  EXPECT_GT(*std::max_element(logits[1].begin(), logits[1].end()), 1e-3);
}

}  // namespace
}  // namespace reprise
