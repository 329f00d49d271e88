// Preempted sequences: swaps, recomputation, and their return.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/kv_group.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/make_scheduler.h"
#include "reprise/engine/testing/puppet_device.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// 6 blocks of one token in the cache and 6 on the host, for two sequences of 1 + 4 tokens. When
// both have 3 tokens, the second must be preempted.
SchedulerOptions Options(PreemptionMode mode = PreemptionMode::kSwap) {
  return {.shape = {.max_num_seqs = 2,
                    .max_num_tokens = 8,
                    .max_seq_len = 16,
                    .num_blocks = 7,
                    .block_size = 1,
                    .num_swap_blocks = 7,
                    .bytes_per_block = 1000},
          .policy = {.prefix_reuse = PrefixReuse::kOff, .preemption = mode}};
}

// Adds two requests {1} and {2}, and runs three steps, which generate the tokens 11, 13, 15 and 12,
// 14, 16.
void FillTheCache(Scheduler& scheduler, std::vector<TokenEvent>& events) {
  const SamplingOptions sampling = {.temperature = 1, .seed = 5};
  Add(scheduler, {.prompt = {1}, .max_new_tokens = 5, .sampling = sampling});
  Add(scheduler, {.prompt = {2}, .max_new_tokens = 5, .sampling = sampling});
  for (const int32_t first : {11, 13, 15}) {
    const ScheduledBatch& batch = scheduler.Schedule();
    ASSERT_THAT(batch.rows, SizeIs(2));
    EXPECT_THAT(batch.swap_outs, IsEmpty());
    EXPECT_THAT(batch.swap_ins, IsEmpty());
    scheduler.Commit({first, first + 1}, events);
    scheduler.CheckInvariants();
  }
  ASSERT_EQ(scheduler.blocks().pool().num_allocatable(), 0);
}

std::vector<int32_t> Sources(absl::Span<const BlockCopy> copies) {
  std::vector<int32_t> blocks;
  for (const BlockCopy& copy : copies) blocks.push_back(copy.src);
  return blocks;
}

std::vector<int32_t> Destinations(absl::Span<const BlockCopy> copies) {
  std::vector<int32_t> blocks;
  for (const BlockCopy& copy : copies) blocks.push_back(copy.dst);
  return blocks;
}

TEST(SchedulerPreemptTest, SwapRestoresTheStateOfASequence) {
  auto scheduler = Make(Options());
  std::vector<TokenEvent> events;
  FillTheCache(*scheduler, events);
  const auto row = scheduler->blocks().blocks(SlotId(1));
  const std::vector<int32_t> blocks = {row[0].value(), row[1].value(), row[2].value()};

  const ScheduledBatch& out = scheduler->Schedule();
  EXPECT_EQ(Sources(out.swap_outs), blocks);
  const std::vector<int32_t> host_blocks = Destinations(out.swap_outs);
  EXPECT_THAT(out.leaves, ElementsAre(SlotId(1)));
  EXPECT_THAT(out.rows, SizeIs(1));
  EXPECT_EQ(scheduler->num_preemptions(), 1);
  EXPECT_EQ(scheduler->swap_statistics().num_swap_outs, 1);
  EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 3);
  scheduler->CheckInvariants();
  scheduler->Commit({17}, events);
  EXPECT_THAT(scheduler->Schedule().swap_outs, IsEmpty());  // swapped out once
  scheduler->Commit({18}, events);

  events.clear();
  const ScheduledBatch& in = scheduler->Schedule();
  ASSERT_THAT(in.joins, SizeIs(1));
  EXPECT_EQ(in.joins[0].seq_len, 3);       // 2, 12, 14
  EXPECT_EQ(in.joins[0].sample_index, 3);  // 12, 14 and 16 have been sampled
  EXPECT_EQ(in.joins[0].sampling.seed, 5u);
  EXPECT_EQ(Sources(in.swap_ins), host_blocks);
  EXPECT_THAT(in.swap_outs, IsEmpty());
  ASSERT_THAT(in.rows, SizeIs(1));
  EXPECT_THAT(in.rows[0].tokens, ElementsAre(16));  // fed by the host: the slot was reassigned
  EXPECT_EQ(in.rows[0].output, RowOutput::kToken);
  std::vector<int32_t> backed;
  for (const BlockTableUpdate& update : in.updates) backed.push_back(update.block.value());
  ASSERT_THAT(backed, SizeIs(4));
  backed.pop_back();
  EXPECT_EQ(Destinations(in.swap_ins), backed);
  EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 0);
  EXPECT_EQ(scheduler->swap_statistics().num_swap_ins, 1);
  EXPECT_EQ(scheduler->swap_statistics().num_blocks_in, 3);
  scheduler->CheckInvariants();
  scheduler->Commit({19}, events);
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].index, 3);
  EXPECT_THAT(scheduler->Schedule().swap_ins, IsEmpty());
}

