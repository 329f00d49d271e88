// The program itself, as a user starts it: flags, exit codes, streams, folders.

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_split.h"
#include "distributed/testing/rank_reports.h"
#include "examples/decode/model_copy.h"
#include "examples/decode/subprocess.h"
#include "examples/hf/paths.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

SubprocessResult Decode(std::vector<std::string> arguments, const SubprocessOptions& options = {}) {
  const auto program = FindData("examples/decode/decode", DataRoots());
  EXPECT_TRUE(program.has_value());
  arguments.insert(arguments.begin(), std::filesystem::absolute(*program).string());
  arguments.push_back("--device=cpu");
  return RunSubprocess(arguments, options);
}

TEST(DecodeTest, WritesTextAndASummary) {
  const SubprocessResult result = Decode({"--prompt", "YEAR, n.", "--dtype=float32"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "  A period of three hundred and sixty-five disappointments.\n");
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
}

TEST(DecodeTest, RanksWriteTheTextsOfOneRankOnce) {
  const std::vector<std::string> arguments = {"--prompt", "YEAR, n.",        "LOGIC, n.",
                                              "--json",   "--dtype=float32", "--max_new_tokens=24"};
  const auto texts = [&](const std::vector<std::string>& flags,
                         const SubprocessOptions& options = {}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), flags.begin(), flags.end());
    const SubprocessResult result = Decode(all, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(3));
    lines.pop_back();  // statistics
    return lines;
  };
  const std::vector<std::string> alone = texts({});
  EXPECT_EQ(texts({"--ranks=2"}), alone);
  EXPECT_EQ(texts({"--ranks=4", "--graphs=off", "--draft=ngram"}), alone);
  EXPECT_EQ(texts({"--ranks=1"}), alone);
}

// What `decode` writes as each of two ranks that torchrun has started, which serves no store here.
std::vector<SubprocessResult> DecodeUnderTorchrun(const std::vector<std::string>& arguments) {
  const std::string port = std::to_string(FreePort());
  std::vector<SubprocessResult> results(2);
  std::vector<std::thread> processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.emplace_back([&, rank] {
      results[rank] = Decode(arguments, {.variables = {{"RANK", std::to_string(rank)},
                                                       {"WORLD_SIZE", "2"},
                                                       {"LOCAL_RANK", std::to_string(rank)},
                                                       {"LOCAL_WORLD_SIZE", "2"},
                                                       {"MASTER_ADDR", "127.0.0.1"},
                                                       {"MASTER_PORT", port},
                                                       {"OMP_NUM_THREADS", "1"},
                                                       {"TORCHELASTIC_RUN_ID", "none"},
                                                       {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                       {"TORCHELASTIC_USE_AGENT_STORE", "False"}}});
    });
  }
  for (std::thread& process : processes) process.join();
  return results;
}

TEST(DecodeTest, TheRanksOfTorchrunWriteTheTextOnce) {
  const std::vector<SubprocessResult> results =
      DecodeUnderTorchrun({"--prompt", "YEAR, n.", "--dtype=float32"});
  EXPECT_EQ(results[0].exit_code, 0) << results[0].err;
  EXPECT_EQ(results[1].exit_code, 0) << results[1].err;
  EXPECT_EQ(results[0].out, "  A period of three hundred and sixty-five disappointments.\n");
  EXPECT_EQ(results[1].out, "");
}

TEST(DecodeTest, AFailureOfTorchrunsRanksEndsBoth) {
  for (const SubprocessResult& result :
       DecodeUnderTorchrun({"--prompt", "a", "--model=/no/such/folder"})) {
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("/no/such/folder: there is no such folder"));
  }
}

