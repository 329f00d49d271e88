#include "examples/decode/run.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "examples/decode/model_copy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/safetensors.h"
#include "reprise/models/model_folder.h"
#include "tests/golden/decode_golden.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

struct Output {
  absl::Status status;
  std::string out;
  std::string err;
};

// Four drafts of a row, from the sequence's own tokens or of a draft model, which the run sets.
SpeculationOptions Drafts(bool of_model) {
  SpeculationOptions drafts = {.max_drafts = 4};
  if (!of_model) drafts.proposer = NgramProposer{};
  return drafts;
}

Output Decode(DecodeOptions options) {
  std::ostringstream out;
  std::ostringstream err;
  options.device = DeviceChoice::kCpu;
  const absl::Status status = RunDecode(options, {.out = out, .err = err});
  return {status, out.str(), err.str()};
}

// The lines of --json; the last one is of the statistics.
std::vector<json> DecodeJson(DecodeOptions options) {
  options.output = OutputChoice::kJson;
  const Output output = Decode(options);
  EXPECT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.err, "");
  std::vector<json> lines;
  for (const absl::string_view line : absl::StrSplit(output.out, '\n', absl::SkipEmpty())) {
    lines.push_back(json::parse(line.begin(), line.end()));
  }
  return lines;
}

TEST(DecodeRunTest, OneTextIsAllThatIsPrinted) {
  const Output output = Decode({.prompts = {{.content = "YEAR, n."}}, .dtype = DType::kFloat32});
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.out, "  A period of three hundred and sixty-five disappointments.\n");
  EXPECT_THAT(output.err, HasSubstr("17 tokens from 1 prompt"));
}

TEST(DecodeRunTest, WithoutAPromptItHasOneOfItsOwn) {
  const Output output = Decode({.max_new_tokens = 3});
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_THAT(output.err, StartsWith("prompt 1: \"hack value\\n\""));
  EXPECT_THAT(output.out, StartsWith("n.\n"));
}

TEST(DecodeRunTest, SeveralTextsStandBelowTheirPromptsInOrder) {
  const Output output = Decode({.prompts = {{.content = "YEAR, n."}, {.content = "zero-content\n"}},
                                .dtype = DType::kFloat32});
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.out,
            "--- prompt 1: \"YEAR, n.\"\n"
            "  A period of three hundred and sixty-five disappointments.\n"
            "--- prompt 2: \"zero-content\\n\"\n"
            "adj.\nSyn. {content-free}.\n");
}

TEST(DecodeRunTest, DraftsChangeTheStepsAndNotTheTexts) {
  const DecodeOptions plain = {.prompts = {{.content = "YEAR, n."}, {.content = "zero-content\n"}},
                               .max_new_tokens = 60,
                               .dtype = DType::kFloat32};
  const std::vector<json> expected = DecodeJson(plain);
  const auto folder = DefaultModelFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  for (const auto& model : {std::optional<std::string>(), std::optional<std::string>(*folder)}) {
    SCOPED_TRACE(model.value_or("ngram"));
    DecodeOptions options = plain;
    options.engine.runner.speculation = Drafts(model.has_value());
    options.draft = {.model = model, .compares_plain = true};
    const std::vector<json> lines = DecodeJson(options);
    ASSERT_THAT(lines, SizeIs(3));
    EXPECT_EQ(lines[0], expected[0]);
    EXPECT_EQ(lines[1], expected[1]);
    const json& stats = lines[2].at("stats");
    EXPECT_GT(stats.at("plain_tokens_per_s"), 0);
    EXPECT_GT(stats.at("drafts"), 0);
    if (model.has_value()) {  // the model is its own draft model
      EXPECT_EQ(stats.at("accepted_drafts"), stats.at("drafts"));
      EXPECT_LT(stats.at("steps"), expected[2].at("stats").at("steps"));
    }
  }
}

