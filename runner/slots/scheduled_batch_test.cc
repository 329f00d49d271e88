#include "reprise/runner/slots/scheduled_batch.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

const std::vector<int32_t> kFive = {1, 2, 3, 4, 5};

TEST(FirstEarlierLogitsTest, CountsTheTokensBeforeTheLastOfRowsWithAllLogits) {
  const ScheduledRow rows[] = {{.tokens = kFive, .logits = RowLogits::kAll},
                               {.tokens = kFive},            // kLast: none
                               {.logits = RowLogits::kAll},  // one token: none
                               {.tokens = kFive, .logits = RowLogits::kAll}};
  EXPECT_EQ(FirstEarlierLogits(rows, 0), 0);
  EXPECT_EQ(FirstEarlierLogits(rows, 1), 4);
  EXPECT_EQ(FirstEarlierLogits(rows, 2), 4);
  EXPECT_EQ(FirstEarlierLogits(rows, 3), 4);
}

// Rows with drafts have logits before their last, regardless of RowLogits.
TEST(FirstEarlierLogitsTest, CountsRowsWithDraftsAmongRowsWithAllLogits) {
  const int32_t drafts[] = {7, 8};
  const ScheduledRow rows[] = {{.num_drafts = 3},
                               {.tokens = kFive, .logits = RowLogits::kAll},
                               {.drafts = drafts},
                               {.tokens = kFive},
                               {.tokens = kFive, .logits = RowLogits::kAll}};
  EXPECT_EQ(FirstEarlierLogits(rows, 0), 0);
  EXPECT_EQ(FirstEarlierLogits(rows, 1), 3);
  EXPECT_EQ(FirstEarlierLogits(rows, 2), 3 + 4);
  EXPECT_EQ(FirstEarlierLogits(rows, 3), 3 + 4 + 2);
  EXPECT_EQ(FirstEarlierLogits(rows, 4), 3 + 4 + 2);
}

TEST(FirstEarlierLogitsDeathTest, DiesIfTheRowDoesNotExist) {
  const std::vector<ScheduledRow> rows(2);
  EXPECT_DEATH(FirstEarlierLogits(rows, 2), "row");
  EXPECT_DEATH(FirstEarlierLogits(rows, -1), "row");
}

TEST(ScheduledRowTest, IsScoredIfTheCallerKnowsTheTokens) {
  EXPECT_TRUE((ScheduledRow{.tokens = kFive, .logits = RowLogits::kAll}).is_scored());
  EXPECT_TRUE(
      (ScheduledRow{.tokens = kFive, .output = RowOutput::kNone, .next_token = 3}).is_scored());
  EXPECT_FALSE((ScheduledRow{.tokens = kFive}).is_scored());
  EXPECT_FALSE((ScheduledRow{.num_drafts = 3}).is_scored());
}

TEST(JoinOfTest, TakesItsLengthsFromHitsAndPrompt) {
  const SlotJoin join =
      JoinOf(SlotId(3), {.num_tokens = 32, .has_encoder = true}, 40, {.temperature = 0.5f});
  EXPECT_EQ(join.slot, SlotId(3));
  EXPECT_EQ(join.seq_len, 32);
  EXPECT_EQ(join.prompt_len, 40);
  EXPECT_EQ(join.sampling.temperature, 0.5f);
  EXPECT_EQ(join.encoder_is_cached, 1);
}

}  // namespace
}  // namespace reprise