TEST(SchedulerPreemptTest, SequencesAreRecomputedWithoutHostBlocks) {
  SchedulerOptions without = Options();
  without.shape.num_swap_blocks = 0;
  SchedulerOptions two = Options();
  two.shape.num_swap_blocks = 3;  // two usable blocks, but the swap needs 3
  for (const SchedulerOptions& options : {without, two, Options(PreemptionMode::kRecompute)}) {
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    FillTheCache(*scheduler, events);
    EXPECT_THAT(scheduler->Schedule().swap_outs, IsEmpty());
    EXPECT_EQ(scheduler->num_preemptions(), 1);
    EXPECT_EQ(scheduler->swap_statistics().num_swap_outs, 0);
    scheduler->Commit({17}, events);
    scheduler->Schedule();
    scheduler->Commit({18}, events);
    const ScheduledBatch& back = scheduler->Schedule();
    ASSERT_THAT(back.rows, SizeIs(1));
    EXPECT_THAT(back.rows[0].tokens, ElementsAre(2, 12, 14, 16));
    EXPECT_EQ(back.joins[0].sample_index, 3);
    scheduler->CheckInvariants();
  }
}

TEST(SchedulerPreemptTest, RuleComparesRecomputedTokensWithSwappedBytes) {
  // Swapping 3 blocks out and in takes 2 * 3 us, and one token is left to compute.
  for (const double us_per_token : {1.9, 2.1}) {
    SchedulerOptions options = Options(PreemptionMode::kAuto);
    options.policy.preemption_costs =
        PreemptionCosts{.us_per_prompt_token = us_per_token, .out_gb_per_s = 1, .in_gb_per_s = 1};
    auto scheduler = Make(options);
    std::vector<TokenEvent> events;
    FillTheCache(*scheduler, events);
    EXPECT_THAT(scheduler->Schedule().swap_outs, SizeIs(us_per_token > 2 ? 3 : 0));
  }
}

