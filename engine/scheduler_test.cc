#include "reprise/engine/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/prefix/prefix_events.h"
#include "reprise/cache/prefix/prefix_hash.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/testing/make_scheduler.h"
#include "reprise/engine/testing/puppet_device.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Runs the scheduler to the end. Commits only if no further batch can be launched.
std::map<int64_t, PuppetText> RunAll(Scheduler& scheduler, const SchedulerOptions& options) {
  PuppetDevice device(options);
  std::map<int64_t, PuppetText> outcomes;
  std::vector<TokenEvent> events;
  for (int step = 0; scheduler.has_work(); ++step) {
    if (step > 100000) {
      ADD_FAILURE() << "the scheduler does not finish";
      break;
    }
    bool launched = false;
    if (scheduler.can_schedule()) {
      const ScheduledBatch& batch = scheduler.Schedule();
      launched = !batch.rows.empty();
      if (launched) device.Launch(batch);
    }
    scheduler.CheckInvariants();
    if (scheduler.num_in_flight() == 0) {
      EXPECT_TRUE(launched) << "unfinished work, but an empty batch";
      if (!launched) break;
    }
    if (launched && scheduler.can_schedule()) continue;
    events.clear();
    scheduler.Commit(*device.Await(), events);
    for (const TokenEvent& event : events) {
      PuppetText& outcome = outcomes[event.sequence.value()];
      EXPECT_EQ(event.index, static_cast<int>(outcome.tokens.size()));
      EXPECT_EQ(outcome.finish, FinishReason::kNone) << "a token after the end";
      outcome.tokens.push_back(*event.token);
      outcome.finish = event.finish;
    }
    scheduler.CheckInvariants();
  }
  return outcomes;
}

TEST(SchedulerTest, DecodesGoFirstAndPromptsFillTheBudgetInChunks) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 4,
                                              .max_seq_len = 32,
                                              .num_blocks = 9,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2}, .max_new_tokens = 9}).ok());
  ASSERT_TRUE(scheduler->Add({.prompt = {3, 4, 5, 6, 7}, .max_new_tokens = 9}).ok());

  const ScheduledBatch& first =
      scheduler->Schedule();  // a prompt of 2, and the first 2 of 5 tokens
  ASSERT_THAT(first.rows, SizeIs(2));
  EXPECT_THAT(first.rows[0].tokens, ElementsAre(1, 2));
  EXPECT_EQ(first.rows[0].output, RowOutput::kToken);
  EXPECT_THAT(first.rows[1].tokens, ElementsAre(3, 4));
  EXPECT_EQ(first.rows[1].output, RowOutput::kNone);
  EXPECT_THAT(first.updates, SizeIs(1 + 2));  // ceil(2/4), ceil(5/4)
  std::vector<TokenEvent> events;
  scheduler->Commit({30, -1}, events);

  const ScheduledBatch& second = scheduler->Schedule();
  ASSERT_THAT(second.rows, SizeIs(2));
  EXPECT_THAT(second.rows[0].tokens, SizeIs(0));  // the slot's last token
  EXPECT_THAT(second.rows[1].tokens, ElementsAre(5, 6, 7));
  EXPECT_EQ(second.rows[1].output, RowOutput::kToken);
  EXPECT_THAT(second.joins, SizeIs(0));
}

TEST(SchedulerTest, SlotOfAFinishedSequenceIsReused) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 1,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 8,
                                              .num_blocks = 3,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  ASSERT_TRUE(scheduler->Add({.prompt = {1}, .max_new_tokens = 1}).ok());
  ASSERT_TRUE(scheduler->Add({.prompt = {2}, .max_new_tokens = 1}).ok());
  scheduler->Schedule();
  std::vector<TokenEvent> events;
  scheduler->Commit({7}, events);
  EXPECT_THAT(events, ElementsAre(TokenEvent{.sequence = SequenceId(0),
                                             .token = 7,
                                             .index = 0,
                                             .row = 0,
                                             .finish = FinishReason::kLength}));
  const ScheduledBatch& batch = scheduler->Schedule();
  EXPECT_THAT(batch.leaves, ElementsAre(SlotId(0)));
  ASSERT_THAT(batch.joins, SizeIs(1));
  EXPECT_EQ(batch.joins[0].slot, SlotId(0));
}

