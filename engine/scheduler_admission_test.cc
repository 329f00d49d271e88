// Admission of requests: order, cached keys, refusals, several sequences of a request, and stop
// matchers.

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/kv_group.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/make_scheduler.h"
#include "reprise/engine/testing/puppet_device.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(SchedulerAdmissionTest, RejectsInvalidSampling) {
  auto scheduler = Make({.shape = {.max_num_seqs = 1,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 8,
                                   .num_blocks = 9,
                                   .block_size = 4}});
  for (const SamplingOptions& bad :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = kNan},
        SamplingOptions{.temperature = kInfinity}, SamplingOptions{.top_k = -1},
        SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = kNan}, SamplingOptions{.top_p = 1.5f},
        SamplingOptions{.top_p = -0.5f}}) {
    const auto id = scheduler->Add({.prompt = {1}, .sampling = bad});
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument)
        << bad.temperature << ", " << bad.top_k << ", " << bad.top_p;
  }
  EXPECT_FALSE(scheduler->has_work());
}

TEST(SchedulerAdmissionTest, EqualRequestsWithoutASeedGetDifferentSeeds) {
  SchedulerOptions options = {.shape = {.max_num_seqs = 3,
                                        .max_num_tokens = 8,
                                        .max_seq_len = 8,
                                        .num_blocks = 9,
                                        .block_size = 4}};
  const auto seeds_of = [&](const Request& request) {
    auto scheduler = Make(options);
    for (int i = 0; i < 3; ++i) Add(*scheduler, request);
    std::vector<uint64_t> seeds;
    for (const SlotJoin& join : scheduler->Schedule().joins) seeds.push_back(join.sampling.seed);
    return seeds;
  };
  const Request request = {.prompt = {1}, .sampling = {.temperature = 1}};
  const std::vector<uint64_t> drawn = seeds_of(request);
  ASSERT_THAT(drawn, SizeIs(3));
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_NE(drawn[1], drawn[2]);
  EXPECT_NE(seeds_of(request), drawn);  // another run
  options.policy.seed = 5;
  EXPECT_EQ(seeds_of(request), seeds_of(request));  // equal seeds of the policy give equal seeds
  EXPECT_THAT(seeds_of({.prompt = {1}, .sampling = {.temperature = 1, .seed = 7}}),
              ElementsAre(7, 7, 7));
}

TEST(SchedulerAdmissionTest, RejectsRequestsBeyondMaxWaiting) {
  auto scheduler = Make({.shape = {.max_num_seqs = 2,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 8,
                                   .num_blocks = 9,
                                   .block_size = 4},
                         .policy = {.max_waiting = 2}});
  Add(*scheduler, {.prompt = {1}});
  const auto two = scheduler->Add({.prompt = {2}, .num_sequences = 2});
  EXPECT_EQ(two.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(two.status().message()), HasSubstr("1 of max_waiting = 2 do"));
  Add(*scheduler, {.prompt = {2}});
  EXPECT_TRUE(absl::IsResourceExhausted(scheduler->Add({.prompt = {3}}).status()));
  scheduler->Schedule();  // admits both
  Add(*scheduler, {.prompt = {3}, .num_sequences = 2});
}

TEST(SchedulerAdmissionTest, RejectsNumSequencesThatNeverFit) {
  SchedulerOptions options = {.shape = {.max_num_seqs = 3,
                                        .max_num_tokens = 8,
                                        .max_seq_len = 8,
                                        .num_blocks = 9,
                                        .block_size = 4}};
  auto scheduler = Make(options);
  for (const int number : {0, -1, 4, std::numeric_limits<int>::max()}) {
    const auto id = scheduler->Add({.prompt = {1}, .num_sequences = number});
    EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument) << number;
    EXPECT_THAT(std::string(id.status().message()), HasSubstr("num_sequences must be in [1, 3]"));
  }
  options.policy.max_waiting = 1;
  EXPECT_THAT(
      std::string(Make(options)->Add({.prompt = {1}, .num_sequences = 2}).status().message()),
      HasSubstr("num_sequences must be at most max_waiting: expected at most 1, got 2"));
}

