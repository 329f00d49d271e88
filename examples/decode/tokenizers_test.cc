// Folders as users download them, in small: a family's config, weights, tokenizer.json of its kind,
// and end tokens in both files.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "examples/decode/options.h"
#include "examples/decode/run.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/dtype.h"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/streamed_text.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer_json.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/models/decoder/random_checkpoint.h"

namespace reprise {
namespace {

using nlohmann::json;

struct Family {
  const char* config;
  const char* tokenizer;
};

class DecodeTokenizersTest : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    const absl::StatusOr<json> file = ReadJsonFile(
        absl::StrCat("examples/hf/tokenizer/testdata/", GetParam().tokenizer, ".json"));
    ASSERT_TRUE(file.ok()) << file.status();
    folder_ = absl::StrCat(testing::TempDir(), "/", GetParam().tokenizer);
    std::filesystem::remove_all(folder_);
    const auto spec = ParseTokenizerJson((*file)["tokenizer"]);
    ASSERT_TRUE(spec.ok()) << spec.status();
    tokenizer_ = *Tokenizer::Create(*spec);
    json config = InSmall(*PublicConfig(GetParam().config));
    config["vocab_size"] = tokenizer_->vocab_size();
    const absl::Status status = WriteRandomCheckpoint(folder_, config, {});
    ASSERT_TRUE(status.ok()) << status;
    std::ofstream(folder_ + "/tokenizer.json") << (*file)["tokenizer"];
  }

  // What is written to standard output.
  std::string Decode(const std::vector<std::string>& texts, OutputChoice output,
                     StopChoice stop) const {
    DecodeOptions options = {.model = folder_,
                             .max_new_tokens = 40,
                             .stop = stop,
                             .dtype = DType::kFloat32,
                             .device = DeviceChoice::kCpu,
                             .output = output};
    for (const std::string& text : texts) options.prompts.push_back({.content = text});
    std::ostringstream out;
    std::ostringstream err;
    const absl::Status status = RunDecode(options, {.out = out, .err = err});
    EXPECT_TRUE(status.ok()) << status;
    return out.str();
  }

  std::vector<json> Generations(const std::vector<std::string>& texts, StopChoice stop) const {
    std::vector<json> lines;
    const std::string out = Decode(texts, OutputChoice::kJson, stop);
    for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
      lines.push_back(json::parse(line.begin(), line.end()));
    }
    lines.pop_back();  // statistics
    return lines;
  }

  std::string folder_;
  std::optional<Tokenizer> tokenizer_;
};

TEST_P(DecodeTokenizersTest, TextsGoInAndComeOutByTheFamilysTokenizer) {
  const std::vector<std::string> prompts = {"The lazy dog", " e\u0301 🙂\n\n a",
                                            "<0x41> 東京 1234"};
  const std::vector<json> generations = Generations(prompts, StopChoice::kAtLengthOnly);
  ASSERT_EQ(generations.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(prompts[i]);
    EXPECT_EQ(generations[i].at("prompt_tokens").get<TokenList>(), *tokenizer_->Encode(prompts[i]));
    const TokenList tokens = generations[i].at("tokens");
    EXPECT_EQ(tokens.size(), 40u);
    // The text of all tokens without the text of the prompt.
    TokenList all = generations[i].at("prompt_tokens");
    const std::string prompt = StreamedText(*tokenizer_, all, SpecialTokenText::kSkip);
    all.insert(all.end(), tokens.begin(), tokens.end());
    const std::string text =
        StreamedText(*tokenizer_, all, SpecialTokenText::kSkip).substr(prompt.size());
    EXPECT_EQ(generations[i].at("text"), text);
    // As it is shown while it is made.
    EXPECT_EQ(Decode({prompts[i]}, OutputChoice::kText, StopChoice::kAtLengthOnly), text + "\n");
  }
}

TEST_P(DecodeTokenizersTest, AnyOfSeveralEndTokensEndsAText) {
  const std::string prompt = "Hello";
  const TokenList all = Generations({prompt}, StopChoice::kAtLengthOnly)[0].at("tokens");
  // The first token that comes up later than others, as one of three.
  const auto last = std::find_if(all.begin() + 1, all.end(), [&](int32_t token) {
    return std::find(all.begin(), all.end(), token) - all.begin() > 2;
  });
  ASSERT_NE(last, all.end());
  int32_t unused = 0;
  while (std::find(all.begin(), all.end(), unused) != all.end()) ++unused;
  json config = *ReadJsonFile(folder_ + "/config.json");
  config["eos_token_id"] = unused;
  std::ofstream(folder_ + "/config.json") << config;
  std::ofstream(folder_ + "/generation_config.json")
      << json{{"eos_token_id", {unused, *last}}, {"do_sample", true}, {"temperature", 0.6}};
  const json generation = Generations({prompt}, StopChoice::kAtEndOfText)[0];
  EXPECT_EQ(generation.at("tokens").get<TokenList>(), TokenList(all.begin(), last + 1));
  EXPECT_EQ(generation.at("finish_reason"), "stop");
}

INSTANTIATE_TEST_SUITE_P(All, DecodeTokenizersTest,
                         testing::Values(Family{"llama-3.1-8b", "llama3"},
                                         Family{"llama-3.1-8b", "llama2"},
                                         Family{"mistral-7b", "mistral3"},
                                         Family{"qwen2.5-7b", "qwen2"},
                                         Family{"gemma-2-2b", "gemma2"}),
                         [](const auto& info) { return std::string(info.param.tokenizer); });

}  // namespace
}  // namespace reprise