TEST(SchedulerTest, TokenAfterTheEndOfItsSequenceIsDiscarded) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 1,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 8,
                                              .max_steps_in_flight = 2,
                                              .num_blocks = 3,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  ASSERT_TRUE(scheduler->Add({.prompt = {1}, .max_new_tokens = 5, .stop_tokens = {9}}).ok());
  scheduler->Schedule();
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(1));  // launched before the first token is known
  std::vector<TokenEvent> events;
  scheduler->Commit({9}, events);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_TRUE(scheduler->has_work());  // one step is in flight
  scheduler->Commit({3}, events);
  EXPECT_THAT(events, SizeIs(1));
  EXPECT_FALSE(scheduler->has_work());
}

TEST(SchedulerTest, LastAdmittedSequenceIsPreemptedAndContinues) {
  // 6 blocks of one token, for two sequences of 1 + 4 tokens.
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 16,
                                              .num_blocks = 7,
                                              .block_size = 1},
                                    .policy = {.prefix_reuse = PrefixReuse::kOff}};
  auto scheduler = Make(options);
  const Request request = {.prompt = {1}, .max_new_tokens = 5};
  ASSERT_TRUE(scheduler->Add(request).ok());
  ASSERT_TRUE(scheduler->Add(request).ok());
  const auto outcomes = RunAll(*scheduler, options);
  EXPECT_EQ(scheduler->num_preemptions(), 1);
  EXPECT_EQ(outcomes.at(0).tokens, ExpectedText(request, 0, options, 6).tokens);
  EXPECT_EQ(outcomes.at(1).tokens, ExpectedText(request, 0, options, 6).tokens);
}

TEST(SchedulerTest, PromptBeginsAfterItsCachedPrefix) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 1,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 16,
                                              .num_blocks = 9,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3, 4, 5, 6}, .max_new_tokens = 4}).ok());
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3, 4, 9}, .max_new_tokens = 1}).ok());
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3, 4}, .max_new_tokens = 1}).ok());
  std::vector<TokenEvent> events;
  scheduler->Schedule();
  scheduler->Commit({7}, events);
  for (int token = 8; token < 11; ++token) {
    scheduler->Schedule();
    scheduler->Commit({token}, events);
  }
  // The second prompt hits the first block, and computes the remaining tokens.
  const ScheduledBatch& second = scheduler->Schedule();
  ASSERT_THAT(second.joins, SizeIs(1));
  EXPECT_EQ(second.joins[0].seq_len, 4);
  ASSERT_THAT(second.rows, SizeIs(1));
  EXPECT_THAT(second.rows[0].tokens, ElementsAre(9));
  EXPECT_THAT(second.updates, SizeIs(2));  // includes the table entry of the block that was hit
  scheduler->Commit({7}, events);
  // The third prompt is exactly this block. Its last token must be computed again, for its logits.
  const ScheduledBatch& third = scheduler->Schedule();
  EXPECT_EQ(third.joins[0].seq_len, 0);
  EXPECT_THAT(third.rows[0].tokens, SizeIs(4));
  scheduler->Commit({7}, events);
  EXPECT_EQ(scheduler->prefix_statistics().num_lookups, 3);
  EXPECT_EQ(scheduler->prefix_statistics().num_tokens_hit, 4);
}

