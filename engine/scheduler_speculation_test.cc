// Rows with drafts: their draft counts, their new tokens, and unchanged outputs.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/kv_group.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/engine/testing/make_scheduler.h"
#include "reprise/engine/testing/new_tokens.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_masker.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SchedulerOptions Options(int num_drafts) {
  SchedulerOptions options = OptionsWithDrafts(num_drafts);
  options.shape.mask_words = static_cast<int>(MaskWords(kPuppetVocab));
  return options;
}

// Options for trees with 2 drafts in the first level, 3 in the second and 1 in the third.
SchedulerOptions TreeOptions() {
  SchedulerOptions options = Options(3);
  options.shape.drafts.level_drafts = {2, 5, 6};
  return options;
}

std::vector<int32_t> TokensOf(absl::Span<const TokenEvent> events) {
  std::vector<int32_t> tokens;
  for (const TokenEvent& event : events) tokens.push_back(event.token.value_or(-1));
  return tokens;
}

TEST(SchedulerSpeculationTest, RowGeneratesItsAcceptedDraftsAndOneMoreToken) {
  auto scheduler = Make(Options(3));
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 20});
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0)) << "a prompt";
  scheduler->Commit({4}, events);

  const ScheduledBatch& batch = scheduler->Schedule();
  ASSERT_THAT(DraftsOf(batch), ElementsAre(3));
  EXPECT_THAT(batch.rows[0].tokens, IsEmpty());
  EXPECT_EQ(batch.rows[0].output, RowOutput::kToken);
  EXPECT_EQ(scheduler->blocks().num_tokens(SlotId(0)), 7);  // room for token 4 and three drafts
  events.clear();
  scheduler->Commit(NewTokens(3, {{5, 6}}).output(), events);
  scheduler->CheckInvariants();
  ASSERT_THAT(TokensOf(events), ElementsAre(5, 6));
  EXPECT_EQ(events[0].index, 1);
  EXPECT_EQ(events[1].index, 2);
  EXPECT_EQ(events[0].earlier, 0);
  EXPECT_EQ(events[1].earlier, 1);
  EXPECT_EQ(scheduler->blocks().num_committed(SlotId(0)), 5);  // token 6 has no keys yet
  EXPECT_EQ(scheduler->blocks().num_tokens(SlotId(0)), 7) << "room is kept for the next row";

  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
  events.clear();
  scheduler->Commit(NewTokens(3, {{7, 8, 9, 10}}).output(), events);
  EXPECT_THAT(TokensOf(events), ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(events[3].earlier, -1) << "after the last draft: the row's logits";
  EXPECT_EQ(scheduler->speculation_statistics().num_rows, 2);
  EXPECT_EQ(scheduler->speculation_statistics().num_drafts, 6);
  EXPECT_EQ(scheduler->speculation_statistics().num_accepted, 4);
  EXPECT_EQ(scheduler->speculation_statistics().num_accepted_at[0], 2);
}

TEST(SchedulerSpeculationTest, TreeAcceptsAtMostOneDraftPerLevel) {
  auto scheduler = Make(TreeOptions());
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 20});
  scheduler->Schedule();
  scheduler->Commit({4}, events);

  ASSERT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(6));
  EXPECT_EQ(scheduler->blocks().num_tokens(SlotId(0)), 10);  // room for token 4 and all drafts
  events.clear();
  scheduler->Commit(NewTokens(6, {{5, 6, 7, 8}}).output(), events);
  scheduler->CheckInvariants();
  EXPECT_THAT(TokensOf(events), ElementsAre(5, 6, 7, 8));
  for (const TokenEvent& event : events) {
    EXPECT_EQ(event.row, -1) << "the host does not know the row of a node's logits";
    EXPECT_EQ(event.earlier, -1);
  }
  EXPECT_EQ(scheduler->blocks().num_committed(SlotId(0)), 7);
  EXPECT_EQ(scheduler->speculation_statistics().num_drafts, 6);
  EXPECT_EQ(scheduler->speculation_statistics().num_accepted, 3);
  EXPECT_EQ(scheduler->speculation_statistics().num_drafts_at[2], 1);
  EXPECT_EQ(scheduler->speculation_statistics().num_drafts_at[3], 0);
}

