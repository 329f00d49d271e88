// Drafters with keys of their own that are behind a sequence: which rows show them what they have not
// seen, and that those rows do not count.

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

// A sequence that has decoded 11 tokens beside another one, without drafts.
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

  // A step, `num_right` of whose drafts are accepted; how many there were.
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

TEST(DrafterKeysTest, RowsInWhichADrafterCatchesUpDoNotCount) {
  for (const DrafterKeys keys : {DrafterKeys::kOfDrafts, DrafterKeys::kOfTokens}) {
    LeftOutDrafter left_out(keys);
    // It has seen none of 11 tokens before the newest; a row shows it 4, and brings one.
    for (int i = 0; i < 3; ++i) EXPECT_EQ(left_out.Step(/*num_right=*/0), 3);
    EXPECT_EQ(left_out.statistics().num_catch_up_rows, 3);
    EXPECT_EQ(left_out.statistics().num_rows, 0);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(left_out.Step(/*num_right=*/3), 3);
    EXPECT_EQ(left_out.statistics().num_catch_up_rows, 3);
    EXPECT_EQ(left_out.statistics().num_rows, 5);
    EXPECT_EQ(left_out.statistics().num_accepted, 15);
  }
  // One without keys has nothing to catch up with.
  LeftOutDrafter left_out(DrafterKeys::kNone);
  EXPECT_EQ(left_out.Step(/*num_right=*/0), 3);
  EXPECT_EQ(left_out.statistics().num_catch_up_rows, 0);
  EXPECT_EQ(left_out.statistics().num_rows, 1);
}

// Three rows to catch up would leave one of four tokens: a row's own.
TEST(DrafterKeysTest, ASequenceThatEndsBeforeItsDrafterHasCaughtUpHasNoDrafts) {
  LeftOutDrafter ends(DrafterKeys::kOfDrafts, /*max_new_tokens=*/15);
  EXPECT_EQ(ends.Step(0), 0);
  LeftOutDrafter goes_on(DrafterKeys::kOfDrafts, /*max_new_tokens=*/16);
  EXPECT_EQ(goes_on.Step(0), 3);
}

TEST(DrafterKeysTest, ADrafterWithKeysThatIsMostlyWrongIsNotProbed) {
  for (const DrafterKeys keys : {DrafterKeys::kNone, DrafterKeys::kOfDrafts}) {
    LeftOutDrafter left_out(keys);
    int num_rows = 0;
    for (int i = 0; i < 46; ++i) num_rows += left_out.Step(/*num_right=*/0) > 0 ? 1 : 0;
    const int64_t num_counted = left_out.statistics().num_rows;
    EXPECT_EQ(num_rows, num_counted + left_out.statistics().num_catch_up_rows);
    EXPECT_GT(num_counted, 4);
    EXPECT_LT(num_counted, 20);
    // Of the last 16 rows one is a probe.
    int num_last = 0;
    LeftOutDrafter longer(keys, /*max_new_tokens=*/80);
    for (int i = 0; i < 60; ++i) {
      const bool has_drafts = longer.Step(/*num_right=*/0) > 0;
      if (i >= 60 - DraftLength::kProbeInterval && has_drafts) ++num_last;
    }
    EXPECT_EQ(num_last, keys == DrafterKeys::kNone ? 1 : 0);
  }
}

// Steps with chunks of prompts show it the tokens of all rows that it has seen so far.
TEST(DrafterKeysTest, PromptsAreSeenWithTheirStep) {
  LeftOutDrafter left_out(DrafterKeys::kOfDrafts, /*max_new_tokens=*/60, {3, 4, 5});
  // Its own prompt, of three tokens, was: 10 are left, and a row more is not needed.
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
  for (int i = 0; i < 12; ++i) {  // a prompt beside it in each step
    Add(*scheduler, {.prompt = {8, 9, 10}, .max_new_tokens = 1});
    EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0));
    scheduler->Commit({7, 7}, events);
  }
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
  scheduler->Commit(NewTokens(3, {{7, 7, 7, 7}}).output(), events);
  EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, 0);
  EXPECT_EQ(scheduler->speculation_statistics().num_accepted, 3);
}

// Both keys are swapped: the drafter's are those of what it had seen.
TEST(DrafterKeysTest, ASequenceComesBackFromTheHostWithWhatItsDrafterHadSeen) {
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
    // 12 tokens of each fill six blocks.
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
    // The prompt was shown to it.
    EXPECT_EQ(back.joins[0].num_undrafted, keys == DrafterKeys::kNone ? 0 : 10);
    scheduler->Commit({7}, events);
    EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
    scheduler->Commit(NewTokens(3, {{7}}).output(), events);
    EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows,
              keys == DrafterKeys::kNone ? 0 : 1);
    scheduler->CheckInvariants();
  }
}

TEST(DrafterKeysTest, StepsInWhichADrafterCatchesUpAreNotMeasured) {
  SchedulerOptions options = OptionsWithDrafts(3);
  options.policy.speculation = SpeculationPolicy{.num_drafts = 3, .measures_steps = true};
  options.shape.drafts.keys = DrafterKeys::kOfDrafts;
  options.shape.drafts.graph_levels = {3};
  options.shape.max_seq_len = 300;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 250});
  // With drafts it takes as long as 3.9 plain ones.
  const auto step = [&](int num_right) {
    const int num_drafts = DraftsOf(scheduler->Schedule())[0];
    const int num_new = 1 + std::min(num_right, num_drafts);
    const NewTokens tokens(3, {std::vector<int32_t>(num_new, 7)});
    scheduler->ObserveStep(absl::Microseconds(num_drafts > 0 ? 390 : 100), tokens.output());
    scheduler->Commit(tokens.output(), events);
    return num_drafts;
  };
  EXPECT_EQ(step(/*num_right=*/0), 0) << "the prompt";
  int num_first = 0;
  while (step(/*num_right=*/3) == 3) ++num_first;
  EXPECT_EQ(num_first, DraftCosts::kFirstRows);
  int num_plain = 1;
  while (step(/*num_right=*/0) == 0) ++num_plain;
  EXPECT_EQ(num_plain, DraftCosts::kLeastTimes + 1);
  EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, 1);
  // Had this one counted, a row with drafts would bring 3.8 tokens.
  for (int i = 0; i < 40; ++i) EXPECT_EQ(step(/*num_right=*/3), 3);
  EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, 1);
}

// What a text that others decoded without drafts leaves in the cache: keys of the model, and of the
// drafter those of the prompt alone.
TEST(DrafterKeysTest, APrefixIsSeenAsFarAsTheDrafterSawIt) {
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
    // 20 tokens before the newest, of which it has seen five: four rows show it four each, less one.
    while (scheduler->num_running() > 0) {
      ASSERT_THAT(DraftsOf(scheduler->Schedule()), SizeIs(1));
      scheduler->Commit(NewTokens(3, {{7}}).output(), events);
    }
    EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows, has_keys ? 4 : 0);
    EXPECT_EQ(num_undrafted(text), 0) << "it has caught up";
    scheduler->CheckInvariants();
  }
}

// Chunks of one token are not shown to a drafter, which is behind its prompt then; so are the forks.
TEST(DrafterKeysTest, ForksAreBehindAsTheirSibling) {
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
