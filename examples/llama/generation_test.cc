#include "examples/llama/generation.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(GenerationTest, IsAnObjectOnOneLine) {
  EXPECT_EQ(ToJson({.prompt_tokens = {0, 17},
                    .tokens = {5, 200, 1},
                    .text = "n.\n",
                    .finish = FinishReason::kStop}),
            R"({"prompt_tokens":[0,17],"tokens":[5,200,1],"text":"n.\n","finish_reason":"stop"})");
}

TEST(GenerationTest, WithoutATokenizerTheTextIsNull) {
  EXPECT_EQ(ToJson({.prompt_tokens = {7}, .tokens = {}, .finish = FinishReason::kLength}),
            R"({"prompt_tokens":[7],"tokens":[],"text":null,"finish_reason":"length"})");
}

TEST(GenerationTest, BytesThatAreNoTextDoNotBreakTheJson) {
  EXPECT_EQ(ToJson({.text = "a\xff", .finish = FinishReason::kCacheFull}),
            "{\"prompt_tokens\":[],\"tokens\":[],\"text\":\"a\xef\xbf\xbd\","
            "\"finish_reason\":\"cache_full\"}");
}

}  // namespace
}  // namespace reprise