TEST(SchedulerPreemptTest, SharedBlocksCountAsHits) {
  // Blocks hold two tokens. If is_shared, both prompts begin with the same 4 tokens, in shared
  // blocks.
  SchedulerOptions options = Options(PreemptionMode::kAuto);
  options.shape.block_size = 2;
  options.policy.prefix_reuse = PrefixReuse::kOn;
  options.policy.preemption_costs =
      PreemptionCosts{.us_per_prompt_token = 1, .out_gb_per_s = 1, .in_gb_per_s = 1};
  for (const bool is_shared : {false, true}) {
    // 8 tokens are committed and one more is known. Swapping 4 blocks out and in takes 5.6 us, and
    // one token is left to compute. This is less than computing 9 tokens, but more than computing
    // the 5 tokens that are not shared.
    options.shape.bytes_per_block = 700;
    options.shape.num_blocks = is_shared ? 7 : 9;
    auto scheduler = Make(options);
    Add(*scheduler, {.prompt = {1, 2, 3, 4, 5, 6}, .max_new_tokens = 9});
    std::vector<TokenEvent> events;
    scheduler->Schedule();
    scheduler->Commit({9}, events);
    const std::vector<int32_t> other =
        is_shared ? std::vector<int32_t>{1, 2, 3, 4, 7, 8} : std::vector<int32_t>{4, 3, 2, 1, 7, 8};
    Add(*scheduler, {.prompt = other, .max_new_tokens = 9});
    while (scheduler->num_preemptions() == 0) {
      const ScheduledBatch& batch = scheduler->Schedule();
      EXPECT_EQ(batch.swap_outs.empty(), is_shared || scheduler->num_preemptions() == 0);
      scheduler->Commit(std::vector<int32_t>(batch.rows.size(), 9), events);
      scheduler->CheckInvariants();
    }
    EXPECT_EQ(scheduler->swap_statistics().num_swap_outs, is_shared ? 0 : 1);
  }
}

TEST(SchedulerPreemptTest, TokensStillInTheCacheCountAgainstASwapIn) {
  // Blocks hold two tokens. The second sequence frees two blocks, and the first sequence takes one
  // of them.
  for (const PreemptionMode mode : {PreemptionMode::kSwap, PreemptionMode::kAuto}) {
    SchedulerOptions options = Options(mode);
    options.policy.prefix_reuse = PrefixReuse::kOn;
    options.shape.block_size = 2;
    options.shape.num_blocks = 5;
    // Swapping out and in takes 0.5 + 6.7 us, and one token is left: less than computing 5 tokens.
    // Swapping in takes longer than computing 3 tokens.
    options.policy.preemption_costs =
        PreemptionCosts{.us_per_prompt_token = 3, .out_gb_per_s = 4, .in_gb_per_s = 0.3};
    auto scheduler = Make(options);
    const SequenceId first = Add(*scheduler, {.prompt = {1, 2, 3}, .max_new_tokens = 9});
    Add(*scheduler, {.prompt = {4, 5, 6}, .max_new_tokens = 9});
    std::vector<TokenEvent> events;
    for (const int32_t token : {11, 13}) {
      scheduler->Schedule();
      scheduler->Commit({token, token + 1}, events);
    }
    EXPECT_THAT(scheduler->Schedule().swap_outs, SizeIs(2));  // 4 5 | 6 12; token 14 is known
    ASSERT_TRUE(scheduler->Cancel(first, events).ok());
    scheduler->Commit({15}, events);
    const ScheduledBatch& back = scheduler->Schedule();
    ASSERT_THAT(back.joins, SizeIs(1));
    ASSERT_THAT(back.rows, SizeIs(1));
    if (mode == PreemptionMode::kSwap) {
      EXPECT_THAT(back.swap_ins, SizeIs(2));
      EXPECT_EQ(back.joins[0].seq_len, 4);
      EXPECT_THAT(back.rows[0].tokens, ElementsAre(14));
    } else {
      EXPECT_THAT(back.swap_ins, IsEmpty());
      EXPECT_EQ(back.joins[0].seq_len, 2);
      EXPECT_THAT(back.rows[0].tokens, ElementsAre(6, 12, 14));
    }
    EXPECT_EQ(back.joins[0].sample_index, 2);
    EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 0);
    scheduler->CheckInvariants();
  }
}