TEST(SchedulerTest, PrefixEventsReportCachedAndForgottenPrefixes) {
  const SchedulerOptions options = {
      .shape = {.max_num_seqs = 1,
                .max_num_tokens = 8,
                .max_seq_len = 16,
                .num_blocks = 9,
                .block_size = 4},
      .policy = {.prefix_seed = PrefixSeed{.low = 1, .high = 2}, .num_prefix_events = 8}};
  using Kind = PrefixEvent::Kind;
  const auto kinds = [](const PrefixEvents& taken) {
    EXPECT_EQ(taken.num_lost, 0);
    std::vector<Kind> kinds;
    for (const PrefixEvent& event : taken.events) kinds.push_back(event.kind);
    return kinds;
  };
  auto scheduler = Make(options);
  const auto hits_of_prompt = [&] {
    const int64_t before = scheduler->prefix_statistics().num_tokens_hit;
    EXPECT_TRUE(scheduler->Add({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 1}).ok());
    std::vector<TokenEvent> events;
    scheduler->Schedule();
    scheduler->Commit({6}, events);
    EXPECT_FALSE(scheduler->has_work());
    return scheduler->prefix_statistics().num_tokens_hit - before;
  };
  EXPECT_THAT(kinds(scheduler->TakePrefixEvents()), SizeIs(0));
  EXPECT_EQ(hits_of_prompt(), 0);
  const PrefixEvents stored = scheduler->TakePrefixEvents();
  ASSERT_THAT(kinds(stored), ElementsAre(Kind::kStored));
  const PrefixHash hash = stored.events[0].hash;
  EXPECT_EQ(hits_of_prompt(), 4);
  EXPECT_THAT(kinds(scheduler->TakePrefixEvents()), SizeIs(0));

  scheduler->ForgetPrefixes();
  scheduler->CheckInvariants();
  EXPECT_EQ(hits_of_prompt(), 0);
  const PrefixEvents forgotten = scheduler->TakePrefixEvents();
  ASSERT_THAT(kinds(forgotten), ElementsAre(Kind::kCleared, Kind::kStored));
  EXPECT_EQ(forgotten.events[1].hash, hash);  // equal in all processes with this seed
  EXPECT_EQ(hits_of_prompt(), 4);
}

TEST(SchedulerTest, PartialHitCopiesItsLastBlock) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 16,
                                              .num_blocks = 9,
                                              .block_size = 4},
                                    .policy = {.partial_hits = PartialHits::kCopied}};
  auto scheduler = Make(options);
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3, 4, 5, 6, 7, 8}, .max_new_tokens = 2}).ok());
  EXPECT_THAT(scheduler->Schedule().copies, SizeIs(0));
  scheduler->Commit({9}, events);
  // While the first sequence runs, a second prompt shares one block and two tokens of the next
  // block with it.
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3, 4, 5, 6, 30, 31}, .max_new_tokens = 1}).ok());
  const ScheduledBatch& second = scheduler->Schedule();
  ASSERT_THAT(second.joins, SizeIs(1));
  EXPECT_EQ(second.joins[0].seq_len, 6);
  ASSERT_THAT(second.copies, SizeIs(1));
  const int slot = second.joins[0].slot.value();
  const absl::Span<const BlockId> blocks = scheduler->blocks().blocks(SlotId(slot));
  EXPECT_EQ(second.copies[0].dst, blocks[1].value());
  EXPECT_NE(second.copies[0].src, second.copies[0].dst);
  ASSERT_THAT(second.rows, SizeIs(2));
  EXPECT_THAT(second.rows[1].tokens, ElementsAre(30, 31));  // two tokens computed, not four
  scheduler->Commit({10, 11}, events);
  scheduler->CheckInvariants();
  EXPECT_EQ(scheduler->prefix_statistics().num_tokens_hit, 6);
}

TEST(SchedulerTest, TokensInFlightAreNeverPrefixHits) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 8,
                                              .max_steps_in_flight = 2,
                                              .num_blocks = 9,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3}, .max_new_tokens = 2}).ok());
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(1));
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3}, .max_new_tokens = 2}).ok());
  EXPECT_EQ(scheduler->Schedule().joins[0].seq_len,
            0);  // no full block, so the prompt does not wait
}

