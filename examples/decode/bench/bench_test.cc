#include "examples/decode/bench/bench.h"

#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/engine/engine.h"
#include "reprise/models/model_folder.h"
#include "reprise/runner/step_runner.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

// A step takes a second, and gives each row token 1.
class SlowRunner : public StepRunner {
 public:
  explicit SlowRunner(int max_seq_len) {
    shape_ = {.max_num_seqs = 4,
              .max_num_tokens = 10,
              .max_seq_len = max_seq_len,
              .vocab_size = 100,
              .num_blocks = 100};
  }

  const RunnerShape& shape() const override { return shape_; }
  absl::Status CheckLogits(const LogitsRequest&) const override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    now += absl::Seconds(1);
    tokens_.assign(batch.rows.size(), 1);
    return num_launched_++;
  }
  absl::StatusOr<StepResult> Await(int64_t) override { return StepResult{.tokens = tokens_}; }
  absl::Status status() const override { return absl::OkStatus(); }
  const GraphReport& graph_report() const override { return report_; }

  absl::Time now = absl::UnixEpoch();

 private:
  RunnerShape shape_;
  GraphReport report_;
  std::vector<int32_t> tokens_;
  int64_t num_launched_ = 0;
};

// Four prompts of 10 tokens and 5 tokens of each, by an engine of at most `max_seq_len` tokens.
absl::StatusOr<BenchResult> MeasureFour(int max_seq_len) {
  auto runner = std::make_unique<SlowRunner>(max_seq_len);
  const SlowRunner& slow = *runner;
  const auto engine = Engine::Create(std::move(runner));
  EXPECT_TRUE(engine.ok()) << engine.status();
  const auto result = MeasurePoint(**engine, {.batch = 4, .context = 10, .num_tokens = 5}, 100, 12,
                                   [&] { return slow.now; });
  EXPECT_FALSE((*engine)->has_work());
  return result;
}

// Steps of 10 tokens: 10 of the first prompt; a decode and 9; a decode, 1 and 8; 2 decodes, 2 and
// 6; 3 decodes and 4. Then all four decode.
TEST(BenchTest, PromptsAreMeasuredUntilAllHaveBegunAndTextsFromThenOn) {
  const auto result = MeasureFour(/*max_seq_len=*/64);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->num_prompt_tokens, 40);
  EXPECT_EQ(result->prompt_seconds, 5);
  EXPECT_EQ(result->num_decoded, 20);
  EXPECT_EQ(result->decode_seconds, 5);
  EXPECT_EQ(result->prompt_tokens_per_second(), 8);
  EXPECT_EQ(result->tokens_per_second(), 4);
  EXPECT_EQ(result->ms_per_token(), 1000);
}

// Sequences of 10 tokens have no room for a second new token.
TEST(BenchTest, SequencesThatEndBeforeAllHaveBegunAreAnError) {
  const auto result = MeasureFour(/*max_seq_len=*/10);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("1 of 4 have begun"));
}

ModelEngineOptions EngineWith(int max_num_tokens, int max_prefill_tokens_while_decoding) {
  ModelEngineOptions engine;
  engine.runner.max_num_tokens = max_num_tokens;
  engine.scheduler.max_prefill_tokens_while_decoding = max_prefill_tokens_while_decoding;
  return engine;
}

TEST(BenchTest, DecodesTakeTheirPartOfEachStep) {
  EXPECT_EQ(MinPromptTokens(EngineWith(512, 0), 32), 480);
  EXPECT_EQ(MinPromptTokens(EngineWith(512, 0), 512), 1);
  EXPECT_EQ(MinPromptTokens(EngineWith(512, 192), 32), 192);
  EXPECT_EQ(MinPromptTokens(EngineWith(512, 500), 32), 480);
}

