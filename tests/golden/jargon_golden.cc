#include "tests/golden/jargon_golden.h"

#include <optional>
#include <sstream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "examples/decode/run.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/hf/json_fields.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/strict_json.h"

namespace reprise {
namespace {

constexpr size_t kMaxTokens = 96;

absl::StatusOr<TokenList> Tokens(const JsonFields& fields, const char* name) {
  REPRISE_ASSIGN_OR_RETURN(const std::optional<std::vector<int64_t>> ids,
                           fields.OptionalInts(name, {}));
  if (!ids.has_value()) return fields.Unexpected(name, "a list of token ids");
  return TokenList(ids->begin(), ids->end());
}

}  // namespace

absl::StatusOr<std::vector<JargonText>> LoadJargonTexts() {
  const std::optional<std::string> path =
      FindData("tests/goldens/jargon-llama/greedy.json", DataRoots());
  if (!path.has_value()) return absl::NotFoundError("greedy.json of jargon-llama was not found");
  REPRISE_ASSIGN_OR_RETURN(const nlohmann::json json, ReadJsonFile(*path));
  if (!json.is_array()) return absl::InvalidArgumentError("greedy.json is no list");
  std::vector<JargonText> texts;
  for (const nlohmann::json& entry : json) {
    REPRISE_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Of(entry, "greedy.json"));
    JargonText text;
    REPRISE_ASSIGN_OR_RETURN(text.prompt, fields.String("prompt"));
    REPRISE_ASSIGN_OR_RETURN(text.prompt_tokens, Tokens(fields, "prompt_ids"));
    REPRISE_ASSIGN_OR_RETURN(text.tokens, Tokens(fields, "tokens"));
    REPRISE_ASSIGN_OR_RETURN(text.text, fields.String("text"));
    texts.push_back(std::move(text));
  }
  return texts;
}

nlohmann::json ExpectJargonTexts(DecodeOptions options, absl::Span<const JargonText> texts,
                                 absl::Span<const int> order) {
  for (const int i : order) options.prompts.push_back({.content = texts[i].prompt});
  options.max_new_tokens = kMaxTokens;
  options.output = OutputChoice::kJson;
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunDecode(options, {.out = out, .err = err});
  EXPECT_TRUE(status.ok()) << status;
  const std::vector<std::string> lines = absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  if (lines.size() != order.size() + 1) {
    ADD_FAILURE() << lines.size() << " lines for " << order.size() << " prompts";
    return {};
  }
  for (size_t row = 0; row < order.size(); ++row) {
    const JargonText& expected = texts[order[row]];
    const nlohmann::json got = nlohmann::json::parse(lines[row]);
    EXPECT_EQ(got.at("prompt_tokens").get<TokenList>(), expected.prompt_tokens);
    EXPECT_EQ(got.at("tokens").get<TokenList>(), expected.tokens) << expected.prompt;
    EXPECT_EQ(got.at("text"), expected.text);
    EXPECT_EQ(got.at("finish_reason"), expected.tokens.size() < kMaxTokens ? "stop" : "length");
  }
  return nlohmann::json::parse(lines.back()).at("stats");
}

}  // namespace reprise
