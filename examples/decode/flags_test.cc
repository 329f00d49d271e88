#include "examples/decode/flags.h"

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
using testing::Not;

absl::StatusOr<ParsedFlags> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), "decode");
  return ParseDecodeFlags(static_cast<int>(words.size()), words.data());
}

DecodeArguments Parsed(const std::vector<const char*>& words) {
  const absl::StatusOr<ParsedFlags> parsed = Parse(words);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? parsed->arguments : DecodeArguments();
}

std::string Problem(const std::vector<const char*>& words) {
  const absl::StatusOr<ParsedFlags> parsed = Parse(words);
  EXPECT_FALSE(parsed.ok());
  return std::string(parsed.status().message());
}

TEST(DecodeFlagsTest, WithoutACommandItIsRun) {
  EXPECT_EQ(Parsed({}).command, DecodeCommand::kRun);
  EXPECT_EQ(Parsed({"--prompt", "serve"}).command, DecodeCommand::kRun);
  EXPECT_THAT(Parsed({"--prompt", "serve"}).texts, ElementsAre("serve"));
  EXPECT_THAT(Parsed({"--", "serve"}).texts, ElementsAre("serve"));
  EXPECT_THAT(Parsed({"run", "a", "serve"}).texts, ElementsAre("a", "serve"));
}

TEST(DecodeFlagsTest, ServeHasFlagsOfItsOwn) {
  const DecodeArguments arguments =
      Parsed({"serve", "--socket=/s", "--max_num_seqs", "3", "--max_seq_len=5", "--max_waiting=7",
              "--temperature", "0.5", "--stop", "x"});
  EXPECT_EQ(arguments.command, DecodeCommand::kServe);
  EXPECT_EQ(arguments.socket, "/s");
  EXPECT_EQ(arguments.engine.runner.max_num_seqs, 3);
  EXPECT_EQ(arguments.engine.runner.max_seq_len, 5);
  EXPECT_EQ(arguments.engine.scheduler.max_waiting, 7);
  EXPECT_EQ(arguments.temperature, 0.5);
  EXPECT_THAT(arguments.stops, ElementsAre("x"));
}

TEST(DecodeFlagsTest, RunAndServeMayLeaveOutSpecialTokens) {
  EXPECT_TRUE(Parsed({}).add_special_tokens);
  EXPECT_TRUE(Parsed({"--add_special_tokens"}).add_special_tokens);
  EXPECT_FALSE(Parsed({"--noadd_special_tokens"}).add_special_tokens);
  EXPECT_FALSE(Parsed({"--add_special_tokens=false", "a"}).add_special_tokens);
  EXPECT_FALSE(Parsed({"serve", "--noadd_special_tokens"}).add_special_tokens);
  EXPECT_THAT(Problem({"chat", "--noadd_special_tokens"}), HasSubstr("add_special_tokens"));
}

TEST(DecodeFlagsTest, AFlagOfAnotherCommandIsUnknown) {
  EXPECT_THAT(Problem({"--socket=/s"}), HasSubstr("--socket"));
  EXPECT_THAT(Problem({"serve", "--dump_logits=/l"}), HasSubstr("--dump_logits"));
  EXPECT_THAT(Problem({"perplexity", "f", "--max_new_tokens=3"}), HasSubstr("--max_new_tokens"));
}

TEST(DecodeFlagsTest, TextsWithoutAFlagAreWhatTheCommandTakes) {
  EXPECT_EQ(Problem({"serve", "hello"}), "serve: expected flags only, got \"hello\"");
  const DecodeArguments scored = Parsed({"perplexity", "/tmp/f", "--json"});
  EXPECT_EQ(scored.perplexity, "/tmp/f");
  EXPECT_THAT(scored.texts, IsEmpty());
  EXPECT_TRUE(scored.json);
  EXPECT_EQ(Problem({"perplexity"}), "perplexity: expected one file, got 0");
  EXPECT_EQ(Problem({"perplexity", "a", "b"}), "perplexity: expected one file, got 2");
}

TEST(DecodeFlagsTest, HelpIsOfTheCommand) {
  const auto help = [](const std::vector<const char*>& words) {
    const absl::StatusOr<ParsedFlags> parsed = Parse(words);
    return parsed.ok() ? parsed->help.value_or("") : "";
  };
  EXPECT_THAT(help({"--help"}), AllOf(HasSubstr("--batch"), Not(HasSubstr("--socket"))));
  EXPECT_THAT(help({"serve", "--help"}), AllOf(HasSubstr("--socket"), Not(HasSubstr("--batch "))));
  EXPECT_THAT(help({"perplexity", "--help"}),
              AllOf(HasSubstr("decode perplexity FILE"), HasSubstr("--kv_dtype")));
}

TEST(DecodeFlagsTest, CommandsHaveNames) {
  EXPECT_EQ(CommandName(DecodeCommand::kRun), "run");
  EXPECT_EQ(CommandName(DecodeCommand::kServe), "serve");
  EXPECT_EQ(CommandName(DecodeCommand::kPerplexity), "perplexity");
}

}  // namespace
}  // namespace reprise