TEST(SchedulerPreemptTest, WaitingSequencesFreeTheirHostBlocksAtTheEnd) {
  enum class End { kCancel, kDeadline, kAll };
  for (const End end : {End::kCancel, End::kDeadline, End::kAll}) {
    auto scheduler = Make(Options());
    std::vector<TokenEvent> events;
    Add(*scheduler, {.prompt = {1}, .max_new_tokens = 5});
    const SequenceId leaves =
        Add(*scheduler,
            {.prompt = {2}, .max_new_tokens = 5, .deadline = absl::UnixEpoch() + absl::Seconds(1)});
    for (int step = 0; step < 3; ++step) {
      scheduler->Schedule();
      scheduler->Commit({11, 12}, events);
    }
    EXPECT_THAT(scheduler->Schedule().swap_outs, SizeIs(3));
    EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 3);
    events.clear();
    if (end == End::kCancel) {
      ASSERT_TRUE(scheduler->Cancel(leaves, events).ok());
    } else if (end == End::kDeadline) {
      scheduler->EndExpired(absl::UnixEpoch() + absl::Seconds(2), events);
    } else {
      scheduler->EndAll(absl::InternalError("the device caught fire"), events);
    }
    ASSERT_THAT(events, SizeIs(end == End::kAll ? 2 : 1));
    EXPECT_EQ(events.back().index, 3);
    EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 0);
    EXPECT_EQ(scheduler->swap_store()->num_sequences(), 0);
    scheduler->CheckInvariants();
    if (end == End::kAll) continue;
    scheduler->Commit({13}, events);
    scheduler->Schedule();
    scheduler->Commit({14}, events);
    EXPECT_FALSE(scheduler->has_work());
  }
}

TEST(SchedulerPreemptTest, SwapsOfARefusedBatchMoveToTheNextBatch) {
  auto scheduler = Make(Options());
  std::vector<TokenEvent> events;
  FillTheCache(*scheduler, events);
  const ScheduledBatch& refused = scheduler->Schedule();
  const std::vector<int32_t> sources = Sources(refused.swap_outs);
  const std::vector<int32_t> destinations = Destinations(refused.swap_outs);
  ASSERT_THAT(sources, SizeIs(3));
  scheduler->AbandonLaunch(absl::InvalidArgumentError("refused"), events);
  scheduler->CheckInvariants();
  // The first sequence has ended, and the second returns in the next batch. Swap-outs come first.
  const ScheduledBatch& next = scheduler->Schedule();
  EXPECT_EQ(Sources(next.swap_outs), sources);
  EXPECT_EQ(Destinations(next.swap_outs), destinations);
  EXPECT_EQ(Sources(next.swap_ins), destinations);
  ASSERT_THAT(next.rows, SizeIs(1));
  scheduler->AbandonLaunch(absl::InvalidArgumentError("refused"), events);
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 0);
  Add(*scheduler, {.prompt = {3}, .max_new_tokens = 1});
  EXPECT_THAT(scheduler->Schedule().swap_ins, SizeIs(3));  // harmless: swaps run before the rows
  scheduler->CheckInvariants();
}

// Runs requests that do not fit into the cache together. Each must get the text that it gets
// without other requests. Returns the number of swap-ins.
int64_t ExpectTextsOfSwaps(const SchedulerOptions& options, const std::vector<Request>& requests) {
  auto scheduler = Make(options);
  PuppetDevice device(options);
  std::map<int64_t, PuppetText> texts;
  for (const Request& request : requests) Add(*scheduler, request);
  std::vector<TokenEvent> events;
  while (scheduler->has_work() && !testing::Test::HasFailure()) {
    bool launched = false;
    if (scheduler->can_schedule()) {
      const ScheduledBatch& batch = scheduler->Schedule();
      launched = !batch.rows.empty();
      if (launched) device.Launch(batch);
      scheduler->CheckInvariants();
    }
    if (launched && scheduler->can_schedule()) continue;
    scheduler->Commit(*device.Await(), events);
  }
  for (const TokenEvent& event : events) {
    PuppetText& text = texts[event.sequence.value()];
    text.tokens.push_back(*event.token);
    text.finish = event.finish;
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(texts[static_cast<int64_t>(i)],
              ExpectedText(requests[i], 0, options, scheduler->max_cached_tokens()))
        << "request " << i;
  }
  EXPECT_EQ(scheduler->swap_store()->host_pool().num_used(), 0);
  EXPECT_EQ(scheduler->blocks().pool().num_used(), 0);
  return scheduler->swap_statistics().num_swap_ins;
}