TEST(SchedulerSpeculationTest, TreeIsTruncatedToWholeLevels) {
  auto scheduler = Make(TreeOptions());
  std::vector<TokenEvent> events;
  // Two more tokens: one level, and the token after it.
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 3});
  scheduler->Schedule();
  scheduler->Commit({4}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2));
  scheduler->Commit(NewTokens(6, {{5, 6}}).output(), events);
  EXPECT_EQ(events.back().finish, FinishReason::kLength);

  SchedulerOptions options = TreeOptions();
  options.shape.max_seq_len =
      12;  // 8 keys of the prompt, and 4 more: the first level, not the second
  scheduler = Make(options);
  Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6, 7, 8}, .max_new_tokens = 4});
  scheduler->Schedule();
  scheduler->Commit({4}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2));
}

TEST(SchedulerSpeculationTest, RejectsInvalidLevels) {
  const auto message = [](const std::vector<int>& level_drafts) {
    SchedulerOptions options = Options(3);
    options.shape.drafts.level_drafts = level_drafts;
    return std::string(Scheduler::Create(options).status().message());
  };
  EXPECT_THAT(message({2, 4}), HasSubstr("expected at most 2, got 3"));
  EXPECT_THAT(message({2, 2, 3}), HasSubstr("level_drafts[1] must be above 2"));
  EXPECT_THAT(message({0, 2, 3}), HasSubstr("level_drafts[0] must be above 0"));
}

TEST(SchedulerSpeculationTest, TokensAfterAStopTokenAreDropped) {
  auto scheduler = Make(Options(4));
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 20, .stop_tokens = {7}});
  scheduler->Schedule();
  scheduler->Commit({4}, events);
  scheduler->Schedule();
  events.clear();
  scheduler->Commit(NewTokens(4, {{5, 7, 8, 9, 10}}).output(), events);
  EXPECT_THAT(TokensOf(events), ElementsAre(5, 7));
  EXPECT_EQ(events[1].finish, FinishReason::kStop);
  EXPECT_FALSE(scheduler->has_work());
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  // Only keys of tokens before the stop token are found.
  Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13}, .max_new_tokens = 1});
  const ScheduledBatch& batch = scheduler->Schedule();
  EXPECT_EQ(batch.joins[0].seq_len, 4);
}

TEST(SchedulerSpeculationTest, RejectedDraftsAreNeverPrefixHits) {
  auto scheduler = Make(Options(4));
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 3});
  scheduler->Schedule();
  scheduler->Commit({4}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(1))
      << "no more than the request still needs";
  scheduler->Commit(NewTokens(4, {{5}}).output(), events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0));
  scheduler->Commit({6}, events);
  EXPECT_EQ(events.back().finish, FinishReason::kLength);
  Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .max_new_tokens = 1});
  EXPECT_EQ(scheduler->Schedule().joins[0].seq_len, 4);
}

TEST(SchedulerSpeculationTest, DraftsStayWithinTheContextAndTheStep) {
  SchedulerOptions options = Options(6);
  options.shape.max_seq_len = 7;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2, 3, 4}, .max_new_tokens = 50});
  scheduler->Schedule();
  scheduler->Commit({5}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2));  // keys of tokens 4 to 6
  scheduler->Commit(NewTokens(6, {{6, 7, 8}}).output(), events);
  EXPECT_EQ(events.back().finish, FinishReason::kLength);
  EXPECT_THAT(TokensOf(events), ElementsAre(5, 6, 7, 8));

  options = Options(6);
  options.shape.max_num_tokens = 10;
  scheduler = Make(options);
  for (int i = 0; i < 3; ++i) Add(*scheduler, {.prompt = {i}, .max_new_tokens = 50});
  scheduler->Schedule();
  scheduler->Commit({1, 2, 3}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(6, 1, 0));
}

