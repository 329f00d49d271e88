#include "examples/decode/serve/protocol.h"

#include <cstdint>
#include <limits>
#include <string>
#include <variant>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

ServeRequest Parsed(std::string_view line, const DecodeOptions& defaults = {}) {
  const ServeLine parsed = ParseServeLine(line, defaults);
  EXPECT_TRUE(parsed.command.ok()) << parsed.command.status();
  if (!parsed.command.ok()) return {};
  EXPECT_TRUE(std::holds_alternative<ServeRequest>(*parsed.command));
  return std::get<ServeRequest>(*parsed.command);
}

std::string Problem(std::string_view line) {
  const ServeLine parsed = ParseServeLine(line, {});
  EXPECT_FALSE(parsed.command.ok());
  return std::string(parsed.command.status().message());
}

TEST(ServeProtocolTest, ALineTakesTheProgramsOptionsForWhatItDoesNotSay) {
  DecodeOptions defaults;
  defaults.max_new_tokens = 7;
  defaults.sampling.temperature = 0.5f;
  defaults.stops = {.texts = {"end"}, .is_included = true};
  defaults.stop_tokens = {8};
  const ServeRequest request = Parsed(R"({"id":1,"prompt":"a"})", defaults);
  EXPECT_EQ(request.prompt, Prompt{.content = "a"});
  EXPECT_EQ(request.options.max_new_tokens, 7);
  EXPECT_EQ(request.options.sampling.temperature, 0.5f);
  EXPECT_THAT(request.options.stops.texts, ElementsAre("end"));
  EXPECT_TRUE(request.options.stops.is_included);
  EXPECT_THAT(request.options.stop_tokens, ElementsAre(8));
  EXPECT_EQ(request.priority, 0);
  EXPECT_EQ(request.timeout, absl::InfiniteDuration());
}

TEST(ServeProtocolTest, TakesEveryField) {
  const ServeRequest request = Parsed(
      R"({"id":"x","prompt_tokens":[5,6],"max_new_tokens":9,"ignore_eos":true,"temperature":0.75,)"
      R"("top_k":4,"top_p":0.5,"min_p":0.25,"seed":18446744073709551615,"repetition_penalty":1.5,)"
      R"("presence_penalty":-1,"frequency_penalty":2,"stop":["a","b"],"log_probs":3,)"
      R"("stop_tokens":[7,8],"include_stop":true,)"
      R"("priority":-2,"timeout_s":1.5})");
  EXPECT_EQ(request.prompt, (Prompt{.content = TokenList{5, 6}}));
  EXPECT_EQ(request.options.max_new_tokens, 9);
  EXPECT_EQ(request.options.stop, StopChoice::kAtLengthOnly);
  EXPECT_EQ(request.options.sampling.temperature, 0.75f);
  EXPECT_EQ(request.options.sampling.top_k, 4);
  EXPECT_EQ(request.options.sampling.top_p, 0.5f);
  EXPECT_EQ(request.options.sampling.min_p, 0.25f);
  EXPECT_EQ(request.options.sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(request.options.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(request.options.sampling.presence_penalty, -1.0f);
  EXPECT_EQ(request.options.sampling.frequency_penalty, 2.0f);
  EXPECT_THAT(request.options.stops.texts, ElementsAre("a", "b"));
  EXPECT_TRUE(request.options.stops.is_included);
  EXPECT_THAT(request.options.stop_tokens, ElementsAre(7, 8));
  EXPECT_EQ(request.options.num_log_probs, 3);
  EXPECT_EQ(request.priority, -2);
  EXPECT_EQ(request.timeout, absl::Milliseconds(1500));
  EXPECT_THAT(Parsed(R"({"id":1,"prompt":"a","stop":"one"})").options.stops.texts,
              ElementsAre("one"));
  EXPECT_THAT(Parsed(R"({"id":1,"prompt":"a","stop_tokens":7})").options.stop_tokens,
              ElementsAre(7));
}

TEST(ServeProtocolTest, AnAnswerMayBePredicted) {
  EXPECT_EQ(Parsed(R"({"id":1,"prompt":"a"})").predicted, std::nullopt);
  EXPECT_EQ(Parsed(R"({"id":1,"prompt":"a","predicted":"b c"})").predicted,
            (Prompt{.content = "b c"}));
  EXPECT_EQ(Parsed(R"({"id":1,"prompt":"a","predicted_tokens":[4,5]})").predicted,
            (Prompt{.content = TokenList{4, 5}}));
  EXPECT_THAT(Problem(R"({"id":1,"prompt":"a","predicted_tokens":[-4]})"),
              StartsWith("line: predicted: "));
  EXPECT_THAT(Problem(R"({"id":1,"prompt":"a","predicted":7})"), StartsWith("line: predicted: "));
}

TEST(ServeProtocolTest, ALineMayLeaveOutSpecialTokens) {
  DecodeOptions defaults;
  EXPECT_TRUE(Parsed(R"({"id":1,"prompt":"a"})", defaults).options.adds_special_tokens);
  EXPECT_FALSE(Parsed(R"({"id":1,"prompt":"a","add_special_tokens":false})", defaults)
                   .options.adds_special_tokens);
  defaults.adds_special_tokens = false;
  EXPECT_FALSE(Parsed(R"({"id":1,"prompt":"a"})", defaults).options.adds_special_tokens);
  EXPECT_TRUE(Parsed(R"({"id":1,"prompt":"a","add_special_tokens":true})", defaults)
                  .options.adds_special_tokens);
  EXPECT_EQ(Problem(R"({"id":1,"prompt":"a","add_special_tokens":1})"),
            "line: add_special_tokens: expected true or false, got 1");
}

TEST(ServeProtocolTest, IdsAreTextsOrIntegers) {
  EXPECT_EQ(ParseServeLine(R"({"id":-7,"prompt":"a"})", {}).id, "-7");
  EXPECT_EQ(ParseServeLine(R"({"id":"7","prompt":"a"})", {}).id, "\"7\"");
  const ServeLine cancel = ParseServeLine(R"({"cancel":"a\"b"})", {});
  EXPECT_EQ(cancel.id, R"("a\"b")");
  ASSERT_TRUE(cancel.command.ok());
  EXPECT_TRUE(std::holds_alternative<ServeCancel>(*cancel.command));
  for (const char* const id : {"1.5", "true", "[1]", "{}", "null"}) {
    EXPECT_THAT(Problem(absl::StrCat(R"({"prompt":"a","id":)", id, "}")),
                StartsWith("line: id: expected a text of at most 256 bytes or an integer, got"));
  }
  EXPECT_THAT(Problem(absl::StrCat(R"({"prompt":"a","id":")", std::string(257, 'x'), "\"}")),
              StartsWith("line: id:"));
}