TEST(SchedulerAdmissionTest, HigherPrioritiesAreAdmittedFirst) {
  auto scheduler = Make({.shape = {.max_num_seqs = 1,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 8,
                                   .num_blocks = 9,
                                   .block_size = 4}});
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 1, .priority = -5});
  Add(*scheduler, {.prompt = {2}, .max_new_tokens = 1});
  Add(*scheduler, {.prompt = {3}, .max_new_tokens = 1, .priority = 7});
  Add(*scheduler, {.prompt = {4}, .max_new_tokens = 1});
  Add(*scheduler, {.prompt = {5}, .max_new_tokens = 1, .priority = 7});
  std::vector<TokenEvent> events;
  std::vector<int> order;
  while (scheduler->has_work()) {
    const ScheduledBatch& batch = scheduler->Schedule();
    ASSERT_THAT(batch.rows, SizeIs(1));
    order.push_back(batch.rows[0].tokens[0]);
    scheduler->Commit({9}, events);
    scheduler->CheckInvariants();
  }
  EXPECT_THAT(order, ElementsAre(3, 5, 2, 4, 1));
}

TEST(SchedulerAdmissionTest, TheLowestPriorityIsPreemptedFirst) {
  // 8 blocks of one token, for three sequences of 1 + 4 tokens.
  auto scheduler = Make({.shape = {.max_num_seqs = 3,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 16,
                                   .num_blocks = 9,
                                   .block_size = 1},
                         .policy = {.prefix_reuse = PrefixReuse::kOff}});
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 5});
  Add(*scheduler, {.prompt = {2}, .max_new_tokens = 5, .priority = -1});
  Add(*scheduler, {.prompt = {3}, .max_new_tokens = 5});
  std::vector<TokenEvent> events;
  for (int step = 0; step < 2; ++step) {  // uses 3, then 6 of 8 blocks
    ASSERT_THAT(scheduler->Schedule().rows, SizeIs(3));
    scheduler->Commit({11, 12, 13}, events);
  }
  // The next step needs more blocks than are free. The second sequence is preempted, not the last
  // one.
  const ScheduledBatch& third = scheduler->Schedule();
  EXPECT_EQ(scheduler->num_preemptions(), 1);
  EXPECT_THAT(third.rows, SizeIs(2));
  EXPECT_THAT(third.leaves, SizeIs(1));
  scheduler->CheckInvariants();
  events.clear();
  scheduler->Commit({11, 13}, events);
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].sequence, SequenceId(0));
  EXPECT_EQ(events[1].sequence, SequenceId(2));
}

TEST(SchedulerAdmissionTest, LimitsPromptTokensInStepsWithDecodes) {
  auto scheduler = Make({.shape = {.max_num_seqs = 3,
                                   .max_num_tokens = 12,
                                   .max_seq_len = 32,
                                   .num_blocks = 30,
                                   .block_size = 4},
                         .policy = {.max_prefill_tokens_while_decoding = 3}});
  Add(*scheduler, {.prompt = std::vector<int32_t>(10, 1), .max_new_tokens = 9});
  EXPECT_THAT(scheduler->Schedule().rows[0].tokens, SizeIs(10));  // no decodes yet
  std::vector<TokenEvent> events;
  scheduler->Commit({5}, events);
  Add(*scheduler, {.prompt = {2, 2}, .max_new_tokens = 9});
  Add(*scheduler, {.prompt = {3, 3, 3, 3, 3}, .max_new_tokens = 9});
  const ScheduledBatch& second =
      scheduler->Schedule();  // 1 decode, a prompt of 2, and the first of 5 tokens
  ASSERT_THAT(second.rows, SizeIs(3));
  EXPECT_THAT(second.rows[1].tokens, ElementsAre(2, 2));
  EXPECT_THAT(second.rows[2].tokens, ElementsAre(3));
  scheduler->Commit({5, 6, -1}, events);
  const ScheduledBatch& third = scheduler->Schedule();  // 2 decodes, and 3 of the other 4 tokens
  ASSERT_THAT(third.rows, SizeIs(3));
  EXPECT_THAT(third.rows[2].tokens, ElementsAre(3, 3, 3));
  EXPECT_EQ(third.rows[2].output, RowOutput::kNone);
}

