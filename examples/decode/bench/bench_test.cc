#include "examples/decode/bench/bench.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "examples/models/model_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

// A step takes a second: it computes one prompt, and a token of each sequence that has begun.
class FakeEngine : public StepEngine {
 public:
  absl::StatusOr<SequenceId> Add(Request request) override {
    sequences_.push_back({.num_prompt = request.prompt.size(), .left = request.max_new_tokens});
    return SequenceId(static_cast<int64_t>(sequences_.size()) - 1);
  }
  absl::Status Cancel(SequenceId id, std::vector<TokenEvent>&) override {
    Sequence& sequence = sequences_[id.value()];
    if (sequence.left == 0) return absl::NotFoundError("it has ended");
    sequence.left = 0;
    return absl::OkStatus();
  }
  bool has_work() const override {
    return std::any_of(sequences_.begin(), sequences_.end(),
                       [](const Sequence& sequence) { return sequence.left > 0; });
  }
  absl::Status Step(std::vector<TokenEvent>& events) override {
    now += absl::Seconds(1);
    bool has_prompt = false;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = sequences_[i];
      if (sequence.left == 0 || (sequence.index == 0 && has_prompt)) continue;
      has_prompt |= sequence.index == 0;
      --sequence.left;
      events.push_back({.sequence = SequenceId(static_cast<int64_t>(i)),
                        .token = 1,
                        .index = sequence.index++,
                        .finish = sequence.left == 0 || ends_early ? FinishReason::kLength
                                                                   : FinishReason::kNone});
      if (ends_early) sequence.left = 0;
    }
    return absl::OkStatus();
  }
  EngineMetrics metrics() const override { return {}; }

  absl::Time now = absl::UnixEpoch();
  bool ends_early = false;

 private:
  struct Sequence {
    size_t num_prompt = 0;
    int left = 0;
    int index = 0;
  };
  std::vector<Sequence> sequences_;
};

TEST(BenchTest, PromptsAreMeasuredUntilAllHaveBegunAndTextsFromThenOn) {
  FakeEngine engine;
  const auto result = MeasurePoint(engine, {.batch = 4, .context = 10, .num_tokens = 5}, 100, 9,
                                   [&] { return engine.now; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->num_prompt_tokens, 40);
  EXPECT_EQ(result->prompt_seconds, 4);  // one prompt a step
  EXPECT_EQ(result->num_decoded, 20);
  EXPECT_EQ(result->decode_seconds, 5);
  EXPECT_EQ(result->prompt_tokens_per_second(), 10);
  EXPECT_EQ(result->tokens_per_second(), 4);
  EXPECT_EQ(result->ms_per_token(), 1000);
  EXPECT_FALSE(engine.has_work());
}

TEST(BenchTest, SequencesThatEndBeforeAllHaveBegunAreAnError) {
  FakeEngine engine;
  engine.ends_early = true;
  const auto result = MeasurePoint(engine, {.batch = 4, .context = 10, .num_tokens = 5}, 100, 9,
                                   [&] { return engine.now; });
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("1 of 4 have begun"));
}

TEST(BenchTest, PromptStepsLeaveRoomForDecodes) {
  EXPECT_EQ(PromptSteps({.batch = 1, .context = 100}, 512), 2);
  EXPECT_EQ(PromptSteps({.batch = 32, .context = 1024}, 512), (32 * 1024 + 479) / 480 + 32);
  EXPECT_GT(PromptSteps({.batch = 512, .context = 1024}, 512), 1024);
  EXPECT_EQ(MostNewTokens({.batch = 1, .context = 100, .num_tokens = 8}, 512, /*num_drafts=*/0),
            10);
  EXPECT_EQ(MostNewTokens({.batch = 1, .context = 100, .num_tokens = 8}, 512, /*num_drafts=*/4),
            50);
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
  options.draft = {.model = *folder, .num_tokens = 3};  // the model is its own draft model
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunBench(options, {.out = out, .err = err}, {});
  ASSERT_TRUE(status.ok()) << status;
  const json line = json::parse(out.str());
  EXPECT_GE(line.at("decoded_tokens"), 3 * 12);
  EXPECT_GT(line.at("drafts"), 0);
  EXPECT_EQ(line.at("accepted_drafts"), line.at("drafts"));
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
