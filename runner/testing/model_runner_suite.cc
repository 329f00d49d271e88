#include "runner/testing/model_runner_suite.h"

#include <ATen/ops/equal.h>

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "runner/testing/runner_harness.h"

namespace reprise {

// A build without CUDA has no GPU to instantiate it for.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ModelRunnerSuite);

namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 61;

std::unique_ptr<RunnerHarness> Make(c10::DeviceType device, ModelRunnerOptions options) {
  auto harness = RunnerHarness::Create(options, {.vocab_size = kVocab, .device = device});
  EXPECT_TRUE(harness.ok()) << harness.status();
  return *std::move(harness);
}

std::vector<int32_t> RandomPrompt(std::mt19937& rng, int length) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>(rng() % kVocab));
  return prompt;
}

std::vector<SlotId> FirstSlots(int n) {
  std::vector<SlotId> slots;
  for (int i = 0; i < n; ++i) slots.emplace_back(i);
  return slots;
}

#define ASSERT_STEP(expression)                    \
  do {                                             \
    const absl::Status step_status = (expression); \
    ASSERT_TRUE(step_status.ok()) << step_status;  \
  } while (false)

TEST_P(ModelRunnerSuite, EveryLiveCountIsServedByTheNextGraphOrNamesItsReason) {
  auto harness = Make(GetParam(), {.max_num_seqs = 17,
                                   .max_num_tokens = 256,
                                   .max_seq_len = 64,
                                   .block_size = 4,
                                   .graph_sizes = {1, 2, 4, 8, 16}});
  std::mt19937 rng(7);
  for (int n = 1; n <= 17; ++n) {
    SCOPED_TRACE(testing::Message() << n << " rows");
    for (const SlotId slot : FirstSlots(n)) harness->Join(slot, RandomPrompt(rng, 1 + rng() % 9));
    ASSERT_STEP(harness->Step(FirstSlots(n)));
    harness->ExpectTokensAndLogits();
    for (int step = 0; step < 3; ++step) {
      ASSERT_STEP(harness->Step(FirstSlots(n)));
      const GraphDecision& decision = harness->decision();
      if (n <= 16) {
        EXPECT_EQ(decision.kind, GraphDecision::Kind::kReplay);
        EXPECT_EQ(decision.key.padded_num_seqs, n <= 1   ? 1
                                                : n <= 2 ? 2
                                                : n <= 4 ? 4
                                                : n <= 8 ? 8
                                                         : 16);
      } else {
        EXPECT_EQ(decision.kind, GraphDecision::Kind::kEager);
        EXPECT_EQ(decision.reason, EagerReason::kTooManySeqs);
      }
      harness->ExpectTokensAndLogits();
    }
    for (const SlotId slot : FirstSlots(n)) harness->Leave(slot);
  }
  // By the counters: 16 sizes of 3 decode steps were replayed, and no decode step of 1 to 16 rows
  // ran eagerly; 17 prefills (a prompt of one token alone is a decode), and 3 steps of 17 rows did.
  const GraphReport& report = harness->runner().graph_report();
  EXPECT_GE(report.num_replays(), 16 * 3);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kTooManySeqs) +
                report.num_eager_steps(EagerReason::kQueryTooLong) + report.num_replays(),
            17 * 4);
}

TEST_P(ModelRunnerSuite, GraphsOnAndOffComputeTheSameBits) {
  ModelRunnerOptions options = {
      .max_num_seqs = 6, .max_num_tokens = 64, .max_seq_len = 64, .block_size = 5};
  auto on = Make(GetParam(), options);
  options.graphs = GraphSetOptions::Mode::kOff;
  auto off = Make(GetParam(), options);
  std::mt19937 rng(8);
  for (const SlotId slot : FirstSlots(5)) {
    const std::vector<int32_t> prompt = RandomPrompt(rng, 1 + rng() % 12);
    on->Join(slot, prompt);
    off->Join(slot, prompt);
  }
  for (int step = 0; step < 24; ++step) {
    const std::vector<SlotId> slots = FirstSlots(step == 0 ? 5 : 1 + step % 5);
    ASSERT_STEP(on->Step(slots));
    ASSERT_STEP(off->Step(slots));
    const int64_t n = static_cast<int64_t>(slots.size());
    ASSERT_TRUE(at::equal(on->logits().narrow(0, 0, n), off->logits().narrow(0, 0, n)))
        << "step " << step;
    if (step == 0) continue;
    EXPECT_EQ(on->decision().kind, GraphDecision::Kind::kReplay);
    EXPECT_EQ(off->decision().reason, EagerReason::kDisabled);
  }
}