TEST(SchedulerSpeculationTest, DecodesHaveDraftsInStepsWithPrefillChunks) {
  SchedulerOptions options = Options(3);
  options.policy.prefill_chunk = 4;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 50});
  scheduler->Schedule();
  scheduler->Commit({1}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
  scheduler->Commit(NewTokens(3, {{2}}).output(), events);
  Add(*scheduler, {.prompt = {5, 6, 7, 8, 9, 10}, .max_new_tokens = 50});
  const ScheduledBatch& first = scheduler->Schedule();
  EXPECT_THAT(DraftsOf(first), ElementsAre(3, 0));
  EXPECT_THAT(first.rows[1].tokens, SizeIs(4));
  events.clear();
  scheduler->Commit(NewTokens(3, {{3, 4, 5, 6}, {}}).output(), events);
  EXPECT_THAT(TokensOf(events), ElementsAre(3, 4, 5, 6)) << "half a prompt generates no token";
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3, 0));
  events.clear();
  scheduler->Commit(NewTokens(3, {{7}, {8}}).output(), events);
  EXPECT_THAT(TokensOf(events), ElementsAre(7, 8));
  scheduler->CheckInvariants();
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2, 3))
      << "the first row has rejected three drafts";
}

// Earlier logits are in the order of the rows, although prompts reserve them before drafts do.
TEST(SchedulerSpeculationTest, ScoredPromptsLeaveEarlierLogitsForDrafts) {
  SchedulerOptions options = Options(3);
  options.shape.max_num_seqs = 2;
  options.shape.max_earlier_logits = 5;
  auto scheduler = Make(options);
  PuppetDevice device(options);
  std::vector<TokenEvent> events;
  const auto step = [&] {
    const ScheduledBatch& batch = scheduler->Schedule();
    const std::vector<int> drafts = DraftsOf(batch);
    device.Launch(batch);
    EXPECT_TRUE(device.Await().ok());
    events.clear();
    scheduler->Commit(device.output(), events);
    scheduler->CheckInvariants();
    return drafts;
  };
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 50});
  EXPECT_THAT(step(), ElementsAre(0));
  const Request scored = {
      .prompt = {5, 6, 7, 8, 9, 10, 11}, .max_new_tokens = 2, .num_prompt_log_probs = 0};
  const SequenceId id = Add(*scheduler, scored);
  // The prompt uses five of the six rows of earlier logits.
  EXPECT_THAT(step(), ElementsAre(1, 0));
  PuppetText text;
  for (int i = 0; i < 4; ++i) {
    for (const TokenEvent& event : events) {
      if (event.sequence == id) text.Add(event);
    }
    step();
  }
  EXPECT_EQ(text, ExpectedText(scored, 0, options, 100));
}

TEST(SchedulerSpeculationTest, SequencesWithLogitsRequestsHaveNoDrafts) {
  SchedulerOptions options = Options(3);
  options.shape.max_num_seqs = 8;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  const auto add = [&](Request request) {
    request.prompt = {1};
    request.max_new_tokens = 50;
    Add(*scheduler, std::move(request));
  };
  add({.sampling = {.presence_penalty = 0.5f}});
  add({.sampling = {.biases = {{.token = 3, .bias = 1}}}});
  add({.logits_stages = 1});
  add({.num_log_probs = 0});
  add({.forced_tokens = std::vector<int32_t>(50, 2)});
  add({.new_token_masker = PuppetMasker::Factory(1, 20)});
  add({.sampling = {.temperature = 1, .top_k = 5}});
  add({});
  PuppetDevice device(options);
  device.Launch(scheduler->Schedule());
  ASSERT_TRUE(device.Await().ok());
  scheduler->Commit(device.output(), events);
  const ScheduledBatch& batch = scheduler->Schedule();
  EXPECT_THAT(DraftsOf(batch), ElementsAre(0, 0, 0, 0, 0, 0, 3, 3));
  device.Launch(batch);
}

