#include "examples/decode/requests.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

ModelFolder Jargon() {
  auto folder = ModelFolder::Open(*DefaultModelFolder());
  EXPECT_TRUE(folder.ok()) << folder.status();
  return *std::move(folder);
}

TEST(DecodeRequestsTest, TextsAreEncodedBehindTheBeginningOfText) {
  const auto requests = MakeRequests({{.content = "foo\n"}, {.content = TokenList{7, 8}}},
                                     {.max_new_tokens = 9}, Jargon());
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_THAT(*requests, SizeIs(2));
  EXPECT_THAT((*requests)[0].prompt, ElementsAre(0, 1765, 200));
  EXPECT_THAT((*requests)[1].prompt, ElementsAre(7, 8));  // ids are taken as they are
  EXPECT_EQ((*requests)[1].max_new_tokens, 9);
}

// A text that was rendered by a chat template begins with the BOS.
TEST(DecodeRequestsTest, SpecialTokensMayBeLeftOut) {
  const std::vector<Prompt> prompts = {{.content = "foo\n"}};
  const ModelFolder folder = Jargon();
  EXPECT_THAT((*MakeRequests(prompts, {.adds_special_tokens = false}, folder))[0].prompt,
              ElementsAre(1765, 200));
  const std::string bos(*folder.tokenizer->TokenContent(0));
  EXPECT_THAT(
      (*MakeRequests({{.content = bos + "foo\n"}}, {.adds_special_tokens = false}, folder))[0]
          .prompt,
      ElementsAre(0, 1765, 200));
}

TEST(DecodeRequestsTest, EndOfTextStopsUnlessItIsToBeIgnored) {
  const std::vector<Prompt> prompts = {{.content = TokenList{7}}};
  const ModelFolder folder = Jargon();
  EXPECT_THAT((*MakeRequests(prompts, {}, folder))[0].stop_tokens, ElementsAre(1));
  EXPECT_THAT((*MakeRequests(prompts, {.stop = StopChoice::kAtLengthOnly}, folder))[0].stop_tokens,
              IsEmpty());
}

TEST(DecodeRequestsTest, SamplingAndForcedTokensArePassedOn) {
  const auto requests =
      MakeRequests({{.content = TokenList{7}, .forced_tokens = {5, 6}}},
                   {.sampling = {.temperature = 0.5f, .top_k = 3, .seed = 11}}, Jargon());
  ASSERT_TRUE(requests.ok());
  EXPECT_THAT((*requests)[0].forced_tokens, ElementsAre(5, 6));
  EXPECT_EQ((*requests)[0].sampling.temperature, 0.5f);
  EXPECT_EQ((*requests)[0].sampling.top_k, 3);
  EXPECT_EQ((*requests)[0].sampling.seed, 11u);
}

TEST(DecodeRequestsTest, WithAnEncoderThePromptIsItsInput) {
  BartConfig config;
  config.decoder_start_token_id = 2;
  config.eos_token_ids = {3};
  const ModelFolder folder = {.path = "", .config = config, .tokenizer = Jargon().tokenizer};
  const auto requests = MakeRequests(
      {{.content = TokenList{7, 8}, .forced_tokens = {5}}, {.content = "foo\n"}}, {}, folder);
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_THAT((*requests)[0].prompt, ElementsAre(2));
  EXPECT_THAT((*requests)[0].encoder_tokens, ElementsAre(7, 8));
  EXPECT_THAT((*requests)[0].forced_tokens, ElementsAre(5));
  EXPECT_THAT((*requests)[0].stop_tokens, ElementsAre(3));
  EXPECT_THAT((*requests)[1].encoder_tokens, ElementsAre(0, 1765, 200));
}

TEST(DecodeRequestsTest, ATextNeedsATokenizer) {
  ModelFolder folder = Jargon();
  folder.tokenizer.reset();
  EXPECT_TRUE(MakeRequests({{.content = TokenList{7}}}, {}, folder).ok());
  const auto requests = MakeRequests({{.content = TokenList{7}}, {.content = "a"}}, {}, folder);
  EXPECT_THAT(std::string(requests.status().message()),
              AllOf(HasSubstr("prompt 2 is a text"), HasSubstr("no tokenizer.json")));
}

TEST(DecodeRequestsTest, ATokenizerThatCannotBeReadRefusesTextsOnly) {
  ModelFolder folder = Jargon();
  folder.tokenizer.reset();
  folder.tokenizer_error = absl::InvalidArgumentError("/m/tokenizer.json: model: no");
  const auto problem = [&](const Prompt& prompt, const DecodeOptions& options) {
    return std::string(MakeRequests({&prompt, 1}, options, folder).status().message());
  };
  const Prompt ids = {.content = TokenList{7}};
  EXPECT_EQ(problem(ids, {}), "");
  EXPECT_EQ(problem({.content = "a"}, {}),
            "prompt 1 is a text, but the tokenizer cannot be read (/m/tokenizer.json: model: no): "
            "give token ids");
  EXPECT_EQ(problem(ids, {.stops = {.texts = {"a"}}}),
            "--stop is a text, but the tokenizer cannot be read (/m/tokenizer.json: model: no)");
  EXPECT_EQ(PredictedTokens({.content = "a"}, folder).status().message(),
            "predicted is a text, but the tokenizer cannot be read (/m/tokenizer.json: model: no): "
            "give token ids");
}

TEST(DecodeRequestsTest, NamesTheStopTextsAsTheUserGaveThem) {
  ModelFolder folder = Jargon();
  folder.path = "/m";
  folder.tokenizer.reset();
  const std::vector<Prompt> prompts = {{.content = TokenList{7}}};
  EXPECT_EQ(MakeRequests(prompts, {.stops = {.texts = {"a"}}}, folder).status(),
            absl::InvalidArgumentError("--stop is a text, but /m has no tokenizer.json"));
  EXPECT_EQ(
      MakeRequests(prompts, {.stops = {.texts = {"a"}}}, folder, /*stop_name=*/"stop").status(),
      absl::InvalidArgumentError("stop is a text, but /m has no tokenizer.json"));
}

TEST(DecodeRequestsTest, StopTokensAreAddedToTheEndTokens) {
  const ModelFolder folder = Jargon();
  const std::vector<Prompt> prompts = {{.content = TokenList{7}}};
  EXPECT_THAT((*MakeRequests(prompts, {.stop_tokens = {5}}, folder))[0].stop_tokens,
              ElementsAre(1, 5));
  EXPECT_THAT(
      (*MakeRequests(prompts, {.stop = StopChoice::kAtLengthOnly, .stop_tokens = {5}}, folder))[0]
          .stop_tokens,
      ElementsAre(5));
  EXPECT_EQ(MakeRequests(prompts, {.stop_tokens = {5, 4096}}, folder).status(),
            absl::InvalidArgumentError(
                "stop_tokens must be in the vocabulary: expected ids in [0, 4096), got 4096"));
}

TEST(DecodeRequestsTest, ATextThatCannotBeEncodedIsNamedByNumber) {
  const auto requests = MakeRequests({{.content = "a"}, {.content = "\xff"}}, {}, Jargon());
  EXPECT_THAT(std::string(requests.status().message()), HasSubstr("prompt 2 "));
}

}  // namespace
}  // namespace reprise
