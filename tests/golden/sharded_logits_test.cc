// Runners whose logits stay divided over ranks: what a step gathers, and the tokens of one rank.

#include <ATen/Parallel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/testing/counting_collectives.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/random_checkpoint.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"

namespace reprise {
namespace {

using testing::Each;
using Mode = GraphSetOptions::Mode;

// Of a vocabulary that no number of ranks divides, with the softcap of logits or without.
std::string Folder(int vocab_size, bool softcap) {
  const std::string folder =
      testing::TempDir() + "divided_" + std::to_string(vocab_size) + (softcap ? "_softcap" : "");
  nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"hidden_size", 32},
                         {"intermediate_size", 64},
                         {"num_hidden_layers", 2},
                         {"num_attention_heads", 4},
                         {"num_key_value_heads", 2},
                         {"head_dim", 8},
                         {"vocab_size", vocab_size},
                         {"max_position_embeddings", 64},
                         {"rms_norm_eps", 1e-5},
                         {"tie_word_embeddings", false},
                         {"torch_dtype", "float32"}};
  if (softcap) {
    json["architectures"] = {"Gemma2ForCausalLM"};
    json["model_type"] = "gemma2";
    json["hidden_activation"] = "gelu_pytorch_tanh";
    json["query_pre_attn_scalar"] = 8;
    json["sliding_window"] = 16;
    json["attn_logit_softcapping"] = 50.0;
    json["final_logit_softcapping"] = 2.0;
    json["tie_word_embeddings"] = true;
  }
  EXPECT_TRUE(WriteRandomCheckpoint(folder, json, {}).ok());
  return folder;
}

constexpr int kNumRows = 3;  // in steps of 4
constexpr int kPaddedRows = 4;
constexpr int kNumSteps = 12;

struct RunOf {
  std::vector<std::vector<int32_t>> tokens;  // of each step
  int64_t bytes_per_step = 0;                // gathered by a rank, in each step of decodes
  int64_t num_gathers = 0;                   // likewise
};

// A prompt for each row, then decodes, with two steps in flight.
absl::StatusOr<RunOf> RunRows(Model& model, const ModelRunnerOptions& options,
                              const std::vector<SamplingParams>& params,
                              const CountingCollectives& counting) {
  REPRISE_ASSIGN_OR_RETURN(const auto runner, ModelRunner::Create(&model, options));
  std::vector<SlotJoin> joins;
  std::vector<BlockTableUpdate> updates;
  std::vector<ScheduledRow> prompts, decodes;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<LogitsRequest> requests;
  for (int slot = 0; slot < kNumRows; ++slot) {
    tokens.push_back({1 + slot, 7, 3 * slot});
    joins.push_back(JoinOf(SlotId(slot), {}, tokens.back().size(), params[slot]));
    for (int group = 0; group < static_cast<int>(runner->shape().groups.size()); ++group) {
      for (int column = 0; column < 4; ++column) {
        updates.push_back({.slot = SlotId(slot),
                           .column = column,
                           .block = BlockId(1 + 4 * (kNumRows * group + slot) + column),
                           .group = group});
      }
    }
    if (options.logits.max_log_probs >= 0) {
      requests.push_back({.slot = SlotId(slot), .params = {.num_log_probs = 1}});
    }
  }
  for (int slot = 0; slot < kNumRows; ++slot) {
    prompts.push_back({.slot = SlotId(slot), .tokens = tokens[slot]});
    decodes.push_back({.slot = SlotId(slot)});
  }
  RunOf run;
  const auto await = [&](int64_t ticket) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner->Await(ticket));
    run.tokens.emplace_back(result.tokens.begin(), result.tokens.end());
    return absl::OkStatus();
  };
  REPRISE_ASSIGN_OR_RETURN(
      int64_t oldest,
      runner->Launch(
          {.joins = joins, .logits_requests = requests, .updates = updates, .rows = prompts}));
  const int64_t bytes_before = counting.num_bytes();
  const int gathers_before = counting.num_gathers();
  for (int step = 1; step < kNumSteps; ++step) {
    REPRISE_ASSIGN_OR_RETURN(const int64_t next, runner->Launch({.rows = decodes}));
    REPRISE_RETURN_IF_ERROR(await(oldest));
    oldest = next;
  }
  REPRISE_RETURN_IF_ERROR(await(oldest));
  const int64_t bytes = counting.num_bytes() - bytes_before;
  EXPECT_EQ(bytes % (kNumSteps - 1), 0);
  run.bytes_per_step = bytes / (kNumSteps - 1);
  run.num_gathers = (counting.num_gathers() - gathers_before) / (kNumSteps - 1);
  EXPECT_EQ(runner->graph_report().num_replays() > 0, *options.graphs.mode != Mode::kOff);
  return run;
}