TEST(ServeProtocolTest, WhatCannotBeServedIsNamed) {
  const struct {
    const char* line;
    const char* expected;
  } cases[] = {
      {"hello", "JSON"},
      {"{\"id\":1,", "JSON"},
      {"[1,2]", "line: expected an object"},
      {"7", "line: expected an object"},
      {"{\"id\":1,\"prompt\":\"\xff\"}", "JSON"},
      {R"({"id":1,"id":2,"prompt":"a"})", "twice"},
      {R"({"prompt":"a"})", "line: id:"},
      {R"({"id":1})", "line: prompt: expected either \"prompt\" or \"prompt_tokens\", got neither"},
      {R"({"id":1,"prompt":"a","prompt_tokens":[1]})", "got both"},
      {R"({"id":1,"prompt":""})", "line: prompt: is empty"},
      {R"({"id":1,"prompt":5})", "prompt"},
      {R"({"id":1,"prompt_tokens":[]})", "prompt_tokens is empty"},
      {R"({"id":1,"prompt_tokens":[-1]})", "prompt_tokens[0]"},
      {R"({"id":1,"prompt_tokens":[1.5]})", "prompt_tokens[0]"},
      {R"({"id":1,"prompt":"a","temprature":1})", "temprature"},
      {R"({"id":1,"prompt":"a","temperature":"hot"})", "line: temperature: expected"},
      {R"({"id":1,"prompt":"a","temperature":-1})", "line: temperature: expected"},
      {R"({"id":1,"prompt":"a","temperature":1e999})", "number"},
      {R"({"id":1,"prompt":"a","top_k":0.5})", "line: top_k: expected"},
      {R"({"id":1,"prompt":"a","top_p":2})", "line: top_p: expected a number in (0, 1], got 2"},
      {R"({"id":1,"prompt":"a","top_p":0})", "line: top_p: expected a number in (0, 1], got 0"},
      {R"({"id":1,"prompt":"a","top_p":-0.1})", "line: top_p: expected a number in (0, 1], got"},
      {R"({"id":1,"prompt":"a","top_p":1e-50})", "line: top_p: expected a number in (0, 1], got"},
      {R"({"id":1,"prompt":"a","top_p":"a"})", "line: top_p: expected a number in (0, 1], got"},
      {R"({"id":1,"prompt":"a","seed":-1})",
       "line: seed: expected an integer in [0, 18446744073709551615], got -1"},
      {R"({"id":1,"prompt":"a","max_new_tokens":0})", "line: max_new_tokens: expected"},
      {R"({"id":1,"prompt":"a","log_probs":99})", "line: log_probs: expected"},
      {R"({"id":1,"prompt":"a","ignore_eos":1})", "line: ignore_eos: expected"},
      {R"({"id":1,"prompt":"a","stop":[""]})", "line: stop: expected"},
      {R"({"id":1,"prompt":"a","stop":[1]})", "line: stop: expected"},
      {R"({"id":1,"prompt":"a","stop_tokens":[-1]})", "line: stop_tokens"},
      {R"({"id":1,"prompt":"a","stop_tokens":"a"})", "line: stop_tokens: expected"},
      {R"({"id":1,"prompt":"a","include_stop":1})", "line: include_stop: expected"},
      {R"({"id":1,"prompt":"a","predicted_tokens":[]})",
       "line: predicted: predicted_tokens is empty"},
      {R"({"id":1,"prompt":"a","predicted_tokens":[-4]})",
       "line: predicted: predicted_tokens[0]: expected a token id"},
      {R"({"id":1,"prompt":"a","predicted":"b","predicted_tokens":[4]})",
       "line: predicted: expected either \"predicted\" or \"predicted_tokens\", got both"},
      {R"({"id":1,"prompt":"a","timeout_s":-1})", "line: timeout_s: expected"},
      {R"({"cancel":1,"prompt":"a"})", "prompt"},
      {R"({"id":1,"prompt":[[[[[[1]]]]]]})", "deep"},
  };
  for (const auto& [line, expected] : cases) {
    EXPECT_THAT(Problem(line), HasSubstr(expected)) << line;
  }
  // The id is known where it could be read.
  EXPECT_EQ(ParseServeLine(R"({"id":1,"prompt":5})", {}).id, "1");
  EXPECT_EQ(ParseServeLine(R"({"id":{},"prompt":5})", {}).id, "");
}

