// Sequences that end early: by a cancellation, a deadline or a failure.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/kv_group.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/make_scheduler.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// Two rows, two steps in flight, blocks of two tokens.
const SchedulerOptions kOptions = {.shape = {.max_num_seqs = 2,
                                             .max_num_tokens = 8,
                                             .max_seq_len = 16,
                                             .max_steps_in_flight = 2,
                                             .num_blocks = 30,
                                             .block_size = 2}};

TokenEvent Ended(SequenceId id, int index, FinishReason reason,
                 const absl::Status& error = absl::OkStatus()) {
  return {.sequence = id, .index = index, .finish = reason, .error = error};
}

const absl::Status& Cause() {
  static const absl::Status cause = absl::InternalError("the device caught fire");
  return cause;
}

TEST(SchedulerCancelTest, WaitingSequenceIsNeverAdmitted) {
  auto scheduler = Make(kOptions);
  const SequenceId first = Add(*scheduler, {.prompt = {1}});
  const SequenceId second = Add(*scheduler, {.prompt = {2}});
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler->Cancel(first, events).ok());
  EXPECT_THAT(events, ElementsAre(Ended(first, 0, FinishReason::kCancelled)));
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(1));
  scheduler->Commit({5}, events);
  EXPECT_EQ(events.back().sequence, second);
  scheduler->CheckInvariants();
}

TEST(SchedulerCancelTest, RunningSequenceFreesItsBlocksAndDropsTokensInFlight) {
  auto scheduler = Make(kOptions);
  const SequenceId id = Add(*scheduler, {.prompt = {1, 2, 3}});
  std::vector<TokenEvent> events;
  scheduler->Schedule();
  scheduler->Schedule();
  scheduler->Commit({5}, events);
  scheduler->Schedule();
  events.clear();
  ASSERT_TRUE(scheduler->Cancel(id, events).ok());
  EXPECT_THAT(events, ElementsAre(Ended(id, 1, FinishReason::kCancelled)));
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  EXPECT_TRUE(scheduler->has_work());  // two open batches
  scheduler->CheckInvariants();
  scheduler->Commit({6}, events);
  scheduler->Commit({7}, events);
  EXPECT_THAT(events, SizeIs(1));
  EXPECT_FALSE(scheduler->has_work());
  scheduler->CheckInvariants();
}

TEST(SchedulerCancelTest, SecondCancelReturnsNotFound) {
  auto scheduler = Make(kOptions);
  const SequenceId id = Add(*scheduler, {.prompt = {1}});
  std::vector<TokenEvent> events;
  scheduler->Schedule();
  ASSERT_TRUE(scheduler->Cancel(id, events).ok());
  EXPECT_TRUE(absl::IsNotFound(scheduler->Cancel(id, events)));  // the row is still in flight
  scheduler->Commit({5}, events);
  EXPECT_TRUE(absl::IsNotFound(scheduler->Cancel(id, events)));
  EXPECT_TRUE(absl::IsNotFound(scheduler->Cancel(SequenceId(77), events)));
  EXPECT_TRUE(absl::IsNotFound(scheduler->Cancel(SequenceId(-1), events)));
  EXPECT_THAT(events, SizeIs(1));
}

TEST(SchedulerCancelTest, CancelEndsAllSequencesOfARequest) {
  auto scheduler = Make(kOptions);
  const SequenceId id =
      Add(*scheduler, {.prompt = {1, 2, 3}, .sampling = {.temperature = 1}, .num_sequences = 2});
  std::vector<TokenEvent> events;
  scheduler->Schedule();  // one sequence runs, the other waits for its keys
  ASSERT_TRUE(scheduler->Cancel(id, events).ok());
  TokenEvent other = Ended(id, 0, FinishReason::kCancelled);
  other.sample = 1;
  EXPECT_THAT(events, ElementsAre(Ended(id, 0, FinishReason::kCancelled), other));
  scheduler->Commit({5}, events);
  EXPECT_FALSE(scheduler->has_work());
  scheduler->CheckInvariants();
}