TEST(SchedulerSpeculationTest, RequestMayLimitItsDrafts) {
  auto scheduler = Make(Options(3));
  std::vector<TokenEvent> events;
  for (const int max_drafts : {0, 2, -1, 9}) {
    Add(*scheduler, {.prompt = {1}, .max_new_tokens = 50, .max_drafts = max_drafts});
  }
  scheduler->Schedule();
  scheduler->Commit({1, 2, 3, 4}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 2, 3, 3));
  const auto refused = scheduler->Add({.prompt = {1}, .max_drafts = -2});
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(refused.status().message(), HasSubstr("max_drafts must be at least -1: got -2"));
}

TEST(SchedulerSpeculationTest, StepsAboveMaxSpeculatingRowsHaveNoDrafts) {
  SchedulerOptions options = Options(3);
  options.policy.speculation->max_speculating_rows = 2;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  for (const int max_new_tokens : {50, 50, 2}) {
    Add(*scheduler, {.prompt = {1}, .max_new_tokens = max_new_tokens});
  }
  scheduler->Schedule();
  scheduler->Commit({1, 2, 3}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0, 0));
  EXPECT_EQ(scheduler->speculation_statistics().num_too_large_steps, 1)
      << "a step with prompts only could not have drafts";
  scheduler->Commit({1, 2, 3}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3, 3));
  EXPECT_EQ(scheduler->speculation_statistics().num_too_large_steps, 1);
  EXPECT_EQ(scheduler->speculation_statistics().num_unpaid_steps, 0);
}

// Row counts are measured separately: steps of two rows are slow with drafts, steps of one row are
// not.
TEST(SchedulerSpeculationTest, MeasuredStepsHaveNoDraftsIfDraftsDoNotPay) {
  SchedulerOptions options = Options(3);
  options.shape.max_seq_len = 400;
  options.shape.num_blocks = 400;
  options.policy.speculation->measures_steps = true;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 300});
  Add(*scheduler, {.prompt = {2}, .max_new_tokens = 90});
  const auto run_step = [&] {
    const std::vector<int> drafts = DraftsOf(scheduler->Schedule());
    std::vector<std::vector<int32_t>> rows;
    bool any = false;
    for (const int num_drafts : drafts) {
      rows.push_back(std::vector<int32_t>(num_drafts == 0 ? 1 : 2, 7));  // one draft is right
      any = any || num_drafts > 0;
    }
    const NewTokens tokens(3, rows);
    const double us = !any ? 100 : drafts.size() == 1 ? 150 : 250;
    scheduler->ObserveStep(absl::Microseconds(us), tokens.output());
    scheduler->Commit(tokens.output(), events);
    return any;
  };
  int num_with_drafts = 0;
  int num_steps = 0;
  for (; scheduler->num_running() != 1; ++num_steps) num_with_drafts += run_step() ? 1 : 0;
  // Steps have three drafts until 16 rows had drafts, then two and one.
  EXPECT_GE(num_with_drafts, DraftCosts::kFirstRows / 2 + 2 * DraftCosts::kMinTimes);
  EXPECT_LE(num_with_drafts, DraftCosts::kFirstRows / 2 + 2 * DraftCosts::kMinTimes + 4);
  EXPECT_GT(num_steps, 2 * num_with_drafts);
  EXPECT_EQ(scheduler->draft_costs().Best({.num_rows = 2, .num_drafting = 2, .most = 3}), 0);
  const int64_t num_unpaid = scheduler->speculation_statistics().num_unpaid_steps;
  EXPECT_EQ(num_unpaid, num_steps - num_with_drafts - 1) << "the first step has the prompts";

  int num_plain = 0;
  while (scheduler->has_work()) num_plain += run_step() ? 0 : 1;
  EXPECT_GT(scheduler->draft_costs().Best({.num_rows = 1, .num_drafting = 1, .most = 3}), 0);
  EXPECT_LE(num_plain, DraftCosts::kMinTimes + 3);
}

