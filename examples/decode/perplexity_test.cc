#include "examples/decode/perplexity.h"

#include <cmath>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/models/model_folder.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelFolder Jargon() {
  auto folder = ModelFolder::Open(*DefaultModelFolder());
  EXPECT_TRUE(folder.ok()) << folder.status();
  return *std::move(folder);
}

std::string FileOf(const std::string& text) {
  std::string path = testing::TempDir() + "/perplexity_text";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(PerplexityTest, WindowsScoreEachTokenButTheFirstOnce) {
  const ModelFolder folder = Jargon();
  const std::string text = "A period of three hundred and sixty-five disappointments.\n";
  const std::vector<int32_t> tokens = *folder.tokenizer->Encode(text);
  const std::string path = FileOf(text);
  for (const int window : {2, 3, 7, static_cast<int>(tokens.size()), 1000}) {
    const auto requests = MakeScoringRequests(path, folder, window);
    ASSERT_TRUE(requests.ok()) << requests.status();
    std::vector<int32_t> scored;
    for (const Request& request : *requests) {
      EXPECT_EQ(request.max_new_tokens, 0);
      EXPECT_EQ(request.num_prompt_log_probs, 0);
      EXPECT_GE(request.prompt.size(), 2u);
      EXPECT_LE(request.prompt.size(), static_cast<size_t>(window));
      if (!scored.empty()) {
        EXPECT_EQ(request.prompt.front(), scored.back());
      }
      scored.insert(scored.end(), request.prompt.begin() + 1, request.prompt.end());
    }
    EXPECT_EQ(scored, std::vector<int32_t>(tokens.begin() + 1, tokens.end())) << window;
  }
}

TEST(PerplexityTest, TextsThatCannotBeScoredAreNamed) {
  const ModelFolder folder = Jargon();
  const auto problem = [&](const std::string& path, const ModelFolder& model) {
    return std::string(MakeScoringRequests(path, model, 10).status().message());
  };
  EXPECT_THAT(problem("/no/such/text", folder), HasSubstr("/no/such/text"));
  EXPECT_THAT(problem(FileOf("a\xff"), folder), HasSubstr("perplexity_text"));
  EXPECT_THAT(problem(FileOf(""), folder), HasSubstr("at least two tokens"));
  EXPECT_THAT(problem(FileOf("a"), {.path = "/m", .config = folder.config, .tokenizer = {}}),
              AllOf(HasSubstr("/m"), HasSubstr("tokenizer.json")));
  EXPECT_THAT(problem(FileOf("a b"),
                      {.path = "/m", .config = BartConfig(), .tokenizer = Jargon().tokenizer}),
              HasSubstr("encoder"));
}

TEST(PerplexityTest, IsTheInverseGeometricMeanOfProbabilities) {
  PerplexityMeter meter;
  TokenEvent event;
  EXPECT_EQ(meter.Add(event).code(), absl::StatusCode::kInternal);
  event.prompt_log_probs = std::make_shared<const std::vector<TokenLogProbs>>(
      std::vector<TokenLogProbs>{{.log_prob = std::log(0.5f)}, {.log_prob = std::log(0.125f)}});
  ASSERT_TRUE(meter.Add(event).ok());
  EXPECT_EQ(meter.result().num_tokens, 2);
  EXPECT_NEAR(meter.result().perplexity(), 4, 1e-6);
  ASSERT_TRUE(meter.Add(event).ok());
  EXPECT_NEAR(meter.result().perplexity(), 4, 1e-6);
  EXPECT_EQ(Summary(meter.result()), "perplexity 4.0000 over 4 tokens");
  EXPECT_THAT(ToJson({.num_tokens = 1}),
              "{\"perplexity\":1.0,\"tokens\":1,\"log_likelihood\":0.0}");
}

}  // namespace
}  // namespace reprise