TEST(SchedulerAdmissionTest, EqualPromptWaitsForKeysThatAreBeingComputed) {
  auto scheduler = Make({.shape = {.max_num_seqs = 3,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 16,
                                   .num_blocks = 30,
                                   .block_size = 2}});
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
  Add(*scheduler, {.prompt = prompt, .max_new_tokens = 4});
  Add(*scheduler, {.prompt = prompt, .max_new_tokens = 4});
  Add(*scheduler, {.prompt = {1, 9}, .max_new_tokens = 4});  // shares no full block
  const ScheduledBatch& first = scheduler->Schedule();
  ASSERT_THAT(first.rows, SizeIs(2));
  EXPECT_THAT(first.rows[0].tokens, SizeIs(5));
  EXPECT_THAT(first.rows[1].tokens,
              ElementsAre(1, 9));  // the third request is admitted before the second
  std::vector<TokenEvent> events;
  scheduler->Commit({7, 8}, events);
  const ScheduledBatch& second = scheduler->Schedule();
  ASSERT_THAT(second.joins, SizeIs(1));
  EXPECT_EQ(second.joins[0].seq_len, 4);
  ASSERT_THAT(second.rows, SizeIs(3));
  EXPECT_THAT(second.rows[2].tokens, ElementsAre(5));
  scheduler->CheckInvariants();
}

TEST(SchedulerAdmissionTest, SlotIsReservedForASequenceThatWaitsForKeys) {
  auto scheduler = Make({.shape = {.max_num_seqs = 2,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 16,
                                   .num_blocks = 30,
                                   .block_size = 2}});
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 4});
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 4});
  Add(*scheduler, {.prompt = {9}, .max_new_tokens = 4});
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(1));
  std::vector<TokenEvent> events;
  scheduler->Commit({7}, events);
  EXPECT_EQ(scheduler->Schedule().joins[0].seq_len, 2);
}

TEST(SchedulerAdmissionTest, DuplicatePromptStartsIfTheFirstIsCancelled) {
  auto scheduler = Make({.shape = {.max_num_seqs = 2,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 16,
                                   .num_blocks = 30,
                                   .block_size = 2}});
  const SequenceId first = Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 4});
  Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 4});
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(1));
  std::vector<TokenEvent> events;
  ASSERT_TRUE(scheduler->Cancel(first, events).ok());
  scheduler->Commit({7}, events);
  const ScheduledBatch& second = scheduler->Schedule();
  ASSERT_THAT(second.joins, SizeIs(1));
  EXPECT_EQ(second.joins[0].seq_len, 0);  // no keys were committed
  EXPECT_THAT(second.rows[0].tokens, SizeIs(3));
}

TEST(SchedulerAdmissionTest, EqualPromptDoesNotWaitForALowerPriority) {
  for (const int priority : {0, 1}) {
    auto scheduler = Make({.shape = {.max_num_seqs = 2,
                                     .max_num_tokens = 8,
                                     .max_seq_len = 16,
                                     .max_steps_in_flight = 2,
                                     .num_blocks = 30,
                                     .block_size = 2}});
    Add(*scheduler, {.prompt = {1, 2, 3}});
    EXPECT_THAT(scheduler->Schedule().rows, SizeIs(1));
    Add(*scheduler, {.prompt = {1, 2, 3}, .priority = priority});
    EXPECT_THAT(scheduler->Schedule().joins, SizeIs(priority));
  }
}