// The first four drafts are right, and drafts cost more from case to case. Steps use the captured
// draft count with the highest throughput.
TEST(SchedulerSpeculationTest, StepsHaveTheDraftCountWithTheHighestThroughput) {
  for (const int per_draft_us : {1, 30, 200}) {
    SCOPED_TRACE(per_draft_us);
    SchedulerOptions options = Options(8);
    options.shape.max_seq_len = 4000;
    options.shape.num_blocks = 4000;
    options.policy.speculation->measures_steps = true;
    options.shape.drafts.graph_levels = {1, 2, 4, 8, 16};
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    for (const int token : {1, 2}) {
      Add(*scheduler, {.prompt = {token}, .max_new_tokens = 3000});
    }
    std::map<int, int> num_steps;  // by draft count
    for (int i = 0; i < 300; ++i) {
      const std::vector<int> drafts = DraftsOf(scheduler->Schedule());
      ASSERT_EQ(drafts[0], drafts[1]);
      // The fifth draft is right in every other step, and all later drafts are wrong.
      const int num_right = i % 2 == 0 ? 4 : 5;
      const std::vector<int32_t> row(1 + std::min(drafts[0], num_right), 7);
      const NewTokens tokens(8, {row, row});
      scheduler->ObserveStep(absl::Microseconds(100 + per_draft_us * drafts[0]), tokens.output());
      scheduler->Commit(tokens.output(), events);
      if (i >= 60) ++num_steps[drafts[0]];
    }
    // (1 + n) tokens per 100 + n * x us up to n = 4, and 5.5 tokens for n = 8.
    const int best = per_draft_us == 200 ? 0 : per_draft_us == 30 ? 4 : 8;
    EXPECT_GE(num_steps[best], 240 - 2 * DraftCosts::kProbeSteps);
  }
}

// A prompt arrives in every step. No step has decodes only, so acceptance decides.
TEST(SchedulerSpeculationTest, StepsWithPromptsStopSpeculatingIfDraftsAreNeverRight) {
  for (const bool is_right : {false, true}) {
    SCOPED_TRACE(is_right);
    SchedulerOptions options = Options(3);
    options.shape.max_seq_len = 1100;
    options.shape.num_blocks = 1200;
    options.policy.prefix_reuse = PrefixReuse::kOff;
    options.policy.speculation->measures_steps = true;
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    Add(*scheduler, {.prompt = {1}, .max_new_tokens = 1090});
    scheduler->Schedule();
    scheduler->Commit({7}, events);
    int num_with_drafts = 0;
    constexpr int kNumSteps = DraftCosts::kProbeInterval;
    for (int i = 0; i < kNumSteps; ++i) {
      Add(*scheduler, {.prompt = {2, 3, 4}, .max_new_tokens = 1});
      const std::vector<int> drafts = DraftsOf(scheduler->Schedule());
      ASSERT_THAT(drafts, SizeIs(2));
      num_with_drafts += drafts[0] > 0 ? 1 : 0;
      const std::vector<int32_t> row(is_right ? 1 + drafts[0] : 1, 7);
      const NewTokens tokens(3, {row, {7}});
      scheduler->ObserveStep(absl::Microseconds(500), tokens.output());
      scheduler->Commit(tokens.output(), events);
    }
    EXPECT_EQ(num_with_drafts, is_right ? kNumSteps : DraftCosts::kFirstRows)
        << "the probes come at the end of an interval";
  }
}

TEST(SchedulerSpeculationTest, DraftCountFollowsTheAcceptanceOfASequence) {
  auto scheduler = Make(Options(4));
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 90});
  Add(*scheduler, {.prompt = {2}, .max_new_tokens = 90});
  scheduler->Schedule();
  scheduler->Commit({1, 2}, events);
  for (int i = 0; i < 12; ++i) {
    const std::vector<int> drafts = DraftsOf(scheduler->Schedule());
    EXPECT_EQ(drafts[0], 4);
    scheduler->Commit(NewTokens(4, {std::vector<int32_t>(5, 1), {1}}).output(), events);
  }
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(4, 0));
}