TEST(DecodeTest, AFailureOfAllRanksIsSaidOnce) {
  const SubprocessResult result = Decode({"--prompt", "a", "--ranks=2", "--model=/no/such/folder"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("/no/such/folder: there is no such folder"));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

TEST(DecodeTest, AnotherNumberOfRanksThanTheLaunchersIsRefused) {
  const SubprocessResult result =
      Decode({"--prompt", "a", "--ranks=3"}, {.variables = {{"RANK", "0"},
                                                            {"WORLD_SIZE", "2"},
                                                            {"LOCAL_RANK", "0"},
                                                            {"MASTER_ADDR", "127.0.0.1"},
                                                            {"MASTER_PORT", "29500"}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              HasSubstr("--ranks: expected none, or 2 as a launcher has started, got 3"));
}

TEST(DecodeTest, SaysSomethingWithoutAnyFlag) {
  const SubprocessResult result = Decode({});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, StartsWith("n.\n"));
}

TEST(DecodeTest, PromptsRunAsOneBatchInTheirOrder) {
  const SubprocessResult result =
      Decode({"--prompt", "foo\n", "bar\n", "--json", "--prompt=baz\n", "--max_new_tokens=4",
              "--temperature=1", "--seed=5", "--top_k=40", "--top_p=0.9", "--block_size=3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_THAT(json::parse(lines[0]).at("prompt_tokens"), json({0, 1765, 200}));
  EXPECT_THAT(json::parse(lines[2]).at("tokens"), SizeIs(4));
  const json stats = json::parse(lines[3]).at("stats");
  EXPECT_EQ(stats.at("prompts"), 3);
  EXPECT_EQ(stats.at("block_size"), 3);
  EXPECT_EQ(stats.at("graph_hits"), 3);
}

TEST(DecodeTest, UnderBazelRunPathsAreRelativeToTheUsersFolder) {
  namespace fs = std::filesystem;
  const std::string user = std::string(testing::TempDir()) + "/user";
  fs::remove_all(user);
  fs::create_directories(user + "/decode.runfiles/reprise");
  WriteWholeFile(user + "/prompts.jsonl", "[0, 1765, 200]\n");
  const SubprocessResult result =
      Decode({"--batch=prompts.jsonl", "--max_new_tokens=2", "--dump_logits=l.safetensors"},
             {.folder = user + "/decode.runfiles/reprise",
              .variables = {{"BUILD_WORKING_DIRECTORY", user}}});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(user + "/l.safetensors"));
}

TEST(DecodeTest, FindsItsModelWhereverItIsStarted) {
  const SubprocessResult result = Decode({"--max_new_tokens=1"}, {.folder = "/"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

struct Mistake {
  std::vector<std::string> arguments;
  const char* expected;  // part of what is said
};

TEST(DecodeTest, AMistakeIsOneSentenceAndAnExitCode) {
  const std::string broken = std::string(testing::TempDir()) + "/broken.jsonl";
  WriteWholeFile(broken, "\"foo\"\n{\"prompt\": 5}\n");
  const Mistake mistakes[] = {
      {{"--no_such_flag"}, "no_such_flag"},
      {{"--top_k=many"}, "top_k"},
      {{"--top_k=-1"}, "--top_k: expected at least 0"},
      {{"--max_new_tokens=99999999999"}, "max_new_tokens"},
      {{"--prompt"}, "--prompt"},
      {{"--prompt", ""}, "prompt 1 is empty"},
      {{"--prompt", "\xff\xfe"}, "not UTF-8"},
      {{"--prompt_tokens="}, "--prompt_tokens"},
      {{"--prompt_tokens=1,x"}, "entry 2"},
      {{"--prompt_tokens=4096"}, "4096"},
      {{"--prompt", "a", "--prompt_tokens=1"}, "only one of"},
      {{"--batch=/no/such/file"}, "/no/such/file"},
      {{"--batch=" + broken}, "line 2"},
      {{"--perplexity=/no/such/text"}, "/no/such/text"},
      {{"--model=/no/such/model"}, "/no/such/model"},
      {{"--model="}, "folder"},
      {{"--dtype=int8"}, "--dtype"},
      {{"--graphs=maybe"}, "--graphs"},
      {{"--temperature=nan"}, "--temperature"},
  };
  for (const Mistake& mistake : mistakes) {
    SCOPED_TRACE(mistake.arguments.front());
    // A lone --prompt has to stay the last argument.
    const auto program = FindData("examples/decode/decode", DataRoots());
    std::vector<std::string> arguments = mistake.arguments;
    arguments.insert(arguments.begin(), std::filesystem::absolute(*program).string());
    const SubprocessResult result = RunSubprocess(arguments, {});
    ASSERT_TRUE(result.exit_code.has_value()) << "it crashed: " << result.err;
    EXPECT_NE(result.exit_code, 0);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, AllOf(HasSubstr(mistake.expected), EndsWith("\n")));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(DecodeTest, HelpNamesEveryFlag) {
  const SubprocessResult result = Decode({"--help"});
  for (const char* const flag : {"--model",
                                 "--prompt",
                                 "--prompt_tokens",
                                 "--batch",
                                 "--max_new_tokens",
                                 "--ignore_eos",
                                 "--temperature",
                                 "--top_k",
                                 "--top_p",
                                 "--min_p",
                                 "--seed",
                                 "--repetition_penalty",
                                 "--presence_penalty",
                                 "--frequency_penalty",
                                 "--stop",
                                 "--log_probs",
                                 "--perplexity",
                                 "--dtype",
                                 "--device",
                                 "--graphs",
                                 "--block_size",
                                 "--num_blocks",
                                 "--prefill_chunk",
                                 "--dump_logits",
                                 "--trace",
                                 "--json"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string(flag) + " ")) << flag;
  }
}

}  // namespace
}  // namespace reprise