TEST(ServeProtocolTest, EventsAreOneLineOfJson) {
  EXPECT_EQ(TokenEventLine("7", {.token = 5}, "a\n\"b\""),
            R"({"event":"token","id":7,"token":5,"text":"a\n\"b\""})");
  EXPECT_EQ(TokenEventLine("\"x\"", {.token = 5}, std::nullopt),
            R"({"event":"token","id":"x","token":5,"text":null})");
  const json scored = json::parse(TokenEventLine(
      "7", {.token = 5, .log_probs = TokenLogProbs{.token = 5, .log_prob = -0.5f, .rank = 1}}, ""));
  EXPECT_EQ(scored.at("log_probs").at("log_prob"), -0.5);
  EXPECT_EQ(EndEventLine("7", {.num_cached_tokens = 2, .finish = FinishReason::kStop}, "", {3, 11}),
            R"({"event":"end","id":7,"finish_reason":"stop",)"
            R"("usage":{"prompt_tokens":3,"cached_tokens":2,"generated_tokens":11}})");
  const json failed = json::parse(EndEventLine(
      "7", {.finish = FinishReason::kError, .error = absl::InternalError("b\"ad")}, "a\n", {}));
  EXPECT_EQ(failed.at("text"), "a\n");
  EXPECT_EQ(failed.at("error"), "b\"ad");
  EXPECT_EQ(ErrorEventLine(3, "", absl::InternalError("bad\nline \xff")),
            "{\"event\":\"error\",\"line\":3,\"error\":\"bad\\nline \xef\xbf\xbd\"}");
  EXPECT_EQ(json::parse(ErrorEventLine(3, "\"a\"", absl::InternalError("x"))).at("id"), "a");
}

}  // namespace
}  // namespace reprise