TEST(SchedulerAdmissionTest, RequestsWithDifferentSaltsShareNothing) {
  auto scheduler = Make({.shape = {.max_num_seqs = 1,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 16,
                                   .num_blocks = 30,
                                   .block_size = 2}});
  std::vector<TokenEvent> events;
  const auto num_found = [&](const std::string& salt) {
    Add(*scheduler, {.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 1, .prefix_salt = salt});
    const int num = scheduler->Schedule().joins[0].seq_len;
    scheduler->Commit({7}, events);
    EXPECT_EQ(events.back().num_cached_tokens, num);
    return num;
  };
  EXPECT_EQ(num_found(""), 0);
  EXPECT_EQ(num_found("tenant"), 0);
  EXPECT_EQ(num_found("tenant"), 4);
  EXPECT_EQ(num_found(std::string("tenant\0", 7)), 0);
  EXPECT_EQ(num_found(""), 4);
}

TEST(SchedulerAdmissionTest, RequestsWithDifferentSaltsDoNotWaitForEachOther) {
  auto scheduler = Make({.shape = {.max_num_seqs = 2,
                                   .max_num_tokens = 8,
                                   .max_seq_len = 16,
                                   .num_blocks = 30,
                                   .block_size = 2}});
  Add(*scheduler, {.prompt = {1, 2, 3}, .prefix_salt = "a"});
  Add(*scheduler, {.prompt = {1, 2, 3}, .prefix_salt = "b"});
  EXPECT_THAT(scheduler->Schedule().rows, SizeIs(2));
}

TEST(SchedulerAdmissionTest, TheSequencesOfARequestShareOnePrefill) {
  for (const PrefixReuse reuse : {PrefixReuse::kOn, PrefixReuse::kOff}) {
    SCOPED_TRACE(reuse == PrefixReuse::kOn ? "reuse" : "no reuse");
    const SchedulerOptions options = {.shape = {.max_num_seqs = 4,
                                                .max_num_tokens = 16,
                                                .max_seq_len = 16,
                                                .num_blocks = 30,
                                                .block_size = 4},
                                      .policy = {.prefix_reuse = reuse}};
    auto scheduler = Make(options);
    PuppetDevice device(options);
    const Request request = {.prompt = {1, 2, 3, 4, 5, 6},
                             .max_new_tokens = 6,
                             .sampling = {.temperature = 1, .seed = 30},
                             .num_sequences = 3};
    Add(*scheduler, request);
    const ScheduledBatch& first = scheduler->Schedule();
    ASSERT_THAT(first.rows, SizeIs(1));
    EXPECT_THAT(first.rows[0].tokens, SizeIs(6));
    device.Launch(first);
    std::vector<TokenEvent> events;
    scheduler->Commit(*device.Await(), events);

    // The other two sequences feed the last prompt token, in copies of the second block.
    const ScheduledBatch& second = scheduler->Schedule();
    EXPECT_EQ(scheduler->num_forks(), 2);
    ASSERT_THAT(second.joins, SizeIs(2));
    EXPECT_EQ(second.joins[0].seq_len, 5);
    EXPECT_EQ(second.joins[0].sampling.seed, 31u);
    EXPECT_EQ(second.joins[1].sampling.seed, 32u);
    ASSERT_THAT(second.rows, SizeIs(3));
    EXPECT_THAT(second.rows[1].tokens, ElementsAre(6));
    EXPECT_THAT(second.rows[2].tokens, ElementsAre(6));
    EXPECT_THAT(second.copies, SizeIs(2));
    EXPECT_EQ(scheduler->blocks().blocks(second.rows[0].slot)[0],
              scheduler->blocks().blocks(second.rows[2].slot)[0]);
    device.Launch(second);
    scheduler->Commit(*device.Await(), events);
    scheduler->CheckInvariants();
    while (scheduler->has_work()) {
      device.Launch(scheduler->Schedule());
      scheduler->Commit(*device.Await(), events);
    }
    std::vector<PuppetText> texts(3);
    for (const TokenEvent& event : events) {
      EXPECT_EQ(event.sequence, SequenceId(0));
      texts[event.sample].tokens.push_back(*event.token);
      texts[event.sample].finish = event.finish;
      const bool is_last = event.finish != FinishReason::kNone;
      EXPECT_EQ(event.num_cached_tokens, is_last && event.sample > 0 ? 5 : 0);
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(texts[i].tokens, ExpectedText(request, i, options, 16).tokens) << "sample " << i;
    }
    EXPECT_NE(texts[0].tokens, texts[1].tokens);
    EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  }
}