TEST(SchedulerSpeculationTest, HostSchedulesBeforeItKnowsTheNumberOfNewTokens) {
  SchedulerOptions options = Options(3);
  options.shape.max_steps_in_flight = 3;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 12});
  scheduler->Schedule();  // the prompt, which generates token 1 of 12
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(3));
  EXPECT_EQ(scheduler->blocks().num_tokens(SlotId(0)), 3 + 4 + 4);
  scheduler->Commit({4}, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2))
      << "at most 9 tokens are generated by then";
  scheduler->CheckInvariants();
  EXPECT_EQ(scheduler->blocks().num_tokens(SlotId(0)), 3 + 4 + 4 + 3);
  scheduler->Commit(NewTokens(3, {{5}}).output(), events);
  scheduler->CheckInvariants();
  // 2 tokens are known, and at most 4 and 3 are in flight.
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2));
  scheduler->CheckInvariants();
  scheduler->Commit(NewTokens(3, {{6, 7, 8, 9}}).output(), events);
  scheduler->Commit(NewTokens(3, {{10, 11, 12}}).output(), events);
  scheduler->CheckInvariants();
  events.clear();
  scheduler->Commit(NewTokens(3, {{13, 14, 15}}).output(), events);
  EXPECT_THAT(TokensOf(events), ElementsAre(13, 14, 15));
  EXPECT_EQ(events.back().index, 11);
  EXPECT_EQ(events.back().finish, FinishReason::kLength);
  EXPECT_FALSE(scheduler->has_work());
}

TEST(SchedulerSpeculationTest, DraftsTakeOnlyBlocksThatAreFree) {
  SchedulerOptions options = Options(6);
  options.shape.num_blocks = 1 + 4;
  options.policy.prefix_reuse = PrefixReuse::kOff;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1, 2}, .max_new_tokens = 8});
  Add(*scheduler, {.prompt = {1, 2, 3, 4}, .max_new_tokens = 8});
  scheduler->Schedule();
  scheduler->Commit({1, 2}, events);
  // One block is free, and the drafts of the first row would need two. The drafts of both rows
  // therefore use only the rest of their last blocks.
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(1, 3));
  EXPECT_EQ(scheduler->num_preemptions(), 0);
  scheduler->Commit(NewTokens(6, {{3}, {3}}).output(), events);
  scheduler->CheckInvariants();
  // The first row takes the block. The other row uses the room of its rejected drafts.
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(2, 2));
  EXPECT_EQ(scheduler->num_preemptions(), 0);
}

TEST(SchedulerSpeculationTest, ARowWithoutATokenEndsItsSequence) {
  auto scheduler = Make(Options(3));
  std::vector<TokenEvent> events;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 50});
  Add(*scheduler, {.prompt = {2}, .max_new_tokens = 50});
  scheduler->Schedule();
  scheduler->Commit({1, 2}, events);
  scheduler->Schedule();
  events.clear();
  scheduler->Commit(NewTokens(3, {{}, {3, 4}}).output(), events);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_EQ(events[1].token, 3);
  EXPECT_EQ(events[2].token, 4);
  scheduler->CheckInvariants();
}

TEST(SchedulerSpeculationTest, AllocatesNothingInTheSteadyState) {
  SchedulerOptions options = Options(4);
  options.shape.max_seq_len = 2000;
  options.shape.num_blocks = 4000;
  options.shape.max_steps_in_flight = 2;
  auto scheduler = Make(options);
  for (int i = 0; i < 4; ++i) Add(*scheduler, {.prompt = {i}, .max_new_tokens = 1900});
  std::vector<TokenEvent> events;
  events.reserve(100);
  scheduler->Schedule();
  scheduler->Schedule();
  scheduler->Commit({1, 2, 3, 4}, events);
  const NewTokens tokens(4, {{1, 2}, {1, 2}, {1, 2}, {1, 2}});
  const auto step = [&] {
    scheduler->Schedule();
    events.clear();
    scheduler->Commit(tokens.output(), events);
  };
  for (int i = 0; i < 5; ++i) step();
  AllocationCounter allocations;
  for (int i = 0; i < 300; ++i) step();
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_THAT(events, SizeIs(8));
  EXPECT_GT(scheduler->speculation_statistics().num_drafts, 2000);
}

