#include "tests/golden/decode_golden.h"

#include <sstream>
#include <vector>

#include "absl/strings/str_split.h"
#include "examples/decode/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/golden/golden.h"
#include "tests/golden/golden_measures.h"

namespace reprise {

using nlohmann::json;

void ExpectDecodeIsGolden(const std::string& name, DeviceChoice device) {
  const absl::StatusOr<Golden> golden = LoadGolden(name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  const int num_tokens = static_cast<int>(golden->prompts[0].greedy.tokens.size());
  DecodeOptions options = {.model = golden->folder,
                           .max_new_tokens = num_tokens,
                           .stop = StopChoice::kAtLengthOnly,
                           .dtype = DType::kFloat32,
                           .device = device,
                           .output = OutputChoice::kJson};
  for (const GoldenPrompt& prompt : golden->prompts) {
    options.prompts.push_back({.content = prompt.prompt});
  }
  std::ostringstream out;
  std::ostringstream err;
  const absl::Status status = RunDecode(options, {.out = out, .err = err});
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<std::string> lines = absl::StrSplit(out.str(), '\n', absl::SkipEmpty());
  ASSERT_THAT(lines, testing::SizeIs(golden->prompts.size() + 1));
  for (size_t i = 0; i < golden->prompts.size(); ++i) {
    const GoldenPrompt& prompt = golden->prompts[i];
    const TokenList tokens = json::parse(lines[i]).at("tokens").get<TokenList>();
    EXPECT_EQ(tokens.size(), num_tokens);
    EXPECT_GE(NumEqualTokens(tokens, prompt.greedy), NumDecidedTokens(prompt, 1e-3f))
        << "prompt " << i;
  }
  const json stats = json::parse(lines.back()).at("stats");
  EXPECT_GE(stats.at("graph_hits"), num_tokens - 1);
  int num_eager = 0;
  for (const auto& [reason, count] : stats.at("eager_steps").items()) num_eager += count.get<int>();
  EXPECT_LE(num_eager, 1) << stats;
}

}  // namespace reprise