// Options with a cross group, whose blocks are freed before the blocks of the full group.
SchedulerOptions EncoderOptions() {
  return {.shape = {.max_num_seqs = 2,
                    .max_num_tokens = 8,
                    .max_seq_len = 16,
                    .max_steps_in_flight = 2,
                    .num_blocks = 10,
                    .block_size = 1,
                    .groups = {{.retention = KvRetention::kCross}, {}},
                    .max_encoder_tokens = 2,
                    .max_encoder_step_tokens = 4}};
}

TEST(SchedulerAdmissionTest, SequenceIsForkedAfterItsEncoderPassIsCommitted) {
  for (const bool fails : {false, true}) {
    auto scheduler = Make(EncoderOptions());
    Add(*scheduler,
        {.prompt = {1, 2}, .encoder_tokens = {7, 8}, .max_new_tokens = 3, .num_sequences = 2});
    const ScheduledBatch& first = scheduler->Schedule();
    EXPECT_THAT(first.joins, SizeIs(1));
    EXPECT_THAT(first.encodes, SizeIs(1));
    EXPECT_THAT(scheduler->Schedule().joins, IsEmpty());  // the encoder pass is in flight
    std::vector<TokenEvent> events;
    if (fails) {
      scheduler->CommitFailed(absl::InternalError("the device caught fire"), events);
      ASSERT_THAT(events, SizeIs(1));
      EXPECT_EQ(events[0].finish, FinishReason::kError);
    } else {
      scheduler->Commit({9}, events);
    }
    const ScheduledBatch& next = scheduler->Schedule();
    ASSERT_THAT(next.joins, SizeIs(1));
    EXPECT_EQ(scheduler->num_forks(), fails ? 0 : 1);
    EXPECT_EQ(next.joins[0].encoder_is_cached, fails ? 0 : 1);
    EXPECT_THAT(next.encodes, SizeIs(fails ? 1 : 0));
    scheduler->CheckInvariants();
  }
}

TEST(SchedulerAdmissionTest, SequenceThatEncodesAgainIsForkedAfterTheCommit) {
  for (const bool fails : {false, true}) {
    auto scheduler = Make(EncoderOptions());
    const SequenceId other = Add(*scheduler, {.prompt = {3}, .max_new_tokens = 9, .priority = 1});
    Add(*scheduler,
        {.prompt = {1, 2}, .encoder_tokens = {7, 8}, .max_new_tokens = 5, .num_sequences = 2});
    std::vector<TokenEvent> events;
    for (const int32_t token : {20, 22, 24}) {  // 5, 7 and 9 blocks
      ASSERT_THAT(scheduler->Schedule().rows, SizeIs(2));
      scheduler->Commit({token, token + 1}, events);
    }
    // The other sequence takes a block of the encoder's keys. The keys of the tokens are still
    // cached.
    ASSERT_THAT(scheduler->Schedule().rows, SizeIs(1));
    ASSERT_EQ(scheduler->num_preemptions(), 1);
    scheduler->Commit({26}, events);
    ASSERT_TRUE(scheduler->Cancel(other, events).ok());
    const ScheduledBatch& back = scheduler->Schedule();
    ASSERT_THAT(back.joins, SizeIs(1));  // the second sequence does not join yet
    EXPECT_EQ(back.joins[0].seq_len, 4);
    EXPECT_EQ(back.joins[0].encoder_is_cached, 0);
    EXPECT_THAT(back.encodes, SizeIs(1));
    EXPECT_THAT(scheduler->Schedule().joins, IsEmpty());
    if (fails) {
      scheduler->CommitFailed(absl::InternalError("the device caught fire"), events);
    } else {
      scheduler->Commit({27}, events);
    }
    const ScheduledBatch& next = scheduler->Schedule();
    ASSERT_THAT(next.joins, SizeIs(1));
    EXPECT_EQ(next.joins[0].sample_index, 0);
    EXPECT_EQ(next.joins[0].encoder_is_cached, fails ? 0 : 1);
    EXPECT_THAT(next.encodes, SizeIs(fails ? 1 : 0));
    scheduler->CheckInvariants();
  }
}

