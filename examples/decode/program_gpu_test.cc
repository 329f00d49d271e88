// The program's commands on a GPU, in this process, with the project's model: what they write is
// what they write on the CPU, and golden models write their golden tokens.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_split.h"
#include "c10/cuda/CUDAFunctions.h"
#include "examples/decode/bench/bench.h"
#include "examples/decode/chat/chat.h"
#include "examples/decode/options.h"
#include "examples/decode/run.h"
#include "examples/decode/serve/serve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/models/model_folder.h"
#include "tests/golden/decode_golden.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::SizeIs;

const std::vector<std::string> kTexts = {"YEAR, n.", "zero-content\n", "hack value\n"};

std::vector<Prompt> Prompts() {
  std::vector<Prompt> prompts;
  for (const std::string& text : kTexts) prompts.push_back({.content = text});
  return prompts;
}

class ProgramGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

// The lines of --json; the last one is of the statistics.
std::vector<json> RunLines(DecodeOptions options, DeviceChoice device) {
  options.device = device;
  options.dtype = DType::kFloat32;
  options.output = OutputChoice::kJson;
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunDecode(options, {.out = out, .err = err});
  EXPECT_TRUE(status.ok()) << status;
  std::vector<json> lines;
  for (const absl::string_view line : absl::StrSplit(out.str(), '\n', absl::SkipEmpty())) {
    lines.push_back(json::parse(line.begin(), line.end()));
  }
  return lines;
}

// Texts that both devices write, with the statistics of the GPU.
json RunOnBoth(const DecodeOptions& options) {
  std::vector<json> cpu = RunLines(options, DeviceChoice::kCpu);
  std::vector<json> gpu = RunLines(options, DeviceChoice::kCuda);
  EXPECT_EQ(gpu.size(), cpu.size());
  if (gpu.size() != cpu.size() || gpu.empty()) return {};
  for (size_t i = 0; i + 1 < gpu.size(); ++i) EXPECT_EQ(gpu[i], cpu[i]);
  return gpu.back().at("stats");
}

TEST_F(ProgramGpuTest, RunWritesTheTextsOfTheCpuByReplays) {
  const json stats = RunOnBoth({.prompts = Prompts(), .max_new_tokens = 60});
  EXPECT_GT(stats.at("graphs"), 0);
  for (const auto& [reason, count] : stats.at("eager_steps").items()) EXPECT_EQ(count, 0) << reason;
}

class ProgramFamilyGpuTest : public ProgramGpuTest,
                             public testing::WithParamInterface<const char*> {};

TEST_P(ProgramFamilyGpuTest, WritesTheGoldenTokensByReplays) {
  ExpectDecodeIsGolden(GetParam(), DeviceChoice::kCuda);
}

INSTANTIATE_TEST_SUITE_P(Families, ProgramFamilyGpuTest, testing::ValuesIn(kDecodeGoldens),
                         DecodeGoldenName);

// Every step is a replay, with drafts or without; and the speed is told beside the plain one.
TEST_F(ProgramGpuTest, RunWithDraftsWritesTheTextsOfTheCpuByReplays) {
  const auto folder = DefaultModelFolder();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::pair<std::optional<std::string>, SpeculationOptions> choices[] = {
      {std::nullopt, {.max_drafts = 4, .proposer = NgramProposer{}}},
      {*folder, {.max_drafts = 4}},
      {*folder, {.max_drafts = 6, .shape = DraftShape::kTree, .tree = {0, 0, 1, 2, 3, 4}}}};
  for (const auto& [model, speculation] : choices) {
    SCOPED_TRACE(testing::Message() << model.value_or("ngram") << ", " << speculation.tree.size());
    const json stats = RunOnBoth({.prompts = Prompts(),
                                  .max_new_tokens = 60,
                                  .engine = {.runner = {.speculation = speculation}},
                                  .draft = DraftChoice{.model = model, .compares_plain = true}});
    if (HasFailure()) return;
    EXPECT_GT(stats.at("plain_tokens_per_s"), 0);
    const int num_drafts = stats.at("drafts");
    const int num_accepted = stats.at("accepted_drafts");
    EXPECT_GT(num_drafts, 0);
    if (model.has_value()) {  // the model is its own draft model
      const int per_level = speculation.tree.empty() ? 1 : 2;
      EXPECT_GE(num_accepted * per_level * 10, num_drafts * 9);
    }
    for (const auto& [reason, count] : stats.at("eager_steps").items()) {
      EXPECT_EQ(count, 0) << reason;
    }
  }
}