// ---- The texts match plain decoding for any acceptance.

struct Case {
  std::string name;
  SchedulerOptions options;
  std::vector<Request> requests;
  bool preempts = false;
};

std::vector<Request> SomeRequests(int count, int max_new_tokens) {
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request request = {.prompt = std::vector<int32_t>(3 + 2 * i), .max_new_tokens = max_new_tokens};
    std::iota(request.prompt.begin(), request.prompt.end(), i);
    if (i % 2 == 1) request.sampling = {.temperature = 1, .seed = 70u + i};
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  cases.push_back({.name = "Plain", .options = Options(5), .requests = SomeRequests(6, 40)});

  Case stops = {.name = "StopTokens", .options = Options(7), .requests = SomeRequests(8, 80)};
  for (Request& request : stops.requests) request.stop_tokens = {3, 17, 31};
  cases.push_back(std::move(stops));

  Case context = {.name = "EndOfContext", .options = Options(7), .requests = SomeRequests(6, 80)};
  context.options.shape.max_seq_len = 30;
  cases.push_back(std::move(context));

  Case full = {.name = "FullCache", .options = Options(7), .requests = SomeRequests(6, 80)};
  full.options.shape.num_blocks = 1 + 10;
  full.preempts = true;
  cases.push_back(full);
  full.name = "FullCacheOfSwaps";
  full.options.shape.num_swap_blocks = 40;
  full.options.shape.bytes_per_block = 1000;
  full.options.policy.preemption = PreemptionMode::kSwap;
  cases.push_back(std::move(full));

  Case windows = {.name = "Windows", .options = Options(7), .requests = SomeRequests(6, 40)};
  windows.options.shape.groups = {{},
                                  {.retention = KvRetention::kSlidingWindow, .span = 5},
                                  {.retention = KvRetention::kChunkedLocal, .span = 6}};
  windows.options.policy.prefill_chunk = 3;
  windows.options.shape.num_blocks = 1 + 40;
  cases.push_back(std::move(windows));

  Case forks = {.name = "Forks", .options = Options(4), .requests = SomeRequests(3, 20)};
  for (Request& request : forks.requests) {
    request.num_sequences = 3;
    request.sampling = {.temperature = 1, .seed = 9};
  }
  cases.push_back(std::move(forks));

  Case few = {.name = "FewTokens", .options = Options(5), .requests = {}};
  for (int n = 1; n < 9; ++n) {
    for (Request& request : SomeRequests(2, n)) few.requests.push_back(request);
  }
  cases.push_back(std::move(few));
  return cases;
}

class SpeculatedTextsTest : public testing::TestWithParam<std::tuple<int, int>> {};

// Runs the scheduler to the end. Returns the texts by request and sample.
std::map<std::pair<int64_t, int>, PuppetText> RunAll(Scheduler& scheduler, PuppetDevice& device) {
  std::map<std::pair<int64_t, int>, PuppetText> texts;
  std::vector<TokenEvent> events;
  for (int step = 0; scheduler.has_work() && step < 5000; ++step) {
    bool launched = false;
    if (scheduler.can_schedule()) {
      const ScheduledBatch& batch = scheduler.Schedule();
      launched = !batch.rows.empty();
      if (launched) device.Launch(batch);
      if (testing::Test::HasFatalFailure()) return texts;
    }
    scheduler.CheckInvariants();
    if (launched && scheduler.can_schedule()) continue;
    if (scheduler.num_in_flight() == 0) break;
    events.clear();
    EXPECT_TRUE(device.Await().ok());
    scheduler.Commit(device.output(), events);
    for (const TokenEvent& event : events) {
      PuppetText& text = texts[{event.sequence.value(), event.sample}];
      EXPECT_EQ(event.index, static_cast<int>(text.tokens.size()));
      EXPECT_EQ(text.finish, FinishReason::kNone) << "an event after the end";
      text.Add(event);
    }
    scheduler.CheckInvariants();
  }
  EXPECT_FALSE(scheduler.has_work());
  return texts;
}