TEST(DecodeRunTest, TreesOfDraftsDoNotChangeTheTexts) {
  const DecodeOptions plain = {.prompts = {{.content = "YEAR, n."}, {.content = "zero-content\n"}},
                               .max_new_tokens = 60,
                               .dtype = DType::kFloat32};
  const std::vector<json> expected = DecodeJson(plain);
  const auto folder = DefaultModelFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  DecodeOptions options = plain;
  options.engine.runner.speculation = {
      .max_drafts = 6, .shape = DraftShape::kTree, .tree = {0, 0, 1, 2, 3, 4}};
  options.draft = {.model = *folder};
  const std::vector<json> lines = DecodeJson(options);
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0], expected[0]);
  EXPECT_EQ(lines[1], expected[1]);
  // The model is its own draft model: one draft of each level is right.
  const json& stats = lines[2].at("stats");
  EXPECT_EQ(2 * stats.at("accepted_drafts").get<int>(), stats.at("drafts").get<int>());
  EXPECT_LT(stats.at("steps"), expected[2].at("stats").at("steps"));
}

// The texts depend on the drafts, which are the same in both runs.
TEST(DecodeRunTest, RejectionOfDraftsGivesTheSameTextsForTheSameSeed) {
  const auto folder = DefaultModelFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  for (const auto& model : {std::optional<std::string>(), std::optional<std::string>(*folder)}) {
    SCOPED_TRACE(model.value_or("ngram"));
    DecodeOptions options = {.prompts = {{.content = "YEAR, n."}, {.content = "zero-content\n"}},
                             .max_new_tokens = 60,
                             .dtype = DType::kFloat32};
    options.sampling.temperature = 0.9f;
    options.sampling.seed = 5;
    options.engine.runner.speculation = Drafts(model.has_value());
    options.engine.runner.speculation.acceptance = DraftAcceptance::kRejection;
    options.draft = {.model = model};
    const std::vector<json> lines = DecodeJson(options);
    ASSERT_THAT(lines, SizeIs(3));
    const std::vector<json> again = DecodeJson(options);
    EXPECT_EQ(again[0], lines[0]);
    EXPECT_EQ(again[1], lines[1]);
    const json& stats = lines[2].at("stats");
    EXPECT_GT(stats.at("drafts"), 0);
    if (model.has_value()) {  // it draws as its draft model does
      EXPECT_EQ(stats.at("accepted_drafts"), stats.at("drafts"));
    }
  }
}

TEST(DecodeRunTest, ADraftModelThatDoesNotExistIsNamed) {
  const Output output = Decode({.engine = {.runner = {.speculation = Drafts(/*of_model=*/true)}},
                                .draft = DraftChoice{.model = "/no/such/folder"}});
  EXPECT_THAT(std::string(output.status.message()), StartsWith("--draft: "));
}

TEST(DecodeRunTest, JsonHasAnObjectAPromptAndOneOfStatistics) {
  const std::vector<json> lines =
      DecodeJson({.prompts = {{.content = "zero-content\n"}, {.content = TokenList{0, 1765, 200}}},
                  .max_new_tokens = 12,
                  .dtype = DType::kFloat32});
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0].at("text"), "adj.\nSyn. {content-free}.");
  EXPECT_EQ(lines[0].at("finish_reason"), "stop");
  EXPECT_EQ(lines[0].at("tokens").size(), 11u);
  EXPECT_EQ(lines[0].at("tokens").back(), 1);
  EXPECT_EQ(lines[1].at("prompt_tokens"), json({0, 1765, 200}));
  EXPECT_EQ(lines[1].at("finish_reason"), "length");
  EXPECT_EQ(lines[1].at("tokens").size(), 12u);
  const json& stats = lines[2].at("stats");
  EXPECT_EQ(stats.at("generated_tokens"), 11 + 12);
  EXPECT_EQ(stats.at("dtype"), "float32");
  EXPECT_EQ(stats.at("eager_steps").at("query_too_long"), 1);  // the prompts
  EXPECT_EQ(stats.at("graph_hits"), 11);
  EXPECT_EQ(stats.at("steps"), 12);
}

