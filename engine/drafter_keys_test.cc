// Drafters with a KV cache that lag behind a sequence: catch-up rows, and their exclusion from the
// statistics.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/engine/draft_costs.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/engine/testing/make_scheduler.h"
#include "reprise/engine/testing/new_tokens.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// A sequence that has decoded 11 tokens without drafts, because a second sequence ran at the same
// time.
class LeftOutDrafter {
 public:
  explicit LeftOutDrafter(DrafterKeys keys, int max_new_tokens = 60,
                          std::vector<int32_t> prompt = {1}) {
    SchedulerOptions options = OptionsWithDrafts(3);
    options.policy.speculation->max_speculating_rows = 1;
    options.shape.drafts.keys = keys;
    scheduler_ = Make(options);
    Add(*scheduler_, {.prompt = std::move(prompt), .max_new_tokens = max_new_tokens});
    Add(*scheduler_, {.prompt = {2}, .max_new_tokens = 11});
    for (int i = 0; i < 11; ++i) {
      EXPECT_THAT(DraftsOf(scheduler_->Schedule()), ElementsAre(0, 0));
      scheduler_->Commit({7, 7}, events_);
    }
  }

  // Runs a step that accepts up to `num_right` drafts. Returns the draft count.
  int Step(int num_right) {
    const std::vector<int> drafts = DraftsOf(scheduler_->Schedule());
    EXPECT_THAT(drafts, SizeIs(1));
    const int num_new = 1 + std::min(num_right, drafts[0]);
    scheduler_->Commit(NewTokens(3, {std::vector<int32_t>(num_new, 7)}).output(), events_);
    scheduler_->CheckInvariants();
    return drafts[0];
  }

  Scheduler& scheduler() { return *scheduler_; }
  const SpeculationStatistics& statistics() const { return scheduler_->speculation_statistics(); }

 private:
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<TokenEvent> events_;
};

TEST(DrafterKeysTest, CatchUpRowsAreExcludedFromTheStatistics) {
  for (const DrafterKeys keys : {DrafterKeys::kOfDrafts, DrafterKeys::kOfTokens}) {
    LeftOutDrafter left_out(keys);
    // The drafter has read none of the 11 tokens before the newest. It reads 4 per row, and each
    // row adds one.
    for (int i = 0; i < 3; ++i) EXPECT_EQ(left_out.Step(/*num_right=*/0), 3);
    EXPECT_EQ(left_out.statistics().num_catch_up_rows, 3);
    EXPECT_EQ(left_out.statistics().num_rows, 0);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(left_out.Step(/*num_right=*/3), 3);
    EXPECT_EQ(left_out.statistics().num_catch_up_rows, 3);
    EXPECT_EQ(left_out.statistics().num_rows, 5);
    EXPECT_EQ(left_out.statistics().num_accepted, 15);
  }
  // A drafter without a KV cache does not catch up.
  LeftOutDrafter left_out(DrafterKeys::kNone);
  EXPECT_EQ(left_out.Step(/*num_right=*/0), 3);
  EXPECT_EQ(left_out.statistics().num_catch_up_rows, 0);
  EXPECT_EQ(left_out.statistics().num_rows, 1);
}

// Catching up takes three rows and leaves only one of the four tokens.
TEST(DrafterKeysTest, SequenceWithTooFewTokensLeftDoesNotCatchUp) {
  LeftOutDrafter ends(DrafterKeys::kOfDrafts, /*max_new_tokens=*/15);
  EXPECT_EQ(ends.Step(0), 0);
  LeftOutDrafter goes_on(DrafterKeys::kOfDrafts, /*max_new_tokens=*/16);
  EXPECT_EQ(goes_on.Step(0), 3);
}

TEST(DrafterKeysTest, DrafterWithAKvCacheIsNotProbedAtLowAcceptance) {
  for (const DrafterKeys keys : {DrafterKeys::kNone, DrafterKeys::kOfDrafts}) {
    LeftOutDrafter left_out(keys);
    int num_rows = 0;
    for (int i = 0; i < 46; ++i) num_rows += left_out.Step(/*num_right=*/0) > 0 ? 1 : 0;
    const int64_t num_counted = left_out.statistics().num_rows;
    EXPECT_EQ(num_rows, num_counted + left_out.statistics().num_catch_up_rows);
    EXPECT_GT(num_counted, 4);
    EXPECT_LT(num_counted, 20);
    // One of the last 16 rows is a probe, unless the drafter has a KV cache.
    int num_last = 0;
    LeftOutDrafter longer(keys, /*max_new_tokens=*/80);
    for (int i = 0; i < 60; ++i) {
      const bool has_drafts = longer.Step(/*num_right=*/0) > 0;
      if (i >= 60 - DraftLength::kProbeInterval && has_drafts) ++num_last;
    }
    EXPECT_EQ(num_last, keys == DrafterKeys::kNone ? 1 : 0);
  }
}