TEST(BenchTest, EachPromptMayEndWithAShortChunk) {
  EXPECT_EQ(PromptSteps({.batch = 1, .context = 100}, 511), 2);
  EXPECT_EQ(PromptSteps({.batch = 32, .context = 1024}, 480), (32 * 1024 + 479) / 480 + 32);
  EXPECT_EQ(PromptSteps({.batch = 512, .context = 1024}, 1), 512 * 1024 + 512);
  EXPECT_EQ(MaxNewTokens({.batch = 1, .context = 100, .num_tokens = 8}, 511, /*num_drafts=*/0), 10);
  EXPECT_EQ(MaxNewTokens({.batch = 1, .context = 100, .num_tokens = 8}, 511, /*num_drafts=*/4), 50);
}

DecodeOptions BenchOptions() {
  DecodeOptions options;
  options.command = DecodeCommand::kBench;
  options.dtype = DType::kFloat32;
  options.device = DeviceChoice::kCpu;
  options.bench = {.batches = {1, 3}, .contexts = {8, 20}, .num_tokens = 4};
  return options;
}

TEST(BenchTest, EachBatchIsMeasuredWithEachContext) {
  DecodeOptions options = BenchOptions();
  options.output = OutputChoice::kJson;
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunBench(options, {.out = out, .err = err}, {});
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<std::string> lines = absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(4));
  const int expected[4][2] = {{1, 8}, {3, 8}, {1, 20}, {3, 20}};
  for (int i = 0; i < 4; ++i) {
    const json line = json::parse(lines[i]);
    EXPECT_EQ(line.at("batch"), expected[i][0]);
    EXPECT_EQ(line.at("context"), expected[i][1]);
    EXPECT_GT(line.at("prompt_tokens_per_s"), 0);
    EXPECT_GT(line.at("decode_tokens_per_s"), 0);
    EXPECT_GE(line.at("decoded_tokens"), 4 * expected[i][0]);
  }
}

TEST(BenchTest, DraftsAreMeasuredToo) {
  DecodeOptions options = BenchOptions();
  options.output = OutputChoice::kJson;
  options.bench = {.batches = {3}, .contexts = {8}, .num_tokens = 12};
  const absl::StatusOr<std::string> folder = DefaultModelFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  options.engine.runner.speculation.max_drafts = 3;
  options.draft = {.model = *folder};  // the model is its own draft model
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunBench(options, {.out = out, .err = err}, {});
  ASSERT_TRUE(status.ok()) << status;
  const json line = json::parse(out.str());
  EXPECT_GE(line.at("decoded_tokens"), 3 * 12);
  EXPECT_GT(line.at("drafts"), 0);
  EXPECT_EQ(line.at("accepted_drafts"), line.at("drafts"));
}

// The first sequences decode for many more steps until the last prompt has been computed.
TEST(BenchTest, AFewPromptTokensBesideDecodesAreMeasuredToo) {
  DecodeOptions options = BenchOptions();
  options.output = OutputChoice::kJson;
  options.bench = {.batches = {4}, .contexts = {20}, .num_tokens = 4};
  options.engine.scheduler.max_prefill_tokens_while_decoding = 2;
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunBench(options, {.out = out, .err = err}, {});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_GE(json::parse(out.str()).at("decoded_tokens"), 4 * 4);
}

TEST(BenchTest, ATableHasARowAPoint) {
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunBench(BenchOptions(), {.out = out, .err = err}, {});
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<std::string> lines = absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(5));
  EXPECT_THAT(lines[0], StartsWith(" batch  context"));
  for (const std::string& line : lines) EXPECT_EQ(line.size(), lines[0].size());
}

TEST(BenchTest, ContextsBeyondTheModelsPositionsAreRefused) {
  DecodeOptions options = BenchOptions();
  options.bench.contexts = {100, 2045};
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_THAT(std::string(RunBench(options, {.out = out, .err = err}, {}).message()),
              HasSubstr("--contexts: expected at most 2044, so that --num_tokens 4 fit into the "
                        "model's 2048 positions, got 2045"));
}

}  // namespace
}  // namespace reprise