TEST(DecodeRunTest, WithoutGraphsTheSameTokensAreMadeEagerly) {
  const DecodeOptions options = {.prompts = {{.content = "foo\n"}}, .max_new_tokens = 20};
  DecodeOptions without = options;
  without.engine.runner.graphs.mode = GraphSetOptions::Mode::kOff;
  const std::vector<json> on = DecodeJson(options);
  const std::vector<json> off = DecodeJson(without);
  EXPECT_EQ(on[0], off[0]);
  EXPECT_EQ(off[1].at("stats").at("graph_hits"), 0);
  EXPECT_EQ(off[1].at("stats").at("eager_steps").at("graphs_disabled"), 20);
}

TEST(DecodeRunTest, APromptGivesTheSameAloneAndAmongOthers) {
  const SamplingOptions sampling = {.temperature = 0.9f, .top_k = 50, .top_p = 0.9f, .seed = 7};
  const std::vector<Prompt> prompts = {
      {.content = "foo\n"}, {.content = "LOGIC, n."}, {.content = "grep\n"}};
  const std::vector<json> together = DecodeJson(
      {.prompts = prompts, .max_new_tokens = 24, .sampling = sampling, .dtype = DType::kFloat32});
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<json> alone = DecodeJson({.prompts = {prompts[i]},
                                                .max_new_tokens = 24,
                                                .sampling = sampling,
                                                .dtype = DType::kFloat32});
    EXPECT_EQ(alone[0], together[i]) << i;
  }
}

TEST(DecodeRunTest, EndOfTextIsPassedOverWhenAskedTo) {
  const std::vector<json> lines = DecodeJson({.prompts = {{.content = "zero-content\n"}},
                                              .max_new_tokens = 30,
                                              .stop = StopChoice::kAtLengthOnly,
                                              .dtype = DType::kFloat32});
  EXPECT_EQ(lines[0].at("tokens").size(), 30u);
  EXPECT_EQ(lines[0].at("finish_reason"), "length");
}

TEST(DecodeRunTest, LogitsAreThoseThatTokensWereChosenFrom) {
  const std::string path = testing::TempDir() + "/decode_run_logits.safetensors";
  const std::vector<json> lines =
      DecodeJson({.prompts = {{.content = "foo\n"},
                              {.content = TokenList{0, 1765, 200}, .forced_tokens = {16, 9, 9}}},
                  .max_new_tokens = 5,
                  .dtype = DType::kFloat32,
                  .dump_logits = path});
  EXPECT_EQ(lines[1].at("tokens"), json({16, 9, 9}));
  EXPECT_EQ(lines[1].at("finish_reason"), "length");
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorView first = *file->Find("logits_0");
  EXPECT_THAT(first.shape, ElementsAre(5, 4096));
  EXPECT_THAT(file->Find("logits_1")->shape, ElementsAre(3, 4096));
  const std::vector<float> logits = *CopyElements<float>(first);
  for (int i = 0; i < 5; ++i) {
    const auto row = logits.begin() + i * 4096;
    EXPECT_EQ(std::max_element(row, row + 4096) - row, lines[0].at("tokens")[i]) << i;
  }
}

TEST(DecodeRunTest, LogProbabilitiesComeWithTheTokens) {
  const std::vector<json> lines = DecodeJson({.prompts = {{.content = "foo\n"}},
                                              .max_new_tokens = 5,
                                              .num_log_probs = 2,
                                              .dtype = DType::kFloat32});
  const json& log_probs = lines[0].at("log_probs");
  ASSERT_EQ(log_probs.size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(log_probs[i].at("rank"), 1);  // greedy
    EXPECT_EQ(log_probs[i].at("top").size(), 2u);
    EXPECT_EQ(log_probs[i].at("top")[0][0], lines[0].at("tokens")[i]);
    EXPECT_EQ(log_probs[i].at("top")[0][1], log_probs[i].at("log_prob"));
    EXPECT_LE(log_probs[i].at("log_prob").get<double>(), 0);
  }
  EXPECT_FALSE(DecodeJson({.max_new_tokens = 1})[0].contains("log_probs"));
}

