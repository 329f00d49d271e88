#include "examples/decode/stats.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/cache/kv_group.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// 3 prompts of 12 tokens gave 8 tokens in 2 s: one prefill, then two replays at 4 rows.
DecodeStats Example() {
  DecodeStats stats = {.device = "cpu",
                       .dtype = DType::kBFloat16,
                       .load_seconds = 0.5,
                       .first_token_seconds = 0.25,
                       .generate_seconds = 2,
                       .num_prompts = 3,
                       .num_prompt_tokens = 12,
                       .num_generated_tokens = 8,
                       .num_preemptions = 0,
                       .num_blocks = 9,
                       .block_size = 16,
                       .peak_used_blocks = 3,
                       .kv_groups = {{.retention = KvRetention::kSlidingWindow, .span = 8},
                                     {},
                                     {.retention = KvRetention::kChunkedLocal, .span = 4},
                                     {.retention = KvRetention::kCross}},
                       .graphs = {}};
  const GraphKey key = {.padded_num_seqs = 4, .padded_num_tokens = 4};
  stats.graphs.AddEagerStep(EagerReason::kQueryTooLong, 3, 3);
  stats.graphs.AddGraph(key, {}, 1.5);
  stats.graphs.AddReplay(key, 3);  // one padded row
  stats.graphs.AddReplay(key, 2);  // two
  return stats;
}

TEST(DecodeStatsTest, JsonHoldsEveryFigure) {
  const std::string line = ToJson(Example());
  EXPECT_THAT(line, Not(HasSubstr("\n")));
  const nlohmann::json stats = nlohmann::json::parse(line).at("stats");
  EXPECT_EQ(stats.at("device"), "cpu");
  EXPECT_EQ(stats.at("dtype"), "bfloat16");
  EXPECT_EQ(stats.at("load_s"), 0.5);
  EXPECT_EQ(stats.at("first_token_s"), 0.25);
  EXPECT_EQ(stats.at("generate_s"), 2.0);
  EXPECT_EQ(stats.at("prompts"), 3);
  EXPECT_EQ(stats.at("prompt_tokens"), 12);
  EXPECT_EQ(stats.at("generated_tokens"), 8);
  EXPECT_EQ(stats.at("tokens_per_s"), 4.0);  // 8 / 2
  EXPECT_EQ(stats.at("steps"), 3);
  EXPECT_EQ(stats.at("graph_hits"), 2);
  EXPECT_EQ(stats.at("graphs"), 1);
  EXPECT_EQ(stats.at("graph_capture_ms"), 1.5);
  EXPECT_EQ(stats.at("live_rows"), 3 + 3 + 2);
  EXPECT_EQ(stats.at("padded_rows"), 1 + 2);
  EXPECT_EQ(stats.at("num_blocks"), 9);
  EXPECT_EQ(stats.at("block_size"), 16);
  EXPECT_EQ(stats.at("peak_used_blocks"), 3);
  EXPECT_THAT(stats.at("kv_groups"), ElementsAre("window 8", "full", "chunk 4", "cross"));
  EXPECT_EQ(stats.at("preemptions"), 0);
}

TEST(DecodeStatsTest, JsonCountsEagerStepsByReasonZeroesIncluded) {
  const nlohmann::json eager =
      nlohmann::json::parse(ToJson(Example())).at("stats").at("eager_steps");
  EXPECT_EQ(eager.size(), static_cast<size_t>(kNumEagerReasons - 1));
  EXPECT_EQ(eager.at("query_too_long"), 1);
  EXPECT_EQ(eager.at("too_many_sequences"), 0);
}

TEST(DecodeStatsTest, SummaryNamesOnlyReasonsThatOccurred) {
  const std::string summary = Summary(Example());
  EXPECT_THAT(summary, HasSubstr("8 tokens from 3 prompts (12 tokens) in 2.00 s: 4.0 tokens/s"));
  EXPECT_THAT(summary, HasSubstr("3 steps: 2 replayed graphs, 1 eager (query too long); 3 padded"));
  EXPECT_THAT(summary, HasSubstr("at most 3 of 8 blocks of 16 tokens"));
  EXPECT_THAT(summary, Not(HasSubstr("too many sequences")));
}

TEST(DecodeStatsTest, DraftsAreToldOfIfThereWereAny) {
  DecodeStats stats = Example();
  EXPECT_THAT(ToJson(stats), Not(HasSubstr("accepted_drafts")));
  EXPECT_THAT(Summary(stats), Not(HasSubstr("draft")));
  stats.drafts.emplace().Add(/*places=*/2, /*accepted=*/1, /*drafts=*/2);
  stats.drafts->Add(/*places=*/2, /*accepted=*/2, /*drafts=*/2);
  stats.plain_tokens_per_second = 2.5;
  const nlohmann::json fields = nlohmann::json::parse(ToJson(stats)).at("stats");
  EXPECT_EQ(fields.at("draft_rows"), 2);
  EXPECT_EQ(fields.at("drafts"), 4);
  EXPECT_EQ(fields.at("accepted_drafts"), 3);
  EXPECT_EQ(fields.at("tokens_per_draft_row"), 2.5);
  EXPECT_THAT(fields.at("accepted_by_position"), ElementsAre(1.0, 0.5));
  EXPECT_EQ(fields.at("plain_tokens_per_s"), 2.5);
  EXPECT_THAT(
      Summary(stats),
      HasSubstr("\n3 of 4 drafts accepted, 2.50 tokens a row with drafts; by position 100%, "
                "50%\nwithout drafts 2.5 tokens/s\n"));
  stats.drafts = SpeculationStatistics();
  EXPECT_THAT(Summary(stats),
              HasSubstr("\n0 of 0 drafts accepted, 0.00 tokens a row with drafts\n"));
}

TEST(DecodeStatsTest, ARunWithoutTokensHasNoSpeed) {
  EXPECT_EQ(DecodeStats{}.tokens_per_second(), 0);
  EXPECT_TRUE(nlohmann::json::accept(ToJson(DecodeStats{})));
}

}  // namespace
}  // namespace reprise