TEST(SchedulerPreemptTest, TokensInFlightAreComputedAgain) {
  for (const int steps_in_flight : {1, 2, 3}) {
    SchedulerOptions options = Options();
    options.shape.max_steps_in_flight = steps_in_flight;
    options.shape.max_num_seqs = 4;
    options.shape.num_blocks = 12;
    options.shape.num_swap_blocks = 40;
    std::vector<Request> requests;
    for (int i = 0; i < 6; ++i) {
      requests.push_back({.prompt = {i, 2, 3},
                          .max_new_tokens = 7,
                          .sampling = {.temperature = 1, .seed = 40u + i}});
    }
    requests[4].forced_tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    EXPECT_GT(ExpectTextsOfSwaps(options, requests), 2) << steps_in_flight;
  }
}

TEST(SchedulerPreemptTest, WindowsAndEncoderInputsAreSwapped) {
  SchedulerOptions options = Options();
  options.shape.groups = {{.retention = KvRetention::kCross},
                          {.retention = KvRetention::kSlidingWindow, .span = 3},
                          {}};
  options.shape.max_encoder_tokens = 5;
  options.shape.max_encoder_step_tokens = 6;
  options.shape.max_steps_in_flight = 2;
  options.shape.block_size = 2;
  options.shape.max_num_seqs = 3;
  options.shape.num_blocks = 22;
  options.shape.num_swap_blocks = 40;
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back({.prompt = std::vector<int32_t>(1 + i, 7),
                        .encoder_tokens = std::vector<int32_t>(i % 5, 20 + i),
                        .max_new_tokens = 9,
                        .sampling = {.temperature = 1, .seed = 40u + i}});
  }
  EXPECT_GT(ExpectTextsOfSwaps(options, requests), 1);
}

TEST(SchedulerPreemptTest, SteadyDecodingWithAStoreAllocatesNothingOnTheHeap) {
  SchedulerOptions options = Options();
  options.shape.max_seq_len = 400;
  options.shape.num_blocks = 900;
  options.shape.num_swap_blocks = 900;
  auto scheduler = Make(options);
  for (int i = 0; i < 2; ++i) Add(*scheduler, {.prompt = {1, 2}, .max_new_tokens = 300});
  std::vector<TokenEvent> events;
  events.reserve(1000);
  const std::vector<int32_t> tokens = {1, 2};
  for (int step = 0; step < 20; ++step) {
    scheduler->Schedule();
    scheduler->Commit(tokens, events);
  }
  AllocationCounter allocations;
  for (int step = 0; step < 200; ++step) {
    scheduler->Schedule();
    scheduler->Commit(tokens, events);
  }
  EXPECT_EQ(allocations.count(), 0);
}

TEST(SchedulerPreemptTest, RejectsInvalidSwapOptions) {
  const auto refusal = [](auto change) {
    SchedulerOptions options = Options();
    change(options);
    const absl::Status status = Scheduler::Create(options).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refusal([](auto& options) { options.shape.num_swap_blocks = -1; }),
              HasSubstr("num_swap_blocks must be at least 0: got -1"));
  EXPECT_THAT(refusal([](auto& options) { options.shape.num_swap_blocks = 1; }),
              HasSubstr("num_swap_blocks must be at least 2: got 1"));
  EXPECT_THAT(refusal([](auto& options) { options.shape.bytes_per_block = 0; }),
              HasSubstr("bytes_per_block must be at least 1 if num_swap_blocks is above 0"));
  EXPECT_THAT(refusal([](auto& options) {
                options.policy.preemption_costs = H200PreemptionCosts();
                options.policy.preemption_costs->in_gb_per_s = 0;
              }),
              HasSubstr("in_gb_per_s"));
}

}  // namespace
}  // namespace reprise