TEST(DecodeRunTest, PenaltiesChangeWhatIsLikeliest) {
  const DecodeOptions options = {.prompts = {{.content = "foo\n"}},
                                 .max_new_tokens = 40,
                                 .stop = StopChoice::kAtLengthOnly,
                                 .dtype = DType::kFloat32};
  DecodeOptions penalised = options;
  penalised.sampling.presence_penalty = 100;  // no token comes twice
  std::vector<int> tokens = DecodeJson(penalised)[0].at("tokens").get<std::vector<int>>();
  EXPECT_NE(tokens, DecodeJson(options)[0].at("tokens").get<std::vector<int>>());
  std::sort(tokens.begin(), tokens.end());
  EXPECT_EQ(std::adjacent_find(tokens.begin(), tokens.end()), tokens.end());
}

TEST(DecodeRunTest, ATextEndsBeforeItsStop) {
  const std::vector<json> lines = DecodeJson({.prompts = {{.content = "YEAR, n."}},
                                              .stops = {.texts = {"no such text", "ee hund"}},
                                              .dtype = DType::kFloat32});
  EXPECT_EQ(lines[0].at("text"), "  A period of thr");
  EXPECT_EQ(lines[0].at("finish_reason"), "stop");
}

TEST(DecodeRunTest, PerplexityByChunksIsThatByTokens) {
  const std::string path = testing::TempDir() + "/decode_run_text";
  std::ofstream(path) << "YEAR, n.  A period of three hundred and sixty-five disappointments.\n";
  DecodeOptions options = {.dtype = DType::kFloat32, .perplexity = path};
  std::vector<json> whole = DecodeJson(options);
  ASSERT_THAT(whole, SizeIs(2));
  options.engine.scheduler.prefill_chunk = 1;
  const std::vector<json> steps = DecodeJson(options);
  const int num_tokens = whole[0].at("tokens");
  EXPECT_GT(num_tokens, 15);
  EXPECT_EQ(steps[0].at("tokens"), num_tokens);
  const double perplexity = whole[0].at("perplexity");
  EXPECT_NEAR(steps[0].at("perplexity").get<double>(), perplexity, 1e-4 * perplexity);
  EXPECT_GT(perplexity, 1);
  EXPECT_LT(perplexity, 100);  // the model was trained on it
  EXPECT_EQ(whole[1].at("stats").at("steps"), 1);
  EXPECT_EQ(steps[1].at("stats").at("steps"), num_tokens + 1);
  const Output output = Decode({.dtype = DType::kFloat32, .perplexity = path});
  EXPECT_THAT(output.out, StartsWith("perplexity "));
}

TEST(DecodeRunTest, AModelWithoutATokenizerTakesAndGivesIds) {
  const std::string model = CopyDefaultModel("no_tokenizer");
  std::filesystem::remove(model + "/tokenizer.json");
  const DecodeOptions options = {.model = model,
                                 .prompts = {{.content = TokenList{0, 1765, 200}}},
                                 .max_new_tokens = 3,
                                 .dtype = DType::kFloat32};
  const Output output = Decode(options);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.out, "16 1765 1251\n");
  EXPECT_EQ(DecodeJson(options)[0].at("text"), nullptr);
}

TEST(DecodeRunTest, ATokenizerThatCannotBeReadRefusesTextsOnly) {
  const std::string model = CopyDefaultModel("unreadable_tokenizer");
  WriteWholeFile(model + "/tokenizer.json", R"({"version":"1.0","model":{"type":"Unigram"}})");
  DecodeOptions options = {.model = model,
                           .prompts = {{.content = TokenList{0, 1765, 200}}},
                           .max_new_tokens = 3,
                           .dtype = DType::kFloat32};
  const Output output = Decode(options);
  ASSERT_TRUE(output.status.ok()) << output.status;
  EXPECT_EQ(output.out, "16 1765 1251\n");
  options.prompts = {{.content = "foo\n"}};
  EXPECT_EQ(std::string(Decode(options).status.message()),
            "prompt 1 is a text, but the tokenizer cannot be read (" + model +
                "/tokenizer.json: model: type: expected \"BPE\", got \"Unigram\"): give token ids");
}