// Steps with prefill chunks feed the tokens of all rows to a drafter that has read all earlier
// tokens.
TEST(DrafterKeysTest, StepsWithPromptsFeedTheDrafter) {
  LeftOutDrafter left_out(DrafterKeys::kOfDrafts, /*max_new_tokens=*/60, {3, 4, 5});
  // The drafter has read the prompt of three tokens. 10 tokens are left, which take three rows.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(left_out.Step(/*num_right=*/0), 3);
  EXPECT_EQ(left_out.statistics().num_catch_up_rows, 3);
  EXPECT_EQ(left_out.Step(/*num_right=*/3), 3);
  EXPECT_EQ(left_out.statistics().num_rows, 1);

  SchedulerOptions options = OptionsWithDrafts(3);
  options.policy.speculation->max_speculating_rows = 1;
  options.shape.drafts.keys = DrafterKeys::kOfDrafts;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {3, 4, 5}, .max_new_tokens = 60});
  scheduler->Schedule();
  scheduler->Commit({7}, events);
  for (int i = 0; i < 12; ++i) {  // each step also has a prompt
    Add(*scheduler, {.prompt = {8, 9, 10}, .max_new_tokens = 1});
    EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0));
    scheduler->Commit({7, 7}, events);
  }
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
  scheduler->Commit(NewTokens(3, {{7, 7, 7, 7}}).output(), events);
  EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, 0);
  EXPECT_EQ(scheduler->speculation_statistics().num_accepted, 3);
}

// A swap moves the keys of the model and of the drafter, so the drafter keeps the tokens that it
// has read.
TEST(DrafterKeysTest, SwappedSequenceKeepsTheTokensReadByItsDrafter) {
  for (const DrafterKeys keys : {DrafterKeys::kNone, DrafterKeys::kOfDrafts}) {
    SCOPED_TRACE(static_cast<int>(keys));
    SchedulerOptions options = OptionsWithDrafts(3);
    options.shape.max_num_seqs = 2;
    options.shape.num_blocks = 1 + 6;
    options.policy.speculation->max_speculating_rows = 1;
    options.shape.drafts.keys = keys;
    options.policy.prefix_reuse = PrefixReuse::kOff;
    options.shape.num_swap_blocks = 8;
    options.shape.bytes_per_block = 1000;
    options.policy.preemption = PreemptionMode::kSwap;
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    Add(*scheduler, {.prompt = {1, 2}, .max_new_tokens = 14});
    Add(*scheduler, {.prompt = {1, 3}, .max_new_tokens = 22});
    for (int i = 0; i < 11; ++i) {
      ASSERT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0)) << i;
      scheduler->Commit({7, 7}, events);
    }
    // The two sequences have 12 cached tokens each and fill six blocks.
    EXPECT_THAT(scheduler->Schedule().swap_outs, SizeIs(3));
    scheduler->Commit(NewTokens(3, {{7}}).output(), events);
    while (scheduler->num_running() > 0) {
      ASSERT_THAT(scheduler->Schedule().joins, SizeIs(0));
      scheduler->Commit(NewTokens(3, {{7}}).output(), events);
    }
    const ScheduledBatch& back = scheduler->Schedule();
    EXPECT_THAT(back.swap_ins, SizeIs(3));
    ASSERT_THAT(back.joins, SizeIs(1));
    EXPECT_EQ(back.joins[0].seq_len, 12);
    // The drafter has read the prompt.
    EXPECT_EQ(back.joins[0].num_undrafted, keys == DrafterKeys::kNone ? 0 : 10);
    scheduler->Commit({7}, events);
    EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
    scheduler->Commit(NewTokens(3, {{7}}).output(), events);
    EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows,
              keys == DrafterKeys::kNone ? 0 : 1);
    scheduler->CheckInvariants();
  }
}