// What each rank of `world` gives; all must give the same.
RunOf RunOver(int world, const std::string& folder, const ModelRunnerOptions& options,
              const std::vector<SamplingParams>& params) {
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(folder);
  EXPECT_TRUE(config.ok()) << config.status();
  std::vector<RunOf> runs(world);
  const auto statuses = RunThreadRanks(world, [&](Collectives& collectives) -> absl::Status {
    at::set_num_threads(1);
    CountingCollectives counting(collectives);
    REPRISE_ASSIGN_OR_RETURN(const auto model, LoadModel(folder, *config,
                                                         {.weights = {.dtype = DType::kFloat32},
                                                          .collectives = &counting}));
    ModelRunnerOptions own = options;
    own.ranks.collectives = &collectives;
    REPRISE_ASSIGN_OR_RETURN(runs[collectives.ranks().rank],
                             RunRows(*model, own, params, counting));
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  for (const RunOf& run : runs) {
    EXPECT_EQ(run.tokens, runs[0].tokens);
    EXPECT_EQ(run.bytes_per_step, runs[0].bytes_per_step);
  }
  return runs[0];
}

ModelRunnerOptions Options() {
  return {.max_num_seqs = kPaddedRows,
          .max_num_tokens = 16,
          .max_seq_len = 32,
          .max_steps_in_flight = 2,
          .cache = {.block_size = 8, .size = NumBlocks{40}},
          .graphs = {.mode = Mode::kEager}};
}

constexpr SamplingParams kGreedy = {};
constexpr SamplingParams kPlain = {.temperature = 1, .seed = 11};
constexpr SamplingParams kMinP = {.temperature = 1, .min_p = 0.3f, .seed = 12};
constexpr SamplingParams kTopK = {.temperature = 1.5f, .top_k = 20, .seed = 13};
constexpr SamplingParams kTopKAndP = {.temperature = 2, .top_k = 6, .top_p = 0.8f, .seed = 14};
constexpr SamplingParams kTopP = {.temperature = 1, .top_p = 0.8f, .seed = 15};
constexpr SamplingParams kWide = {.temperature = 1, .top_k = 270, .seed = 16};

// Bytes a row from each other rank: of tops and choices, and of all logits in float32.
constexpr int64_t TopBytes(int num_top) { return num_top == 0 ? 8 : 4 * (1 + num_top) + 8; }

struct Case {
  const char* name;
  std::vector<SamplingParams> params;
  int num_top;  // -1: logits are gathered
};

class ShardedLogitsStepTest : public testing::TestWithParam<int> {};  // the number of ranks

TEST_P(ShardedLogitsStepTest, AStepGathersWhatItsRowsNeedAndGivesTheTokensOfOneRank) {
  const int world = GetParam();
  const std::string folder = Folder(301, false);
  const int64_t share = LargestAlignedShare(301, world);
  const Case cases[] = {{"greedy", {kGreedy, kGreedy, kGreedy}, 0},
                        {"temperature", {kPlain, kGreedy, kMinP}, 1},
                        {"top_k", {kPlain, kTopK, kTopKAndP}, 20},
                        {"top_p", {kGreedy, kTopP, kTopK}, -1},
                        {"a wide top_k", {kGreedy, kWide, kTopK}, -1}};
  for (const Case& c : cases) {
    for (const Mode mode : {Mode::kEager, Mode::kOff}) {
      SCOPED_TRACE(testing::Message() << c.name << (mode == Mode::kOff ? ", no graphs" : ""));
      ModelRunnerOptions options = Options();
      options.graphs.mode = mode;
      const RunOf one = RunOver(1, folder, options, c.params);
      EXPECT_EQ(one.num_gathers, 0);
      const RunOf run = RunOver(world, folder, options, c.params);
      EXPECT_EQ(run.tokens, one.tokens);
      EXPECT_EQ(run.num_gathers, c.num_top > 0 ? 2 : 1);
      const int64_t row_bytes = c.num_top < 0 ? 4 * share : TopBytes(c.num_top);
      EXPECT_EQ(run.bytes_per_step, (world - 1) * kPaddedRows * row_bytes);
    }
  }
}

// What else reads logits: they are gathered, and the tokens are the same.
TEST_P(ShardedLogitsStepTest, LogitsThatAreReadAreGathered) {
  const int world = GetParam();
  const std::string folder = Folder(301, false);
  const int64_t gathered = (world - 1) * kPaddedRows * 4 * LargestAlignedShare(301, world);
  const std::vector<SamplingParams> params = {kGreedy, kPlain, kTopK};
  const RunOf expected = RunOver(1, folder, Options(), params);
  const std::pair<const char*, std::function<void(ModelRunnerOptions&)>> readers[] = {
      {"kept logits", [](auto& options) { options.logits.step_logits = StepLogits::kOfEvery; }},
      {"the option", [](auto& options) { options.debug.sample_shards = false; }},
      {"log-probabilities", [](auto& options) { options.logits.max_log_probs = 1; }},
      {"replay check",
       [](auto& options) { options.debug.replay_check = ReplayCheck::kEveryReplay; }}};
  for (const auto& [name, read] : readers) {
    SCOPED_TRACE(name);
    ModelRunnerOptions options = Options();
    read(options);
    const RunOf run = RunOver(world, folder, options, params);
    EXPECT_EQ(run.tokens, expected.tokens);
    // A replay is run again, with its gather.
    const int times = options.debug.replay_check == ReplayCheck::kEveryReplay ? 2 : 1;
    EXPECT_EQ(run.bytes_per_step, times * gathered);
  }
}

TEST_P(ShardedLogitsStepTest, ASoftcapIsOfEachPart) {
  const std::vector<SamplingParams> params = {kGreedy, kPlain, kTopKAndP};
  const std::string folder = Folder(130, true);
  EXPECT_EQ(RunOver(GetParam(), folder, Options(), params).tokens,
            RunOver(1, folder, Options(), params).tokens);
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedLogitsStepTest, testing::Values(2, 3, 4));

}  // namespace
}  // namespace reprise