TEST(DecodeRunTest, MoreSequencesThanTheCacheHoldsMakeWayForEachOther) {
  const std::vector<Prompt> prompts(6, {.content = "foo\n"});
  const std::vector<json> lines = DecodeJson(
      {.prompts = prompts,
       .max_new_tokens = 40,
       .dtype = DType::kFloat32,
       .engine = {.runner = {.cache = {.block_size = 4,
                                       .size = NumBlocks{1 + 25}}}}});  // 43 tokens are 11 blocks
  for (int i = 1; i < 6; ++i) EXPECT_EQ(lines[i], lines[0]) << i;
  EXPECT_GT(lines[6].at("stats").at("preemptions"), 0);
  EXPECT_LE(lines[6].at("stats").at("peak_used_blocks"), 25);
}

TEST(DecodeRunTest, ASequenceThatFillsTheCacheSaysSo) {
  const std::vector<json> lines =
      DecodeJson({.prompts = {{.content = "foo\n"}},
                  .max_new_tokens = 100,
                  .dtype = DType::kFloat32,
                  .engine = {.runner = {.cache = {.block_size = 4, .size = NumBlocks{3}}}}});
  EXPECT_EQ(lines[0].at("finish_reason"), "cache_full");
  EXPECT_EQ(lines[0].at("tokens").size(),
            6u);  // 8 keys: 3 of the prompt, 5 more; the last has none
}

TEST(DecodeRunTest, LogitsThatCannotBeWrittenAreNotLostInSilence) {
  const Output output = Decode({.max_new_tokens = 1, .dump_logits = "/no/such/folder/l"});
  EXPECT_THAT(std::string(output.status.message()), HasSubstr("/no/such/folder/l"));
  EXPECT_NE(output.out, "");
}

TEST(DecodeRunTest, ATraceHasTheSpansOfEngineRunnerAndDevice) {
  const std::string path = testing::TempDir() + "/decode_run_trace.json";
  const std::vector<json> lines = DecodeJson({.prompts = {{.content = "foo\n"}},
                                              .max_new_tokens = 6,
                                              .dtype = DType::kFloat32,
                                              .trace = path});
  std::ifstream file(path);
  std::map<std::string, int> counts;  // of the host
  std::map<std::string, int> on_device;
  const json trace = json::parse(file);
  for (const json& event : trace.at("traceEvents")) {
    const bool is_of_device = event.at("ph") == "X" && event.at("tid") == 2;
    ++(is_of_device ? on_device : counts)[event.at("name").get<std::string>()];
  }
  EXPECT_EQ(lines[1].at("stats").at("steps"), 6);
  EXPECT_EQ(counts["eager"], 1);  // the prompt
  EXPECT_EQ(counts["replay"], 5);
  EXPECT_EQ(counts["rows"], counts["launch"]);
  EXPECT_EQ(counts["launch"], counts["await"]);
  EXPECT_EQ(counts["commit"], counts["await"]);
  EXPECT_GE(counts["schedule"], counts["launch"]);
  EXPECT_GE(counts["engine"], counts["launch"]);
  EXPECT_EQ(on_device["eager"], 1);
  EXPECT_EQ(on_device["replay"], 5);
  EXPECT_EQ(on_device["sample"], 6);
}

TEST(DecodeRunTest, ATraceThatCannotBeWrittenIsNotLostInSilence) {
  const Output output = Decode({.max_new_tokens = 1, .trace = "/no/such/folder/t"});
  EXPECT_THAT(std::string(output.status.message()), HasSubstr("/no/such/folder/t"));
  EXPECT_NE(output.out, "");
}