TEST(DrafterKeysTest, CatchUpStepsAreNotMeasured) {
  SchedulerOptions options = OptionsWithDrafts(3);
  options.policy.speculation = SpeculationPolicy{.num_drafts = 3, .measures_steps = true};
  options.shape.drafts.keys = DrafterKeys::kOfDrafts;
  options.shape.drafts.graph_levels = {3};
  options.shape.max_seq_len = 300;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 250});
  // Runs a step. With drafts, it takes 3.9 times as long as without.
  const auto step = [&](int num_right) {
    const int num_drafts = DraftsOf(scheduler->Schedule())[0];
    const int num_new = 1 + std::min(num_right, num_drafts);
    const NewTokens tokens(3, {std::vector<int32_t>(num_new, 7)});
    scheduler->ObserveStep(absl::Microseconds(num_drafts > 0 ? 390 : 100), tokens.output());
    scheduler->Commit(tokens.output(), events);
    return num_drafts;
  };
  EXPECT_EQ(step(/*num_right=*/0), 0) << "a prompt";
  int num_first = 0;
  while (step(/*num_right=*/3) == 3) ++num_first;
  EXPECT_EQ(num_first, DraftCosts::kFirstRows);
  int num_plain = 1;
  while (step(/*num_right=*/0) == 0) ++num_plain;
  EXPECT_EQ(num_plain, DraftCosts::kMinTimes + 1);
  EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, 1);
  // If the catch-up row counted, the average would be 3.8 tokens per row with drafts, and drafts
  // would not pay.
  for (int i = 0; i < 40; ++i) EXPECT_EQ(step(/*num_right=*/3), 3);
  EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, 1);
}

// A sequence that was decoded without drafts leaves all keys of the model in the cache, but only
// the drafter's keys of the prompt.
TEST(DrafterKeysTest, PrefixHitRecordsTheTokensReadByTheDrafter) {
  for (const DrafterKeys keys : {DrafterKeys::kNone, DrafterKeys::kOfDrafts}) {
    SCOPED_TRACE(static_cast<int>(keys));
    SchedulerOptions options = OptionsWithDrafts(3);
    options.policy.speculation->max_speculating_rows = 1;
    options.shape.drafts.keys = keys;
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    Add(*scheduler, {.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 14});
    Add(*scheduler, {.prompt = {6}, .max_new_tokens = 14});
    for (int i = 0; i < 14; ++i) {
      ASSERT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0));
      scheduler->Commit({7, 7}, events);
    }
    std::vector<int32_t> text = {1, 2, 3, 4, 5};
    text.resize(19, 7);
    text.push_back(9);
    const auto num_undrafted = [&](std::vector<int32_t> prompt) {
      Add(*scheduler, {.prompt = std::move(prompt), .max_new_tokens = 20});
      const ScheduledBatch& batch = scheduler->Schedule();
      EXPECT_THAT(batch.joins, SizeIs(1));
      EXPECT_EQ(batch.joins[0].seq_len, 16);
      const int num = batch.joins[0].num_undrafted;
      scheduler->Commit({7}, events);
      return num;
    };
    const bool has_keys = keys != DrafterKeys::kNone;
    EXPECT_EQ(num_undrafted(text), has_keys ? 11 : 0);
    // The drafter has read 5 of the 20 tokens before the newest. Four rows feed it four tokens
    // each, and each adds one.
    while (scheduler->num_running() > 0) {
      ASSERT_THAT(DraftsOf(scheduler->Schedule()), SizeIs(1));
      scheduler->Commit(NewTokens(3, {{7}}).output(), events);
    }
    EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, has_keys ? 4 : 0);
    EXPECT_EQ(num_undrafted(text), 0) << "the drafter has caught up";
    scheduler->CheckInvariants();
  }
}

// Steps with chunks of one token do not feed a drafter. The drafter has then read none of the
// prompt, and must catch up in the first sequence and in its fork.
TEST(DrafterKeysTest, ForkLagsLikeItsSibling) {
  for (const int prefill_chunk : {1, 0}) {
    SCOPED_TRACE(prefill_chunk);
    SchedulerOptions options = OptionsWithDrafts(3);
    options.policy.prefill_chunk = prefill_chunk;
    options.shape.drafts.keys = DrafterKeys::kOfDrafts;
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6, 7}, .max_new_tokens = 9, .num_sequences = 2});
    int num_joins = 0;
    for (int step = 0; scheduler->num_forks() == 0; ++step) {
      ASSERT_LT(step, 10);
      const ScheduledBatch& batch = scheduler->Schedule();
      num_joins += static_cast<int>(batch.joins.size());
      if (num_joins == 2) {
        EXPECT_EQ(batch.joins[0].seq_len, 6);
        EXPECT_EQ(batch.joins[0].num_undrafted, prefill_chunk == 1 ? 6 : 0);
      }
      const int num_rows = static_cast<int>(batch.rows.size());
      scheduler->Commit(NewTokens(3, std::vector<std::vector<int32_t>>(num_rows, {7})).output(),
                        events);
    }
    EXPECT_EQ(num_joins, 2);
    scheduler->CheckInvariants();
  }
}

}  // namespace
}  // namespace reprise