TEST(SchedulerTest, PreemptedSequenceHitsItsCachedTokens) {
  // Not all freed blocks of the second sequence are reused immediately.
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 16,
                                              .num_blocks = 11,
                                              .block_size = 1}};
  auto scheduler = Make(options);
  ASSERT_TRUE(scheduler->Add({.prompt = {1, 2}, .max_new_tokens = 5}).ok());
  ASSERT_TRUE(scheduler->Add({.prompt = {3, 4}, .max_new_tokens = 8}).ok());
  RunAll(*scheduler, options);
  EXPECT_EQ(scheduler->num_preemptions(), 1);
  EXPECT_GT(scheduler->prefix_statistics().num_tokens_hit, 0);
}

TEST(SchedulerTest, NoPrefixHitsWithoutReuse) {
  SchedulerOptions options = {.shape = {.max_num_seqs = 1,
                                        .max_num_tokens = 8,
                                        .max_seq_len = 8,
                                        .num_blocks = 9,
                                        .block_size = 2}};
  options.policy.prefix_reuse = PrefixReuse::kOff;
  auto scheduler = Make(options);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3}, .max_new_tokens = 1}).ok());
    EXPECT_EQ(scheduler->Schedule().joins[0].seq_len, 0);
    std::vector<TokenEvent> events;
    scheduler->Commit({5}, events);
  }
}

TEST(SchedulerTest, CommitFreesBlocksThatLeftAWindow) {
  SchedulerOptions options = {.shape = {.max_num_seqs = 1,
                                        .max_num_tokens = 4,
                                        .max_seq_len = 40,
                                        .num_blocks = 17,
                                        .block_size = 2}};
  options.shape.groups = {{.retention = KvRetention::kSlidingWindow, .span = 4}};
  auto scheduler = Make(options);
  EXPECT_EQ(scheduler->max_cached_tokens(), 40);  // 20 blocks; the sequence uses a few at a time
  ASSERT_TRUE(scheduler->Add({.prompt = std::vector<int32_t>(30, 1), .max_new_tokens = 8}).ok());
  std::vector<TokenEvent> events;
  int max_used = 0;
  while (scheduler->has_work()) {
    ASSERT_THAT(scheduler->Schedule().rows, SizeIs(1));
    max_used = std::max(max_used, scheduler->blocks().pool().num_used());
    scheduler->Commit({2}, events);
    scheduler->CheckInvariants();
  }
  EXPECT_EQ(events.size(), 8u);
  EXPECT_LE(max_used, 4);  // the 3 tokens before a chunk of 4, and the chunk
}

// A window of 7 tokens touches at most 2 of the 3 blocks of 16. The default chunk is 512 tokens.
TEST(SchedulerTest, LimitsChunksOfAWindowModelToThePool) {
  for (const int max_steps_in_flight : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << max_steps_in_flight << " steps in flight");
    SchedulerOptions options = {.shape = {.max_num_seqs = 1,
                                          .max_num_tokens = 512,
                                          .max_seq_len = 128,
                                          .max_steps_in_flight = max_steps_in_flight,
                                          .num_blocks = 4,
                                          .block_size = 16}};
    options.shape.groups = {{.retention = KvRetention::kSlidingWindow, .span = 7}};
    auto scheduler = Make(options);
    EXPECT_EQ(scheduler->max_cached_tokens(), 128);
    const std::vector<Request> requests = {
        {.prompt = std::vector<int32_t>(60, 1), .max_new_tokens = 30},
        {.prompt = {1, 2, 3}, .max_new_tokens = 90}};
    for (const Request& request : requests) Add(*scheduler, request);
    std::map<int64_t, PuppetText> texts = RunAll(*scheduler, options);
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(texts[static_cast<int64_t>(i)], ExpectedText(requests[i], 0, options, 128));
      EXPECT_EQ(texts[static_cast<int64_t>(i)].finish, FinishReason::kLength);
    }
    EXPECT_EQ(scheduler->num_preemptions(), 0);
  }
}