// At 16 times the window, in every layer, or the chunk, in all but the last of four.
TEST(DecodeRunTest, WindowsAndChunksHoldFewBlocksHoweverLongATextBecomes) {
  constexpr int kSpan = 16;
  constexpr int kLength = 16 * kSpan;
  const auto stats_of = [](const char* model) {
    return DecodeJson({.model = model,
                       .prompts = {{.content = TokenList{3, 1, 4, 1, 5, 9, 2, 6}}},
                       .max_new_tokens = kLength - 8,
                       .stop = StopChoice::kAtLengthOnly,
                       .dtype = DType::kFloat32,
                       .engine = {.runner = {.cache = {.block_size = 4}}}})
        .back()
        .at("stats");
  };
  // One step more than the span, and a block that it shares with freed keys.
  constexpr int kSpanBlocks = (kSpan + 1) / 4 + 1;
  const json window = stats_of("tests/goldens/mistral-window");
  EXPECT_THAT(window.at("kv_groups"), ElementsAre("window 16"));
  EXPECT_LE(window.at("peak_used_blocks"), kSpanBlocks);
  EXPECT_EQ(window.at("graph_hits"), kLength - 8 - 1);
  const json chunk = stats_of("tests/goldens/llama4-chunked");
  EXPECT_THAT(chunk.at("kv_groups"), ElementsAre("chunk 16", "full"));
  EXPECT_LE(chunk.at("peak_used_blocks"), kLength / 4 + kSpanBlocks);
  EXPECT_EQ(chunk.at("graph_hits"), kLength - 8 - 1);
}

class DecodeFamilyTest : public testing::TestWithParam<const char*> {};

TEST_P(DecodeFamilyTest, WritesTheGoldenTokensByReplays) {
  ExpectDecodeIsGolden(GetParam(), DeviceChoice::kCpu);
}

INSTANTIATE_TEST_SUITE_P(Families, DecodeFamilyTest, testing::ValuesIn(kDecodeGoldens),
                         DecodeGoldenName);

TEST(DecodeRunTest, AnEncodersInputIsWhatIsGivenAsThePrompt) {
  const std::string folder = "tests/goldens/bart";
  const auto golden = SafetensorsFile::Open(folder + "/golden.safetensors");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto tokens = [&](const std::string& name) {
    const std::vector<int64_t> ids = *CopyElements<int64_t>(*golden->Find(name));
    return TokenList(ids.begin(), ids.end());
  };
  constexpr int kNumTokens = 6;
  DecodeOptions options = {.model = folder,
                           .max_new_tokens = kNumTokens,
                           .stop = StopChoice::kAtLengthOnly,
                           .dtype = DType::kFloat32};
  for (const char* name : {"encoder_4", "encoder_1"}) {
    options.prompts.push_back({.content = tokens(name)});
  }
  const std::vector<json> lines = DecodeJson(options);
  ASSERT_THAT(lines, SizeIs(3));
  const TokenList longest = tokens("tokens_4");
  const TokenList short_one = tokens("tokens_1");
  EXPECT_EQ(lines[0].at("tokens").get<TokenList>(),
            TokenList(longest.begin(), longest.begin() + kNumTokens));
  EXPECT_EQ(lines[1].at("tokens").get<TokenList>(),
            TokenList(short_one.begin(), short_one.begin() + kNumTokens));
  EXPECT_EQ(lines[0].at("prompt_tokens").get<TokenList>(), tokens("encoder_4"));
  EXPECT_EQ(lines[2].at("stats").at("graph_hits"), kNumTokens);
  options.prompts = {{.content = TokenList(257, 5)}};
  EXPECT_THAT(std::string(Decode(options).status.message()),
              HasSubstr("encoder_tokens are too long: expected at most 256, got 257"));
}

}  // namespace
}  // namespace reprise