TEST(SchedulerDeadlineTest, ExpiredSequencesEndWhetherWaitingOrRunning) {
  auto scheduler = Make(kOptions);
  const absl::Time start = absl::UnixEpoch();
  const SequenceId early = Add(*scheduler, {.prompt = {1}, .deadline = start + absl::Seconds(1)});
  const SequenceId never = Add(*scheduler, {.prompt = {2}});
  const SequenceId late = Add(*scheduler, {.prompt = {3}, .deadline = start + absl::Seconds(3)});
  const SequenceId waits = Add(*scheduler, {.prompt = {4}, .deadline = start + absl::Seconds(2)});
  std::vector<TokenEvent> events;
  scheduler->EndExpired(start, events);
  EXPECT_THAT(events, IsEmpty());
  scheduler->Schedule();  // the first two run
  scheduler->Commit({5, 6}, events);
  events.clear();
  scheduler->EndExpired(start + absl::Milliseconds(999), events);
  EXPECT_THAT(events, IsEmpty());
  scheduler->EndExpired(start + absl::Seconds(2),
                        events);  // a deadline that equals `now` has passed
  EXPECT_THAT(events, UnorderedElementsAre(Ended(early, 1, FinishReason::kDeadline),
                                           Ended(waits, 0, FinishReason::kDeadline)));
  scheduler->CheckInvariants();
  events.clear();
  scheduler->EndExpired(start + absl::Seconds(4), events);
  EXPECT_THAT(events, ElementsAre(Ended(late, 0, FinishReason::kDeadline)));
  events.clear();
  scheduler->EndExpired(absl::InfiniteFuture(), events);
  EXPECT_THAT(events, IsEmpty());
  EXPECT_EQ(scheduler->num_running(), 1);
  ASSERT_TRUE(scheduler->Cancel(never, events).ok());
}

TEST(SchedulerDeadlineTest, RequestWithAPastDeadlineNeverRuns) {
  auto scheduler = Make(kOptions);
  const SequenceId id = Add(*scheduler, {.prompt = {1}, .deadline = absl::InfinitePast()});
  EXPECT_TRUE(scheduler->has_work());
  std::vector<TokenEvent> events;
  scheduler->EndExpired(absl::UnixEpoch(), events);
  EXPECT_THAT(events, ElementsAre(Ended(id, 0, FinishReason::kDeadline)));
  EXPECT_FALSE(scheduler->has_work());
}

TEST(SchedulerFailureTest, FailedStepFailsOnlyItsSequences) {
  SchedulerOptions options = kOptions;
  options.shape.max_num_seqs = 3;
  auto scheduler = Make(options);
  const SequenceId first = Add(*scheduler, {.prompt = {1, 2, 3}});
  std::vector<TokenEvent> events;
  scheduler->Schedule();
  scheduler->Commit({5}, events);
  scheduler->Schedule();  // a step with only the first sequence, which fails
  const SequenceId second = Add(*scheduler, {.prompt = {7, 8, 9}});
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(2));  // the next step in flight
  events.clear();
  scheduler->CommitFailed(Cause(), events);
  EXPECT_THAT(events, ElementsAre(Ended(first, 1, FinishReason::kError, Cause())));
  scheduler->CheckInvariants();
  events.clear();
  scheduler->Commit({6, 10}, events);  // the token of the first sequence is discarded
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].sequence, second);
  EXPECT_EQ(events[0].token, 10);
  EXPECT_EQ(scheduler->num_running(), 1);
  scheduler->CheckInvariants();
}

TEST(SchedulerFailureTest, KeysOfAFailedStepAreNotHit) {
  auto scheduler = Make(kOptions);
  Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9}, .max_new_tokens = 1});
  std::vector<TokenEvent> events;
  scheduler->Schedule();  // the first 8 tokens
  scheduler->Schedule();  // the last token
  scheduler->Commit({-1}, events);
  scheduler->CommitFailed(Cause(), events);
  Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, .max_new_tokens = 1});
  EXPECT_EQ(scheduler->Schedule().joins[0].seq_len, 8);
  events.clear();
  scheduler->CommitFailed(Cause(), events);
  ASSERT_THAT(events, SizeIs(1));
  Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, .max_new_tokens = 1});
  EXPECT_EQ(scheduler->Schedule().joins[0].seq_len, 8);  // and not 10
}

TEST(SchedulerFailureTest, EncoderInputOfAFailedStepIsEncodedAgain) {
  SchedulerOptions options = kOptions;
  options.shape.groups = {{}, {.retention = KvRetention::kCross}};
  options.shape.max_encoder_tokens = 5;
  options.shape.max_encoder_step_tokens = 8;
  auto scheduler = Make(options);
  const Request request = {.prompt = {1}, .encoder_tokens = {7, 8, 9}, .max_new_tokens = 1};
  Add(*scheduler, request);
  std::vector<TokenEvent> events;
  EXPECT_THAT(scheduler->Schedule().encodes, SizeIs(1));
  scheduler->CommitFailed(Cause(), events);
  Add(*scheduler, request);
  EXPECT_THAT(scheduler->Schedule().encodes, SizeIs(1));
  scheduler->Commit({5}, events);
  Add(*scheduler, request);
  EXPECT_THAT(scheduler->Schedule().encodes, SizeIs(0));
  scheduler->CheckInvariants();
}