TEST_F(ProgramGpuTest, PerplexityIsThatOfTheCpu) {
  const std::string path = testing::TempDir() + "/scored_text";
  std::ofstream(path) << "hack value: n.\nOften adduced as the reason or motivation for expending "
                         "effort toward a seemingly useless goal.\n";
  const DecodeOptions options = {.command = DecodeCommand::kPerplexity, .perplexity = path};
  const std::vector<json> cpu = RunLines(options, DeviceChoice::kCpu);
  const std::vector<json> gpu = RunLines(options, DeviceChoice::kCuda);
  ASSERT_FALSE(cpu.empty());
  ASSERT_FALSE(gpu.empty());
  EXPECT_EQ(gpu[0].at("tokens"), cpu[0].at("tokens"));
  const double perplexity = cpu[0].at("perplexity");
  EXPECT_NEAR(gpu[0].at("perplexity").get<double>(), perplexity, 1e-4 * perplexity);
}

TEST_F(ProgramGpuTest, BenchMeasuresEachPoint) {
  DecodeOptions options = {.command = DecodeCommand::kBench,
                           .device = DeviceChoice::kCuda,
                           .bench = {.batches = {1, 4}, .contexts = {32}, .num_tokens = 8},
                           .output = OutputChoice::kJson};
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunBench(options, {.out = out, .err = err}, {});
  ASSERT_TRUE(status.ok()) << status;
  std::vector<int> batches;
  for (const absl::string_view line : absl::StrSplit(out.str(), '\n', absl::SkipEmpty())) {
    const json row = json::parse(line.begin(), line.end());
    batches.push_back(row.at("batch"));
    EXPECT_EQ(row.at("context"), 32);
    EXPECT_GT(row.at("decode_tokens_per_s").get<double>(), 0);
  }
  EXPECT_EQ(batches, (std::vector<int>{1, 4}));
}

// All that can be read from a descriptor until its end.
std::string ReadAll(int descriptor) {
  std::string all;
  std::array<char, 4096> buffer;
  while (true) {
    const ssize_t count = read(descriptor, buffer.data(), buffer.size());
    if (count <= 0) return all;
    all.append(buffer.data(), static_cast<size_t>(count));
  }
}

TEST_F(ProgramGpuTest, ServeAnswersAsRunContinues) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
  std::string lines;
  for (size_t i = 0; i < kTexts.size(); ++i) {
    lines += json{{"id", i}, {"prompt", kTexts[i]}, {"max_new_tokens", 60}}.dump() + "\n";
  }
  ASSERT_EQ(write(ends[0], lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
  shutdown(ends[0], SHUT_WR);
  absl::Status status;
  std::thread server([&] {
    DecodeOptions options;
    options.command = DecodeCommand::kServe;
    options.dtype = DType::kFloat32;
    options.device = DeviceChoice::kCuda;
    options.engine.runner.max_seq_len = 256;
    std::ostringstream err;
    status = RunServe(options, {.in = ends[1], .out = ends[1], .err = err}, {});
    shutdown(ends[1], SHUT_RDWR);
  });
  const std::string events = ReadAll(ends[0]);
  server.join();
  close(ends[0]);
  close(ends[1]);
  ASSERT_TRUE(status.ok()) << status;
  std::map<int, std::string> texts;
  for (const absl::string_view line : absl::StrSplit(events, '\n', absl::SkipEmpty())) {
    const json event = json::parse(line.begin(), line.end());
    if (event.at("event") == "token") texts[event.at("id")] += event.at("text").get<std::string>();
  }
  const std::vector<json> expected =
      RunLines({.prompts = Prompts(), .max_new_tokens = 60}, DeviceChoice::kCpu);
  ASSERT_THAT(expected, SizeIs(kTexts.size() + 1));
  ASSERT_THAT(texts, SizeIs(kTexts.size()));
  for (size_t i = 0; i < kTexts.size(); ++i) {
    EXPECT_EQ(texts[static_cast<int>(i)], expected[i].at("text").get<std::string>());
  }
}

TEST_F(ProgramGpuTest, ChatAnswersAsOnTheCpu) {
  const auto answers = [](DeviceChoice device) {
    std::array<int, 2> ends;
    EXPECT_EQ(pipe(ends.data()), 0);
    const std::string said = "zero-content\nfoo\n";
    EXPECT_EQ(write(ends[1], said.data(), said.size()), static_cast<ssize_t>(said.size()));
    close(ends[1]);
    DecodeOptions options;
    options.command = DecodeCommand::kChat;
    options.dtype = DType::kFloat32;
    options.device = device;
    options.engine.runner.max_seq_len = 512;
    options.max_new_tokens = 60;
    std::ostringstream out;
    std::ostringstream err;
    const absl::Status status = RunChat(options, {.in = ends[0], .out = out, .err = err}, {});
    close(ends[0]);
    EXPECT_TRUE(status.ok()) << status;
    return out.str();
  };
  const std::string cpu = answers(DeviceChoice::kCpu);
  EXPECT_GT(cpu.size(), 20u);
  EXPECT_EQ(answers(DeviceChoice::kCuda), cpu);
}

}  // namespace
}  // namespace reprise
