// The golden models divided over ranks that are threads, and what else an engine over ranks serves.

#include "tests/golden/golden_ranks.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/status_macros.h"
#include "distributed/testing/thread_ranks.h"
#include "engine/engine.h"
#include "examples/models/llama/random_checkpoint.h"
#include "examples/models/model_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runner/model.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_runner.h"

namespace reprise {
namespace {

using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
using Mode = GraphSetOptions::Mode;

constexpr double kTolerance = 5e-4;

Golden Loaded(const std::string& name) {
  absl::StatusOr<Golden> golden = LoadGolden(name);
  EXPECT_TRUE(golden.ok()) << golden.status();
  return golden.ok() ? *std::move(golden) : Golden();
}

std::vector<absl::Status> Check(const Golden& golden, int world, const DividedGoldenCheck& check,
                                const GoldenRunOptions& options) {
  return RunThreadRanks(world, [&](Collectives& collectives) {
    at::set_num_threads(1);  // of this thread's products
    return CheckDividedGolden(golden, collectives, c10::kCPU, check, options);
  });
}

class DividedGoldenTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(DividedGoldenTest, LogitsAreGolden) {
  const auto [name, world] = GetParam();
  const Golden golden = Loaded(name);
  EXPECT_THAT(Check(golden, world, {.tolerance = kTolerance}, {.block_size = 4}),
              Each(absl::OkStatus()));
  EXPECT_THAT(Check(golden, world, {.tolerance = kTolerance, .replays = false},
                    {.graphs = Mode::kOff, .block_size = 16, .prefill_chunk = 7}),
              Each(absl::OkStatus()));
}

// Of KV heads there are 2 and of q heads 8, but for gqa5 (10), bias-untied (6 and 6) and MLA (8):
// with 4 ranks a KV head is on two of them, and in the first two of these shares are of different
// sizes.
INSTANTIATE_TEST_SUITE_P(
    All, DividedGoldenTest,
    testing::Combine(testing::Values("llama-rope-llama3", "llama-bias-untied", "llama-gqa5",
                                     "mistral-window", "llama4-chunked", "qwen2", "qwen3",
                                     "qwen3-moe", "gemma2", "gemma3", "gpt-oss-sinks",
                                     "deepseek-mla", "deepseek-mla-yarn"),
                     testing::Values(2, 4)),
    [](const testing::TestParamInfo<std::tuple<const char*, int>>& info) {
      std::string name = std::get<0>(info.param);
      std::replace(name.begin(), name.end(), '-', '_');
      return name + "_on_" + std::to_string(std::get<1>(info.param));
    });

TEST(DividedModelTest, OneRankWithCollectivesIsAsWithout) {
  EXPECT_THAT(Check(Loaded("qwen3"), 1, {.tolerance = kTolerance}, {}), Each(absl::OkStatus()));
}

TEST(DividedModelTest, ExpandedMla) {
  EXPECT_THAT(Check(Loaded("deepseek-mla"), 2,
                    {.tolerance = kTolerance, .mla_cache = MlaCache::kExpanded}, {}),
              Each(absl::OkStatus()));
}

TEST(DividedModelTest, PreemptedSequencesGetGoldenLogits) {
  EXPECT_THAT(Check(Loaded("llama-rope-llama3"), 2, {.tolerance = kTolerance, .preempts = true},
                    {.block_size = 4, .num_blocks = 64, .prefill_chunk = 16}),
              Each(absl::OkStatus()));
}

TEST(DividedModelTest, MoreRanksThanQHeadsAreRefusedByAll) {
  for (const absl::Status& status :
       Check(Loaded("llama-bias-untied"), 7, {.tolerance = kTolerance}, {})) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(status.message(), HasSubstr("num_q_heads must give each rank one"));
  }
}

TEST(DividedModelTest, FamiliesThatAreNotDividedSaySo) {
  for (const char* const name : {"bart", "gpt2", "bloom-alibi"}) {
    for (const absl::Status& status : Check(Loaded(name), 2, {.tolerance = kTolerance}, {})) {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_THAT(status.message(), HasSubstr("expected one rank, got 2"));
    }
  }
}

TEST(DividedModelTest, OptionsThatDifferAreRefusedByAll) {
  const Golden golden = Loaded("qwen3");
  const std::vector<absl::Status> results = RunThreadRanks(2, [&](Collectives& collectives) {
    return CheckDividedGolden(golden, collectives, c10::kCPU, {.tolerance = kTolerance},
                              {.block_size = collectives.ranks().rank == 0 ? 4 : 8});
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), HasSubstr("block_size must be the same on all ranks"));
  }
}

// Texts by request; those that were cancelled end in -1.
using Texts = std::map<int64_t, std::vector<int32_t>>;