// 64 tokens use 16 of the 19 blocks in the full group, and 2 blocks for the 8 tokens of the window.
// One more token would need 17 and 3 blocks.
TEST(SchedulerTest, ServesPromptsAsLongAsThePoolCanHold) {
  for (const int max_steps_in_flight : {1, 2, 3}) {
    for (const int max_num_seqs : {1, 3}) {
      SCOPED_TRACE(testing::Message()
                   << max_steps_in_flight << " steps in flight, " << max_num_seqs << " sequences");
      SchedulerOptions options = {.shape = {.max_num_seqs = max_num_seqs,
                                            .max_num_tokens = 64,
                                            .max_seq_len = 100,
                                            .max_steps_in_flight = max_steps_in_flight,
                                            .num_blocks = 20,
                                            .block_size = 4}};
      options.shape.groups = {{}, {.retention = KvRetention::kSlidingWindow, .span = 8}};
      auto scheduler = Make(options);
      ASSERT_EQ(scheduler->max_cached_tokens(), 64);
      std::vector<Request> requests;
      for (const int num_tokens : {64, 63, 40, 60}) {
        requests.push_back({.prompt = std::vector<int32_t>(num_tokens, 1), .max_new_tokens = 20});
        requests.back().prompt[0] = num_tokens % kPuppetVocab;
        Add(*scheduler, requests.back());
      }
      std::map<int64_t, PuppetText> texts = RunAll(*scheduler, options);
      for (size_t i = 0; i < requests.size(); ++i) {
        EXPECT_EQ(texts[static_cast<int64_t>(i)], ExpectedText(requests[i], 0, options, 64));
      }
      EXPECT_EQ(texts[0].finish, FinishReason::kCacheFull);
      EXPECT_EQ(
          scheduler->Add({.prompt = std::vector<int32_t>(65, 1)}).status(),
          absl::InvalidArgumentError("prompt is longer than the whole KV cache: expected at most "
                                     "64 tokens (19 blocks of 4), got 65"));
    }
  }
}

TEST(SchedulerTest, SteadyDecodingAllocatesNothingOnTheHeap) {
  auto scheduler = Make({.shape = {.max_num_seqs = 4,
                                   .max_num_tokens = 16,
                                   .max_seq_len = 512,
                                   .max_steps_in_flight = 2,
                                   .num_blocks = 200,
                                   .block_size = 16}});
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(scheduler->Add({.prompt = {1, 2, 3}, .max_new_tokens = 400}).ok());
  }
  std::vector<TokenEvent> events;
  events.reserve(8);
  const std::vector<int32_t> tokens(4, 5);
  scheduler->Schedule();
  for (int warmup = 0; warmup < 3; ++warmup) {
    scheduler->Schedule();
    events.clear();
    scheduler->Commit(tokens, events);
  }
  AllocationCounter allocations;
  for (int step = 0; step < 300; ++step) {  // past 18 block borders
    scheduler->Schedule();
    events.clear();
    scheduler->Commit(tokens, events);
  }
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_THAT(events, SizeIs(4));
}

TEST(SchedulerTest, RejectsRequestsThatCanNeverRun) {
  auto scheduler = Make({.shape = {.max_num_seqs = 1,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 8,
                                   .num_blocks = 2,
                                   .block_size = 4}});
  const auto message = [&](Request request) {
    const auto id = scheduler->Add(std::move(request));
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(id.status().message());
  };
  EXPECT_THAT(message({}), HasSubstr("prompt must have at least one token"));
  EXPECT_THAT(message({.prompt = {1}, .max_new_tokens = 0}), HasSubstr("max_new_tokens"));
  EXPECT_THAT(message({.prompt = std::vector<int32_t>(9)}), HasSubstr("at most 8 tokens, got 9"));
  EXPECT_THAT(message({.prompt = std::vector<int32_t>(5)}),
              HasSubstr("at most 4 tokens (1 blocks of 4), got 5"));
  EXPECT_FALSE(scheduler->has_work());
}