TEST(SchedulerFailureTest, RowWithoutATokenFailsOnlyItsSequence) {
  auto scheduler = Make(kOptions);
  const SequenceId first = Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 1});
  const SequenceId second = Add(*scheduler, {.prompt = {7, 8, 9}, .max_new_tokens = 1});
  std::vector<TokenEvent> events;
  scheduler->Schedule();
  scheduler->Commit({-2, 4}, events);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].sequence, first);
  EXPECT_EQ(events[0].finish, FinishReason::kError);
  EXPECT_EQ(events[0].token, std::nullopt);
  EXPECT_THAT(std::string(events[0].error.message()), HasSubstr("3 tokens of the sequence"));
  EXPECT_EQ(events[1].sequence, second);
  EXPECT_EQ(events[1].token, 4);
  scheduler->CheckInvariants();
  // The keys of the failed sequence are not found.
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 1});
  EXPECT_EQ(scheduler->Schedule().joins[0].seq_len, 0);
}

TEST(SchedulerFailureTest, RefusedLaunchFailsRunningSequencesAndReportsLeavesOnce) {
  SchedulerOptions options = kOptions;
  options.shape.max_num_seqs = 3;
  auto scheduler = Make(options);
  const SequenceId stops = Add(*scheduler, {.prompt = {1}, .stop_tokens = {9}});
  const SequenceId runs = Add(*scheduler, {.prompt = {2}});
  std::vector<TokenEvent> events;
  const ScheduledBatch& first = scheduler->Schedule();  // slots 0 and 1
  ASSERT_THAT(first.joins, SizeIs(2));
  scheduler->Commit({9, 4}, events);
  EXPECT_EQ(events[0].sequence, stops);
  const SequenceId two_more[] = {Add(*scheduler, {.prompt = {3}}),
                                 Add(*scheduler, {.prompt = {4}})};
  const SequenceId waits = Add(*scheduler, {.prompt = {5}});
  // Slot 0 leaves and joins again, slot 2 joins for the first time, and slot 1 has a row.
  const ScheduledBatch& refused = scheduler->Schedule();
  ASSERT_THAT(refused.leaves, ElementsAre(SlotId(0)));
  ASSERT_THAT(refused.rows, SizeIs(3));
  events.clear();
  scheduler->AbandonLaunch(Cause(), events);
  EXPECT_THAT(events, UnorderedElementsAre(Ended(runs, 1, FinishReason::kError, Cause()),
                                           Ended(two_more[0], 0, FinishReason::kError, Cause()),
                                           Ended(two_more[1], 0, FinishReason::kError, Cause())));
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  scheduler->CheckInvariants();
  // The runner still has the former sequences in slots 0 and 1.
  const ScheduledBatch& next = scheduler->Schedule();
  EXPECT_THAT(next.leaves, UnorderedElementsAre(SlotId(0), SlotId(1)));
  EXPECT_THAT(next.joins, SizeIs(1));
  events.clear();
  scheduler->Commit({6}, events);
  EXPECT_EQ(events[0].sequence, waits);
}

TEST(SchedulerFailureTest, DeadRunnerFailsAllSequences) {
  auto scheduler = Make(kOptions);
  const SequenceId ids[] = {Add(*scheduler, {.prompt = {1}}), Add(*scheduler, {.prompt = {2}}),
                            Add(*scheduler, {.prompt = {3}})};
  std::vector<TokenEvent> events;
  scheduler->Schedule();
  scheduler->Schedule();
  scheduler->EndAll(Cause(), events);
  EXPECT_THAT(events, UnorderedElementsAre(Ended(ids[0], 0, FinishReason::kError, Cause()),
                                           Ended(ids[1], 0, FinishReason::kError, Cause()),
                                           Ended(ids[2], 0, FinishReason::kError, Cause())));
  EXPECT_FALSE(scheduler->has_work());
  EXPECT_EQ(scheduler->num_in_flight(), 0);
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  scheduler->CheckInvariants();
}

}  // namespace
}  // namespace reprise
