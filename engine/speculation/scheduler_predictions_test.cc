// Drafts from the predicted text of a request (Request::predicted_tokens).

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/make_scheduler.h"
#include "reprise/engine/testing/new_tokens.h"
#include "reprise/engine/testing/puppet_device.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SchedulerOptions Options(int num_drafts) {
  SchedulerOptions options = OptionsWithDrafts(num_drafts);
  options.shape.drafts.has_proposer = false;
  return options;
}

std::vector<int32_t> Drafts(const ScheduledRow& row) {
  return {row.drafts.begin(), row.drafts.end()};
}

TEST(SchedulerPredictionsTest, DraftsAreThePredictedTokensAfterTheText) {
  auto scheduler = Make(Options(3));
  std::vector<TokenEvent> events;
  Add(*scheduler,
      {.prompt = {1, 2, 3}, .max_new_tokens = 20, .predicted_tokens = {5, 6, 7, 8, 9, 10}});
  Add(*scheduler, {.prompt = {1, 2}, .max_new_tokens = 20});
  scheduler->Schedule();
  scheduler->Commit({5, 5}, events);
  const ScheduledBatch& batch = scheduler->Schedule();
  EXPECT_THAT(Drafts(batch.rows[0]), ElementsAre(6, 7, 8));
  EXPECT_EQ(batch.rows[0].num_drafts, 0);
  EXPECT_THAT(DraftsOf(batch), ElementsAre(3, 0)) << "the second request has no prediction";
  scheduler->Commit(NewTokens(3, {{6, 11}, {5}}).output(), events);
  scheduler->CheckInvariants();
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0)) << "11 is not predicted";
  scheduler->Commit({7, 5}, events);
  EXPECT_THAT(Drafts(scheduler->Schedule().rows[0]), ElementsAre(8, 9, 10));
  scheduler->Commit(NewTokens(3, {{8, 9, 10, 12}, {5}}).output(), events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 0)) << "the prediction has ended";
  EXPECT_EQ(scheduler->speculation_statistics().num_drafts, 6);
  EXPECT_EQ(scheduler->speculation_statistics().num_accepted, 4);
}

TEST(SchedulerPredictionsTest, AssumesThatTokensInFlightMatchThePrediction) {
  SchedulerOptions options = Options(2);
  options.shape.max_steps_in_flight = 3;
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  Add(*scheduler,
      {.prompt = {1, 2, 3}, .max_new_tokens = 20, .predicted_tokens = {5, 6, 7, 8, 9, 10, 11}});
  scheduler->Schedule();
  EXPECT_THAT(Drafts(scheduler->Schedule().rows[0]), ElementsAre(6, 7)) << "after 5";
  EXPECT_THAT(Drafts(scheduler->Schedule().rows[0]), ElementsAre(9, 10)) << "after 5, 6, 7, 8";
  scheduler->Commit({5}, events);
  scheduler->Commit(NewTokens(2, {{6, 7, 8}}).output(), events);
  scheduler->CheckInvariants();
}

// The drafter proposes if the prediction has no tokens. A drafter with a KV cache has not read the
// tokens that were proposed from the prediction.
TEST(SchedulerPredictionsTest, DrafterProposesIfThePredictionHasNoTokens) {
  for (const DrafterKeys keys : {DrafterKeys::kNone, DrafterKeys::kOfDrafts}) {
    SchedulerOptions options = OptionsWithDrafts(2);
    options.shape.drafts.keys = keys;
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    Add(*scheduler,
        {.prompt = {1, 2, 3}, .max_new_tokens = 50, .predicted_tokens = {5, 6, 7, 8, 9}});
    scheduler->Schedule();
    scheduler->Commit({5}, events);
    EXPECT_THAT(Drafts(scheduler->Schedule().rows[0]), ElementsAre(6, 7));
    scheduler->Commit(NewTokens(2, {{6, 7, 8}}).output(), events);
    EXPECT_THAT(Drafts(scheduler->Schedule().rows[0]), ElementsAre(9));
    scheduler->Commit(NewTokens(2, {{9, 10}}).output(), events);
    EXPECT_EQ(scheduler->speculation_statistics().num_accepted, 3);
    EXPECT_EQ(scheduler->Schedule().rows[0].num_drafts, 2);
    scheduler->Commit(NewTokens(2, {{11}}).output(), events);
    // The drafter has read none of the tokens 5 to 9. It reads three per row.
    EXPECT_EQ(scheduler->speculation_statistics().num_catch_up_rows,
              keys == DrafterKeys::kNone ? 0 : 1);
    scheduler->CheckInvariants();
  }
}

TEST(SchedulerPredictionsTest, RequestLimitsApplyToPredictedDrafts) {
  auto scheduler = Make(Options(3));
  std::vector<TokenEvent> events;
  const std::vector<int32_t> predicted = {5, 6, 7, 8, 9, 10};
  Add(*scheduler,
      {.prompt = {1}, .max_new_tokens = 20, .predicted_tokens = predicted, .max_drafts = 0});
  Add(*scheduler,
      {.prompt = {1}, .max_new_tokens = 20, .predicted_tokens = predicted, .max_drafts = 1});
  Add(*scheduler,
      {.prompt = {1}, .max_new_tokens = 20, .num_log_probs = 0, .predicted_tokens = predicted});
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 3, .predicted_tokens = predicted});
  PuppetDevice device(Options(3));
  device.Launch(scheduler->Schedule());
  ASSERT_TRUE(device.Await().ok());
  StepResult output = device.output();
  const std::vector<int32_t> fives(4, 5);
  output.tokens = fives;
  scheduler->Commit(output, events);
  EXPECT_THAT(DraftsOf(scheduler->Schedule()), ElementsAre(0, 1, 0, 1))
      << "the row itself generates the second of three tokens";
}