TEST_P(SpeculatedTextsTest, OutputMatchesPlainDecoding) {
  const auto [right_drafts, num_steps_in_flight] = GetParam();
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    SchedulerOptions options = c.options;
    options.shape.max_steps_in_flight = num_steps_in_flight;
    auto scheduler = Make(options);
    PuppetDevice device(options);
    device.set_right_drafts(right_drafts);
    for (const Request& request : c.requests) Add(*scheduler, request);
    const auto texts = RunAll(*scheduler, device);
    if (HasFailure()) return;
    for (size_t i = 0; i < c.requests.size(); ++i) {
      for (int sample = 0; sample < c.requests[i].num_sequences; ++sample) {
        const auto it = texts.find({static_cast<int64_t>(i), sample});
        ASSERT_TRUE(it != texts.end()) << i;
        EXPECT_EQ(it->second,
                  ExpectedText(c.requests[i], sample, options, scheduler->max_cached_tokens()))
            << "request " << i << ", sample " << sample;
      }
    }
    EXPECT_EQ(scheduler->blocks().pool().num_used(), 0) << "leaked blocks";
    const SpeculationStatistics& statistics = scheduler->speculation_statistics();
    EXPECT_GT(statistics.num_rows, 0);
    EXPECT_LE(statistics.num_drafts, device.num_drafts());
    if (right_drafts == 0) {
      EXPECT_EQ(statistics.num_accepted, 0);
    } else if (right_drafts == 1000) {
      EXPECT_EQ(statistics.num_accepted, statistics.num_drafts);
    }
    if (c.preempts) {
      EXPECT_GT(scheduler->num_preemptions(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Drafts, SpeculatedTextsTest,
                         testing::Combine(testing::Values(0, 500, 900, 1000),
                                          testing::Values(1, 2, 3)));

TEST(SchedulerSpeculationTest, AcceptedDraftsSaveSteps) {
  for (const int right_drafts : {0, 1000}) {
    const SchedulerOptions options = Options(4);
    auto scheduler = Make(options);
    PuppetDevice device(options);
    device.set_right_drafts(right_drafts);
    Add(*scheduler, {.prompt = {1}, .max_new_tokens = 81});
    std::vector<TokenEvent> events;
    int num_steps = 0;
    for (; scheduler->has_work(); ++num_steps) {
      device.Launch(scheduler->Schedule());
      ASSERT_TRUE(device.Await().ok());
      scheduler->Commit(device.output(), events);
    }
    EXPECT_EQ(num_steps, right_drafts == 0 ? 81 : 1 + 80 / 5);
    EXPECT_THAT(events, SizeIs(81));
  }
}

TEST(SchedulerSpeculationTest, SequencesWithDraftsInFlightFreeTheirBlocks) {
  SchedulerOptions options = Options(5);
  options.shape.max_steps_in_flight = 3;
  auto scheduler = Make(options);
  PuppetDevice device(options);
  device.set_right_drafts(600);
  const SequenceId first = Add(*scheduler, {.prompt = {1, 2}, .max_new_tokens = 60});
  const SequenceId second = Add(*scheduler, {.prompt = {3, 4, 5}, .max_new_tokens = 60});
  std::vector<TokenEvent> events;
  for (int i = 0; i < 3; ++i) device.Launch(scheduler->Schedule());
  ASSERT_TRUE(scheduler->Cancel(first, events).ok());
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish, FinishReason::kCancelled);
  const auto texts = RunAll(*scheduler, device);
  EXPECT_THAT(texts, SizeIs(1));
  const PuppetText expected =
      ExpectedText({.prompt = {3, 4, 5}, .max_new_tokens = 60}, 0, options, 100);
  EXPECT_EQ(texts.at({second.value(), 0}), expected);
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
}

}  // namespace
}  // namespace reprise