// Sampled requests with common prefixes, of which every third is cancelled after some steps, more
// than the cache holds.
absl::StatusOr<Texts> RunTraffic(Engine& engine) {
  Texts texts;
  std::vector<SequenceId> ids;
  for (int i = 0; i < 12; ++i) {
    Request request = {.max_new_tokens = 24};
    for (int j = 0; j < 20 + i; ++j) request.prompt.push_back((3 + j * j + i / 4 * 7) % 256);
    if (i % 2 == 1) request.sampling = {.temperature = 1, .seed = static_cast<uint64_t>(i)};
    REPRISE_ASSIGN_OR_RETURN(ids.emplace_back(), engine.Add(request));
  }
  std::vector<TokenEvent> events;
  for (int step = 0; engine.has_work(); ++step) {
    events.clear();
    if (step >= 10 && step % 5 == 0 && !ids.empty()) {
      // One that has ended cannot be cancelled.
      engine.Cancel(ids[ids.size() / 2], events).IgnoreError();
      ids.resize(ids.size() / 2);
    }
    REPRISE_RETURN_IF_ERROR(engine.Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_RETURN_IF_ERROR(event.error);
      texts[event.sequence.value()].push_back(event.token.value_or(-1));
    }
  }
  return texts;
}

TEST(DividedModelTest, PreemptionsPrefixesAndCancelsGiveTheTextsOfOneRank) {
  const Golden golden = Loaded("qwen2");
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(golden.folder);
  ASSERT_TRUE(config.ok()) << config.status();
  EngineOptions options = {.runner = {.max_num_seqs = 5,
                                      .max_num_tokens = 48,
                                      .max_seq_len = 64,
                                      .block_size = 4,
                                      .num_blocks = 34,
                                      .num_swap_blocks = 20,
                                      .mixed_graphs = MixedGraphs::kOn,
                                      .max_steps_in_flight = 2},
                           .prefill_chunk = 9};
  std::map<int, Texts> texts;
  for (const int world : {1, 2, 4}) {
    const auto run = [&](Collectives& collectives) -> absl::Status {
      at::set_num_threads(1);
      EngineOptions own = options;
      own.runner.collectives = &collectives;
      REPRISE_ASSIGN_OR_RETURN(
          const std::unique_ptr<Model> model,
          LoadModel(golden.folder, *config,
                    {.weights = {.dtype = DType::kFloat32}, .collectives = &collectives}));
      if (collectives.ranks().rank != 0) return Engine::Follow(model.get(), own);
      REPRISE_ASSIGN_OR_RETURN(const auto engine, Engine::Create(model.get(), own));
      REPRISE_ASSIGN_OR_RETURN(texts[world], RunTraffic(*engine));
      const EngineMetrics metrics = engine->metrics();
      EXPECT_GT(metrics.num_preemptions, 0);
      EXPECT_GT(metrics.num_prefix_tokens_hit, 0);
      EXPECT_GT(metrics.num_graph_replays, 0);
      EXPECT_GT(metrics.num_finished[static_cast<int>(FinishReason::kCancelled)], 0);
      return absl::OkStatus();
    };
    ASSERT_THAT(RunThreadRanks(world, run), Each(absl::OkStatus()));
  }
  EXPECT_EQ(texts[2], texts[1]);
  EXPECT_EQ(texts[4], texts[1]);
}

// One KV head, an odd vocabulary, an inner size that no number of ranks divides, and weights that
// are tied, in two files.
TEST(DividedModelTest, OddSizesGiveTheLogitsOfOneRank) {
  const std::string folder = testing::TempDir() + "odd_sizes";
  const nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                               {"model_type", "llama"},
                               {"hidden_size", 48},
                               {"intermediate_size", 101},
                               {"num_hidden_layers", 2},
                               {"num_attention_heads", 6},
                               {"num_key_value_heads", 1},
                               {"head_dim", 16},
                               {"vocab_size", 301},
                               {"max_position_embeddings", 64},
                               {"rms_norm_eps", 1e-5},
                               {"tie_word_embeddings", true},
                               {"torch_dtype", "float32"}};
  ASSERT_TRUE(WriteRandomCheckpoint(folder, json, {.max_shard_bytes = 100'000}).ok());
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(folder);
  ASSERT_TRUE(config.ok()) << config.status();
  Request request = {.max_new_tokens = 8, .forced_tokens = {300, 0, 150, 75, 299, 1, 2, 3}};
  for (int i = 0; i < 21; ++i) request.prompt.push_back(i * 43 % 301);
  const std::vector<Request> requests = {request};
  std::map<int, std::vector<float>> logits;
  for (const int world : {1, 2, 3, 4}) {
    const auto run = [&](Collectives& collectives) -> absl::Status {
      at::set_num_threads(1);
      const GoldenRunOptions options = {.block_size = 4, .collectives = &collectives};
      REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                               LoadModel(folder, *config, {.collectives = &collectives}));
      if (collectives.ranks().rank != 0) return FollowGolden(*model, requests, options);
      REPRISE_ASSIGN_OR_RETURN(const GoldenRun got, RunGolden(*model, requests, options));
      logits[world] = got.tracks[0].logits;
      return absl::OkStatus();
    };
    ASSERT_THAT(RunThreadRanks(world, run), Each(absl::OkStatus())) << world << " ranks";
    ASSERT_EQ(logits[world].size(), 8u * 301);
    EXPECT_THAT(logits[world], Pointwise(FloatNear(1e-6f), logits[1])) << world << " ranks";
  }
  EXPECT_GT(*std::max_element(logits[1].begin(), logits[1].end()), 1e-3);
}

}  // namespace
}  // namespace reprise