TEST(SchedulerTest, RejectsInvalidOptions) {
  const SchedulerOptions good = {.shape = {.max_num_seqs = 2,
                                           .max_num_tokens = 4,
                                           .max_seq_len = 8,
                                           .num_blocks = 3,
                                           .block_size = 4}};
  const auto message = [](SchedulerOptions options) {
    const auto scheduler = Scheduler::Create(options);
    EXPECT_EQ(scheduler.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(scheduler.status().message());
  };
  SchedulerOptions bad = good;
  bad.shape.max_num_tokens = 1;
  EXPECT_THAT(message(bad), HasSubstr("max_num_tokens must be at least 2: got 1"));
  bad = good;
  bad.shape.max_steps_in_flight = 0;
  EXPECT_THAT(message(bad), HasSubstr("max_steps_in_flight"));
  bad = good;
  bad.policy.max_waiting = -1;
  EXPECT_THAT(message(bad), HasSubstr("max_waiting"));
  bad = good;
  bad.policy.max_prefill_tokens_while_decoding = -1;
  EXPECT_THAT(message(bad), HasSubstr("max_prefill_tokens_while_decoding"));
  bad = good;
  bad.shape.block_size = 0;
  EXPECT_THAT(message(bad), HasSubstr("block_size"));
  bad = good;
  bad.shape.num_blocks = 1;
  EXPECT_THAT(message(bad), HasSubstr("num_blocks"));
}

TEST(SchedulerTest, EncoderInputIsNotEncodedAgainWhileItsKeysAreCached) {
  SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                        .max_num_tokens = 8,
                                        .max_seq_len = 8,
                                        .num_blocks = 20,
                                        .block_size = 2}};
  options.shape.groups = {{}, {.retention = KvRetention::kCross}};
  options.shape.max_encoder_tokens = 5;
  options.shape.max_encoder_step_tokens = 6;
  auto scheduler = Make(options);
  const Request request = {.prompt = {1}, .encoder_tokens = {7, 8, 9, 10}, .max_new_tokens = 1};
  ASSERT_TRUE(scheduler->Add(request).ok());
  ASSERT_TRUE(scheduler->Add(request).ok());
  std::vector<TokenEvent> events;
  // A step cannot encode two inputs of 4 tokens.
  const ScheduledBatch& first = scheduler->Schedule();
  ASSERT_THAT(first.joins, SizeIs(1));
  EXPECT_EQ(first.joins[0].num_encoder_tokens, 4);
  EXPECT_EQ(first.joins[0].encoder_is_cached, 0);
  ASSERT_THAT(first.encodes, SizeIs(1));
  EXPECT_EQ(first.encodes[0].slot, first.rows[0].slot);
  EXPECT_THAT(first.encodes[0].tokens, ElementsAre(7, 8, 9, 10));
  EXPECT_THAT(first.updates, SizeIs(3));  // one block of the prompt, two of the encoder input
  scheduler->Commit({5}, events);
  const ScheduledBatch& second = scheduler->Schedule();
  ASSERT_THAT(second.joins, SizeIs(1));
  EXPECT_EQ(second.joins[0].num_encoder_tokens, 4);
  EXPECT_EQ(second.joins[0].encoder_is_cached, 1);
  EXPECT_THAT(second.encodes, SizeIs(0));
  EXPECT_THAT(second.updates, SizeIs(3));
  scheduler->Commit({5}, events);
  scheduler->CheckInvariants();
  EXPECT_FALSE(scheduler->has_work());

  const auto refused = scheduler->Add({.prompt = {1}, .encoder_tokens = {1, 2, 3, 4, 5, 6}});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("expected at most 5, got 6"));
  auto without = Make({.shape = {.max_num_seqs = 1,
                                 .max_num_tokens = 8,
                                 .max_seq_len = 8,
                                 .num_blocks = 9,
                                 .block_size = 2}});
  EXPECT_THAT(std::string(without->Add({.prompt = {1}, .encoder_tokens = {1}}).status().message()),
              HasSubstr("the model has no encoder"));
}

}  // namespace
}  // namespace reprise