TEST(SchedulerAdmissionTest, SequencesWithoutASlotAreAdmittedLater) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 16,
                                              .num_blocks = 30,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  PuppetDevice device(options);
  Add(*scheduler, {.prompt = {9}, .max_new_tokens = 12, .priority = 1});
  const Request request = {.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 2, .num_sequences = 2};
  const SequenceId id = Add(*scheduler, request);
  std::vector<TokenEvent> events;
  while (scheduler->has_work()) {
    device.Launch(scheduler->Schedule());
    scheduler->Commit(*device.Await(), events);
    scheduler->CheckInvariants();
  }
  EXPECT_EQ(scheduler->num_forks(),
            0);  // the first sequence has ended before the second gets its slot
  std::vector<std::vector<int32_t>> texts(2);
  for (const TokenEvent& event : events) {
    if (event.sequence == id) texts[event.sample].push_back(*event.token);
  }
  const PuppetText expected =
      ExpectedText(request, 0, options, 16);  // greedy, so both texts are equal
  EXPECT_THAT(texts, ElementsAre(expected.tokens, expected.tokens));
}

// A matcher that ends a sequence at the second even token.
class SecondEven : public StopMatcher {
 public:
  bool Ends(int32_t token) override {
    num_even_ += token % 2 == 0;
    return num_even_ == 2;
  }

 private:
  int num_even_ = 0;
};

TEST(SchedulerAdmissionTest, EachSequenceHasASeparateStopMatcher) {
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 64,
                                              .num_blocks = 40,
                                              .block_size = 4}};
  auto scheduler = Make(options);
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 50, .num_sequences = 2, .new_stop_matcher = [] {
                     return std::make_unique<SecondEven>();
                   }});
  std::vector<TokenEvent> events;
  const std::vector<std::vector<int32_t>> steps = {{2, 1}, {3, 2}, {4, 5}};
  for (const std::vector<int32_t>& tokens : steps) {
    ASSERT_THAT(scheduler->Schedule().rows, SizeIs(2));
    events.clear();
    scheduler->Commit(tokens, events);
  }
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_EQ(events[0].token, 4);
  EXPECT_EQ(events[1].finish, FinishReason::kNone);
  ASSERT_THAT(scheduler->Schedule().rows, SizeIs(1));
  events.clear();
  scheduler->Commit({6}, events);
  EXPECT_EQ(events[0].finish, FinishReason::kStop);
  EXPECT_FALSE(scheduler->has_work());
}

TEST(SchedulerAdmissionTest, MatcherGetsEachTokenOnceDespitePreemption) {
  class Recorder : public StopMatcher {
   public:
    explicit Recorder(std::vector<int32_t>* seen) : seen_(*seen) {}
    bool Ends(int32_t token) override {
      seen_.push_back(token);
      return false;
    }

   private:
    std::vector<int32_t>& seen_;
  };
  const SchedulerOptions options = {.shape = {.max_num_seqs = 2,
                                              .max_num_tokens = 8,
                                              .max_seq_len = 16,
                                              .num_blocks = 7,
                                              .block_size = 1}};
  auto scheduler = Make(options);
  PuppetDevice device(options);
  std::vector<int32_t> seen;
  Add(*scheduler, {.prompt = {1}, .max_new_tokens = 5});
  const Request request = {.prompt = {2}, .max_new_tokens = 5, .new_stop_matcher = [&] {
                             return std::make_unique<Recorder>(&seen);
                           }};
  Add(*scheduler, request);
  std::vector<TokenEvent> events;
  while (scheduler->has_work()) {
    device.Launch(scheduler->Schedule());
    scheduler->Commit(*device.Await(), events);
  }
  EXPECT_EQ(scheduler->num_preemptions(), 1);
  EXPECT_EQ(seen, ExpectedText(request, 0, options, 6).tokens);
}

}  // namespace
}  // namespace reprise
