// The program itself, as a user starts it: flags, exit codes, streams, folders.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "examples/decode/model_copy.h"
#include "examples/decode/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/distributed/testing/rank_reports.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Pointwise;
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

// A text that the model was not trained on. What transformers 5.23 computes of it, in float32 with
// the logits' softmax in float64: LlamaForCausalLM over the 263 tokens at once.
constexpr char kHeldText[] =
    R"(The night operator kept a notebook of every machine that had ever refused to start.  On its first
page stood a rule: a program is finished when the last person who understood it has left, and not a
day before.  Below the rule, in another hand, someone had written the name of a terminal, a date, and
the word "cured".

When the new system came, the notebook was copied to a file.  The file had no index, and so nobody
read it.  Two years later a disk failed at three in the morning, and the operator, who was by then a
manager, drove through the rain, opened a drawer, and found the answer on page forty-one: "Switch it
off.  Count to ten.  Do not count faster because it is late."

hacker humor: n.  A kind of joke that is funny because it is correct.  See also kluge, magic, and the
entry on naming things.  The canonical example is a bug report that reads, in full, "It works."
)";
constexpr int kHeldTokens = 262;
constexpr double kHeldLogLikelihood = -4246.393984783648;

TEST(DecodeTest, PerplexityOfAHeldTextIsThatOfTransformers) {
  const std::string path = std::string(testing::TempDir()) + "/held_text";
  WriteWholeFile(path, kHeldText);
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"perplexity", path},
                                             {"perplexity", "--prefill_chunk=50", path},
                                             {"--perplexity", path}}) {
    std::vector<std::string> arguments = flags;
    arguments.insert(arguments.end(), {"--json", "--dtype=float32"});
    const SubprocessResult result = Decode(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const json score = json::parse(result.out.substr(0, result.out.find('\n')));
    EXPECT_EQ(score.at("tokens"), kHeldTokens);
    EXPECT_NEAR(score.at("log_likelihood").get<double>(), kHeldLogLikelihood, 1e-2);
    const double perplexity = std::exp(-kHeldLogLikelihood / kHeldTokens);
    EXPECT_NEAR(score.at("perplexity").get<double>(), perplexity, 1e-4 * perplexity);
  }
}

TEST(DecodeTest, TheFirstWordMayBeACommand) {
  const std::vector<std::string> flags = {"--prompt", "YEAR, n.", "--dtype=float32"};
  std::vector<std::string> named = flags;
  named.insert(named.begin(), "run");
  EXPECT_EQ(Decode(named).out, Decode(flags).out);
  const SubprocessResult served = Decode({"serve", "--max_seq_len=64"});  // no input
  EXPECT_EQ(served.exit_code, 0) << served.err;
  EXPECT_EQ(served.out, "");
  const SubprocessResult chat = Decode({"chat", "--max_seq_len=64"});
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_EQ(chat.out, "");
  const SubprocessResult bench =
      Decode({"bench", "--batches=2", "--contexts=4", "--num_tokens=2", "--json", "--ranks=2"});
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  EXPECT_EQ(json::parse(bench.out).at("batch"), 2);
}

TEST(DecodeTest, FlagsOfTheRunnerDoNotChangeTexts) {
  const std::vector<std::string> base = {"--prompt", "YEAR, n.", "zero-content\n",
                                         "--dtype=float32", "--json"};
  const auto texts = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const SubprocessResult result = Decode(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(3));
    lines.resize(2);
    return lines;
  };
  const std::vector<std::string> plain = texts({});
  EXPECT_EQ(texts({"--max_num_tokens=64", "--kv_memory_gb=0.01", "--graph_sizes=1,2",
                   "--mixed_graphs=on", "--cascade=off", "--steps_in_flight=2"}),
            plain);
  EXPECT_EQ(texts({"--attention_outside_graphs", "--prefix_reuse=off", "--num_swap_blocks=8"}),
            plain);
  EXPECT_EQ(texts({"--partial_hits=copied", "--max_prefill_tokens_while_decoding=2"}), plain);
  EXPECT_EQ(texts({"--check_replays", "--batch_invariant", "--kv_dtype=float32"}), plain);
  EXPECT_EQ(texts({"--kv_order=hnd", "--kv_form=packed", "--graph_memory_gb=1"}), plain);
  EXPECT_EQ(texts({"--kv_form=diff_kv"}), plain);
  texts(
      {"--kv_dtype=fp8_e4m3", "--kv_scales=per_head", "--kv_calibration"});  // others, by rounding
}