// ---- The text does not depend on the prediction.

struct Case {
  std::string name;
  SchedulerOptions options;
  bool stops = false;
  bool preempts = false;
};

std::vector<Case> Cases() {
  std::vector<Case> cases = {{.name = "Plain", .options = Options(5)},
                             {.name = "StopTokens", .options = Options(7), .stops = true},
                             {.name = "EndOfContext", .options = Options(7)},
                             {.name = "FullCache", .options = Options(7), .preempts = true},
                             {.name = "Swaps", .options = Options(7), .preempts = true},
                             {.name = "BesideADrafter", .options = OptionsWithDrafts(4)},
                             {.name = "BesideTrees", .options = OptionsWithDrafts(3)},
                             {.name = "Chunks", .options = Options(3)}};
  cases[2].options.shape.max_seq_len = 30;
  cases[3].options.shape.num_blocks = 1 + 10;
  cases[4].options.shape.num_blocks = 1 + 10;
  cases[4].options.shape.num_swap_blocks = 40;
  cases[4].options.shape.bytes_per_block = 1000;
  cases[4].options.policy.preemption = PreemptionMode::kSwap;
  cases[6].options.shape.drafts.level_drafts = {2, 5, 6};
  cases[7].options.policy.prefill_chunk = 3;
  return cases;
}

// Runs the scheduler to the end. Returns the generated texts of all requests, by sequence id.
std::map<int64_t, PuppetText> TextsOf(Scheduler& scheduler, PuppetDevice& device, int& num_steps) {
  std::map<int64_t, PuppetText> texts;
  std::vector<TokenEvent> events;
  for (num_steps = 0; scheduler.has_work() && num_steps < 2000; ++num_steps) {
    bool is_idle = false;
    while (scheduler.can_schedule() && !is_idle) {
      const ScheduledBatch& batch = scheduler.Schedule();
      is_idle = batch.rows.empty();
      if (!is_idle) device.Launch(batch);
      if (testing::Test::HasFatalFailure()) return texts;
    }
    if (scheduler.num_in_flight() == 0) break;
    events.clear();
    EXPECT_TRUE(device.Await().ok());
    scheduler.Commit(device.output(), events);
    scheduler.CheckInvariants();
    for (const TokenEvent& event : events) texts[event.sequence.value()].Add(event);
  }
  EXPECT_FALSE(scheduler.has_work());
  return texts;
}

class PredictedTextsTest : public testing::TestWithParam<int> {};

TEST_P(PredictedTextsTest, OutputMatchesPlainDecoding) {
  for (const Case& c : Cases()) {
    for (const int changed_every :
         {0, 7, 1}) {  // 0: the prediction is right; 1: every token is wrong
      SCOPED_TRACE(testing::Message() << c.name << ", " << changed_every);
      SchedulerOptions options = c.options;
      options.shape.max_steps_in_flight = GetParam();
      auto scheduler = Make(options);
      PuppetDevice device(options);
      device.set_right_drafts(300);
      std::vector<Request> requests;
      int64_t num_tokens = 0;
      std::vector<PuppetText> want;
      for (int i = 0; i < 6; ++i) {
        // Half of the prompts share a prefix, so the cache has hits.
        Request request = {.prompt = std::vector<int32_t>(9 + 2 * i, 3), .max_new_tokens = 60};
        std::iota(request.prompt.begin() + 4 * (i % 2), request.prompt.end(), i);
        if (i % 3 == 1) request.sampling = {.temperature = 1, .seed = 70u + i};
        if (c.stops) request.stop_tokens = {3, 17, 31};
        want.push_back(ExpectedText(request, 0, options, scheduler->max_cached_tokens()));
        num_tokens += static_cast<int64_t>(want.back().tokens.size());
        request.predicted_tokens = want.back().tokens;
        for (size_t t = 0; changed_every > 0 && t < request.predicted_tokens.size();
             t += changed_every) {
          request.predicted_tokens[t] = (request.predicted_tokens[t] + 1) % kPuppetVocab;
        }
        requests.push_back(request);
        Add(*scheduler, request);
      }
      int num_steps = 0;
      const auto texts = TextsOf(*scheduler, device, num_steps);
      if (HasFailure()) return;
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(texts.at(static_cast<int64_t>(i)), want[i]) << "request " << i;
      }
      const SpeculationStatistics& drafts = scheduler->speculation_statistics();
      EXPECT_GT(drafts.num_drafts, 0);
      if (changed_every == 0) {
        EXPECT_EQ(drafts.num_accepted, drafts.num_drafts);
        EXPECT_GT(drafts.num_accepted, num_tokens / 2);
      }
      EXPECT_EQ(scheduler->blocks().pool().num_used(), 0) << "leaked blocks";
      if (c.preempts) {
        EXPECT_GT(scheduler->num_preemptions(), 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(StepsInFlight, PredictedTextsTest, testing::Values(1, 2, 3));

}  // namespace
}  // namespace reprise