// Rows join, leave, shrink and grow past block borders; the order of rows changes from step to
// step.
TEST_P(ModelRunnerSuite, RandomTrafficKeepsEveryRowRight) {
  const int seed = 9;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const int num_slots = 9;
  auto harness = Make(GetParam(), {.max_num_seqs = num_slots,
                                   .max_num_tokens = 128,
                                   .max_seq_len = 48,
                                   .block_size = 3,
                                   .graph_sizes = {1, 2, 4, 8}});
  std::vector<bool> live(num_slots, false);
  for (int step = 0; step < 2000; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    std::vector<SlotId> slots;
    for (const SlotId slot : FirstSlots(num_slots)) {
      const int id = slot.value();
      if (live[id] && (harness->text(slot).size() >= 48 || rng() % 20 == 0)) {
        harness->Leave(slot);
        live[id] = false;
      }
      if (!live[id] && rng() % 8 == 0) {
        harness->Join(slot, RandomPrompt(rng, 1 + rng() % 10));
        live[id] = true;
        slots.push_back(slot);
      } else if (live[id] && rng() % 4 != 0) {
        slots.push_back(slot);
      }
    }
    std::shuffle(slots.begin(), slots.end(), rng);
    ASSERT_STEP(harness->Step(slots));
    if (step % 7 == 0) harness->ExpectTokensAndLogits();
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(harness->runner().graph_report().num_replays(), 500);
}

TEST_P(ModelRunnerSuite, AnIdleStepIsLegalAndTakesItsDeltas) {
  auto harness = Make(GetParam(), {.max_num_seqs = 2, .max_num_tokens = 16, .max_seq_len = 16});
  ASSERT_STEP(harness->Step({}));
  EXPECT_EQ(harness->decision().reason, EagerReason::kIdle);
  harness->Join(SlotId(0), {1, 2, 3});
  ASSERT_STEP(harness->Step({SlotId(0)}));
  harness->Leave(SlotId(0));
  ASSERT_STEP(harness->Step({}));
  harness->Join(SlotId(0), {4});
  ASSERT_STEP(harness->Step({SlotId(0)}));
  harness->ExpectTokensAndLogits();
}

TEST_P(ModelRunnerSuite, ForkedSequencesGoOnInBlocksOfTheirOwn) {
  // 7 and 9 tokens: the last block is begun, and full but for one.
  for (const int num_prompt : {7, 9}) {
    SCOPED_TRACE(testing::Message() << num_prompt << " tokens");
    auto harness = Make(GetParam(), {.max_num_seqs = 4,
                                     .max_num_tokens = 32,
                                     .max_seq_len = 64,
                                     .block_size = 5,
                                     .graph_sizes = {4}});
    std::mt19937 rng(11);
    harness->Join(SlotId(0), RandomPrompt(rng, num_prompt));
    ASSERT_STEP(harness->Step({SlotId(0)}));
    ASSERT_STEP(harness->Step({SlotId(0)}));
    harness->Fork(SlotId(0), SlotId(2), 3);
    harness->Fork(SlotId(0), SlotId(1), 17);
    for (int step = 0; step < 8; ++step) {
      ASSERT_STEP(harness->Step({SlotId(0), SlotId(1), SlotId(2)}));
      harness->ExpectTokensAndLogits();
    }
    EXPECT_EQ(harness->decision().kind, GraphDecision::Kind::kReplay);
    EXPECT_NE(harness->text(SlotId(1)), harness->text(SlotId(2)));
  }
}

TEST_P(ModelRunnerSuite, ARefusedBatchLeavesTheRunnerUsable) {
  auto harness = Make(GetParam(), {.max_num_seqs = 2, .max_num_tokens = 16, .max_seq_len = 16});
  harness->Join(SlotId(0), {1, 2, 3});
  ASSERT_STEP(harness->Step({SlotId(0)}));
  const ScheduledRow stranger[] = {{.slot = SlotId(1)}};
  const auto refused = harness->runner().Launch({.rows = stranger});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("slot 1 has no sequence"));
  ASSERT_STEP(harness->Step({SlotId(0)}));
  harness->ExpectTokensAndLogits();
}

}  // namespace
}  // namespace reprise