TEST(DecodeTest, AWatchedRunShowsWhatTheEngineHasDone) {
  const SubprocessResult result = Decode({"--prompt", "YEAR, n.", "--dtype=float32", "--watch"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "  A period of three hundred and sixty-five disappointments.\n");
  EXPECT_THAT(result.err, AllOf(HasSubstr("blocks  ["), HasSubstr("1 requests")));
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
  EXPECT_EQ(texts({"--ranks=2", "--parallel=context", "--block_size=4"}), alone);
  EXPECT_EQ(texts({"--ranks=4", "--parallel=context", "--context_ranks=2", "--block_size=4"}),
            alone);
}

// The float32 values of the tensors of a safetensors file, in the order of their names.
std::vector<float> FloatsOf(const std::string& path) {
  std::vector<float> values;
  const auto file = SafetensorsFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return values;
  for (const auto& [name, tensor] : file->tensors()) {
    const absl::StatusOr<std::vector<float>> elements = CopyElements<float>(tensor);
    EXPECT_TRUE(elements.ok()) << name << ": " << elements.status();
    if (elements.ok()) values.insert(values.end(), elements->begin(), elements->end());
  }
  return values;
}

TEST(DecodeTest, RanksScoreDumpDraftAndSwapAsOneDoes) {
  const std::string text = std::string(testing::TempDir()) + "/scored_by_ranks";
  WriteWholeFile(text, kHeldText);
  const auto score = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"perplexity", text, "--json", "--dtype=float32"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const SubprocessResult result = Decode(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return json::parse(result.out.substr(0, result.out.find('\n')));
  };
  const json scored = score({"--ranks=2"});
  EXPECT_EQ(scored.at("tokens"), kHeldTokens);
  EXPECT_NEAR(scored.at("log_likelihood").get<double>(), kHeldLogLikelihood, 1e-2);

  const std::vector<std::string> base = {"--prompt", "YEAR, n.",        "LOGIC, n.",
                                         "--json",   "--dtype=float32", "--max_new_tokens=24"};
  const auto texts = [&](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = base;
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const SubprocessResult result = Decode(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
    EXPECT_THAT(lines, SizeIs(3));
    lines.pop_back();  // statistics
    return lines;
  };
  const std::string logits = std::string(testing::TempDir()) + "/logits_of_";
  const std::vector<std::string> alone = texts({"--dump_logits=" + logits + "one"});
  EXPECT_EQ(texts({"--ranks=2", "--dump_logits=" + logits + "two"}), alone);
  const std::vector<float> of_one = FloatsOf(logits + "one");
  EXPECT_GT(of_one.size(), 1000u);
  EXPECT_THAT(FloatsOf(logits + "two"), Pointwise(FloatNear(1e-3f), of_one));

  const std::string draft = CopyDefaultModel("draft_of_ranks");
  EXPECT_EQ(texts({"--ranks=2", "--draft=" + draft}), alone);
  // The two prompts do not fit together: one makes way.
  EXPECT_EQ(texts({"--ranks=2", "--block_size=4", "--num_blocks=13", "--num_swap_blocks=12"}),
            alone);
}

TEST(DecodeTest, ServeOverRanksAnswersAsOneProcessDoes) {
  const auto program = FindData("examples/decode/decode", DataRoots());
  ASSERT_TRUE(program.has_value());
  const auto events = [&](const std::string& flags) {
    const SubprocessResult result = RunSubprocess(
        {"/bin/sh", "-c",
         absl::StrCat(R"(printf '{"id":%d,"prompt":"zero-content\\n","seed":3}\n' 1 2 | ')",
                      std::filesystem::absolute(*program).string(),
                      "' serve --device=cpu --dtype=float32 --max_seq_len=64 ", flags)},
        {});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::vector<std::string> lines = absl::StrSplit(result.out, '\n', absl::SkipEmpty());
    std::sort(lines.begin(), lines.end());  // of two requests, in any order
    return lines;
  };
  const std::vector<std::string> alone = events("");
  EXPECT_THAT(alone, SizeIs(24));
  EXPECT_EQ(events("--ranks=2"), alone);
}

// What `decode` writes as each of two ranks that torchrun has started, which serves no store here.
std::vector<SubprocessResult> DecodeUnderTorchrun(
    const std::vector<std::string>& arguments,
    const std::vector<std::string>& arguments_of_rank_1 = {}) {
  const std::string port = std::to_string(FreePort());
  std::vector<SubprocessResult> results(2);
  std::vector<std::thread> processes;
  for (int rank = 0; rank < 2; ++rank) {
    processes.emplace_back([&, rank] {
      std::vector<std::string> own = arguments;
      if (rank == 1) own.insert(own.end(), arguments_of_rank_1.begin(), arguments_of_rank_1.end());
      results[rank] = Decode(own, {.variables = {{"RANK", std::to_string(rank)},
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

TEST(DecodeTest, OptionsOfTorchrunsRanksThatDifferEndBoth) {
  const std::pair<std::string, std::string> rows[] = {
      {"--graph_sizes=1",
       "graphs.sizes must be the same on all ranks: expected none as on rank 0, got 1 "},
      {"--dtype=float32",
       "dtype must be the same on all ranks: expected bfloat16 as on rank 0, got "
       "float32 on rank 1"}};
  for (const auto& [flag, said] : rows) {
    for (const SubprocessResult& result :
         DecodeUnderTorchrun({"--prompt", "a", "b", "--dtype=bfloat16"}, {flag})) {
      EXPECT_EQ(result.exit_code, 1);
      EXPECT_THAT(result.err, HasSubstr(said));
    }
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
      {{"--socket=/s"}, "--socket"},
      {{"serve", "hello"}, "serve: expected flags only"},
      {{"serve", "--socket=/no/such/folder/s"}, "--socket: /no/such/folder/s"},
      {{"chat", "--template=alpaca"}, "--template: expected none"},
      {{"bench", "--contexts=9999"}, "--contexts: expected at most"},
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
                                 "--stop_tokens",
                                 "--include_stop",
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
                                 "--max_num_tokens",
                                 "--max_prefill_tokens_while_decoding",
                                 "--kv_dtype",
                                 "--kv_memory_gb",
                                 "--kv_order",
                                 "--kv_form",
                                 "--kv_scales",
                                 "--kv_calibration",
                                 "--graph_memory_gb",
                                 "--num_swap_blocks",
                                 "--graph_sizes",
                                 "--mixed_graphs",
                                 "--cascade",
                                 "--steps_in_flight",
                                 "--prefix_reuse",
                                 "--partial_hits",
                                 "--batch_invariant",
                                 "--attention_outside_graphs",
                                 "--check_replays",
                                 "--watch",
                                 "--json"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string(flag) + " ")) << flag;
  }
}

}  // namespace
}  // namespace reprise
