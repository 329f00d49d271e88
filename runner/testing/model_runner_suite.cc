#include "reprise/runner/testing/model_runner_suite.h"

#include <ATen/ops/equal.h>

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/attention/merge/cascade_rule.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/testing/runner_harness.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ModelRunnerSuite);

namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 61;

std::unique_ptr<RunnerHarness> Make(c10::Device device, ModelRunnerOptions options) {
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

TEST_P(ModelRunnerSuite, EveryRowCountUsesTheNextGraphOrReportsAReason) {
  auto harness =
      Make(GetParam(), {.max_num_seqs = 17,
                        .max_num_tokens = 256,
                        .max_seq_len = 64,
                        .cache = {.block_size = 4},
                        .graphs = {.sizes = {1, 2, 4, 8, 16}, .mixed = MixedGraphs::kOff}});
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
  // The counters show that decode steps of 16 sizes, 3 each, were replayed, and no decode step of 1
  // to 16 rows ran eagerly. 17 prefills (a prompt with a single token is a decode) and 3 steps of
  // 17 rows did.
  const GraphReport& report = harness->runner().graph_report();
  EXPECT_GE(report.num_replays(), 16 * 3);
  EXPECT_EQ(report.num_eager_steps(EagerReason::kTooManySeqs) +
                report.num_eager_steps(EagerReason::kQueryTooLong) + report.num_replays(),
            17 * 4);
}

TEST_P(ModelRunnerSuite, GraphsMatchEagerStepsBitwise) {
  ModelRunnerOptions options = {
      .max_num_seqs = 6, .max_num_tokens = 64, .max_seq_len = 64, .cache = {.block_size = 5}};
  auto on = Make(GetParam(), options);
  options.graphs.mode = GraphSetOptions::Mode::kOff;
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

// Rows join, leave, shrink and grow past block boundaries. The order of rows changes between steps.
TEST_P(ModelRunnerSuite, RandomTrafficMatchesTheReference) {
  const int seed = 9;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 rng(seed);
  const int num_slots = 9;
  auto harness = Make(GetParam(), {.max_num_seqs = num_slots,
                                   .max_num_tokens = 128,
                                   .max_seq_len = 48,
                                   .cache = {.block_size = 3},
                                   .graphs = {.sizes = {1, 2, 4, 8}}});
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

TEST_P(ModelRunnerSuite, IdleStepAppliesItsDeltas) {
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

TEST_P(ModelRunnerSuite, IdleStepReplaysAGraphOnRequest) {
  auto harness = Make(GetParam(), {.max_num_seqs = 2, .max_num_tokens = 16, .max_seq_len = 16});
  harness->Join(SlotId(1), {1, 2, 3});
  ASSERT_STEP(harness->Step({SlotId(1)}));
  for (int i = 0; i < 3; ++i) {
    const auto idle = harness->runner().Step({.idle = IdleStep::kRunModel});
    ASSERT_TRUE(idle.ok()) << idle.status();
    EXPECT_EQ(idle->decision.kind, GraphDecision::Kind::kReplay);
    EXPECT_EQ(idle->decision.key.padded_num_seqs, 1);
    EXPECT_TRUE(idle->tokens.empty());
  }
  ASSERT_STEP(harness->Step({SlotId(1)}));
  harness->ExpectTokensAndLogits();
}

TEST_P(ModelRunnerSuite, ForkedSequencesContinueInSeparateBlocks) {
  // The last block of a prompt of 7 tokens holds 2 of 5 tokens; with 9 tokens, it holds 4.
  for (const int num_prompt : {7, 9}) {
    SCOPED_TRACE(testing::Message() << num_prompt << " tokens");
    auto harness = Make(GetParam(), {.max_num_seqs = 4,
                                     .max_num_tokens = 32,
                                     .max_seq_len = 64,
                                     .cache = {.block_size = 5},
                                     .graphs = {.sizes = {4}}});
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

int64_t NumCascadeReplays(const ModelRunner& runner) {
  int64_t num_replays = 0;
  for (const GraphStats& graph : runner.graph_report().graphs()) {
    if (graph.key.cascade) num_replays += graph.num_replays;
  }
  return num_replays;
}

// Reading once is fast, and reading again is extremely slow.
constexpr CascadeCosts kAlwaysOnce = {.read_tb_per_s = 1, .reread_tb_per_s = 1e-6};

TEST_P(ModelRunnerSuite, SharedPrefixOfAllRowsIsReadOnce) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    SCOPED_TRACE(DTypeName(dtype));
    ModelRunnerOptions options = {
        .max_num_seqs = 6,
        .max_num_tokens = 256,
        .max_seq_len = 256,
        .cache = {.block_size = 16},
        .graphs = {.sizes = {2, 4, 6}, .mixed = MixedGraphs::kOff},
        .device = {.cascade = CascadeMode::kAuto, .profile = ProfileWithCascade(kAlwaysOnce)}};
    const ToyModelOptions model = {.vocab_size = kVocab, .dtype = dtype, .device = GetParam()};
    std::vector<std::unique_ptr<RunnerHarness>> harnesses;
    for (const auto graphs : {GraphSetOptions::Mode::kEager, GraphSetOptions::Mode::kOff}) {
      options.graphs.mode = graphs;
      auto harness = RunnerHarness::Create(options, model);
      ASSERT_TRUE(harness.ok()) << harness.status();
      harnesses.push_back(*std::move(harness));
    }
    std::mt19937 rng(12);
    const auto join = [&](int slot, int length) {
      const std::vector<int32_t> prompt = RandomPrompt(rng, length);
      for (const auto& harness : harnesses) harness->Join(SlotId(slot), prompt);
    };
    const auto step = [&](std::vector<int> slots, bool is_cascade) {
      std::vector<SlotId> ids(slots.begin(), slots.end());
      for (const auto& harness : harnesses) {
        ASSERT_STEP(harness->Step(ids));
        EXPECT_EQ(harness->decision().key.cascade, is_cascade) << harness->decision();
        harness->ExpectTokensAndLogits();
      }
      const int64_t n = static_cast<int64_t>(slots.size());
      EXPECT_TRUE(at::equal(harnesses[0]->logits().narrow(0, 0, n),
                            harnesses[1]->logits().narrow(0, 0, n)));
    };

    join(0, 150);
    step({0}, false);
    step({0}, false);  // a single row
    for (int slot = 1; slot < 4; ++slot) {
      for (const auto& harness : harnesses) harness->Fork(SlotId(0), SlotId(slot), 7 * slot);
    }
    for (int i = 0; i < 20; ++i) step({3, 0, 1, 2}, true);
    EXPECT_EQ(harnesses[0]->decision().kind, GraphDecision::Kind::kReplay);
    EXPECT_EQ(harnesses[1]->decision().reason, EagerReason::kDisabled);
    join(4, 130);
    step({0, 1, 2, 3, 4}, false);  // a prompt
    for (int i = 0; i < 3; ++i) step({0, 1, 2, 3, 4}, false);
    EXPECT_EQ(harnesses[0]->decision().kind, GraphDecision::Kind::kReplay);
    for (int i = 0; i < 3; ++i) step({0, 1, 2, 3}, true);
    for (const auto& harness : harnesses) harness->Leave(SlotId(0));  // owner of the blocks
    join(0, 90);
    step({0, 1}, false);
    step({1, 3}, true);
    step({0, 1, 2, 3}, false);
    step({2, 3, 1}, true);
    for (const auto& harness : harnesses) {
      const StepCascade* cascade = harness->runner().cascade();
      ASSERT_NE(cascade, nullptr);
      EXPECT_EQ(cascade->num_steps(CascadeReason::kUse), 20 + 3 + 1 + 1);
      EXPECT_EQ(cascade->num_steps(CascadeReason::kFewRows), 1);
      EXPECT_EQ(cascade->num_steps(CascadeReason::kManyQueries), 3);
      EXPECT_EQ(cascade->num_steps(CascadeReason::kNoPrefix), 3 + 1);
    }
    EXPECT_EQ(NumCascadeReplays(harnesses[0]->runner()), 20 + 3 + 1 + 1);
    EXPECT_EQ(harnesses[0]->runner().graph_report().num_eager_steps(), 3);
  }
}

TEST_P(ModelRunnerSuite, CascadeExistsOnlyIfAPrefixCanBeShared) {
  // There is no cascade if max_seq_len is too small for every rule, or if it is not requested.
  ModelRunnerOptions options = {
      .max_num_seqs = 2,
      .max_num_tokens = 64,
      .max_seq_len = 64,
      .device = {.cascade = CascadeMode::kAuto, .profile = ProfileWithCascade(kAlwaysOnce)}};
  EXPECT_EQ(Make(GetParam(), options)->runner().cascade(), nullptr);
  options.max_seq_len = 256;
  EXPECT_NE(Make(GetParam(), options)->runner().cascade(), nullptr);
  options.device.cascade = CascadeMode::kOff;
  EXPECT_EQ(Make(GetParam(), options)->runner().cascade(), nullptr);
}

TEST_P(ModelRunnerSuite, RunnerStaysUsableAfterARejectedBatch) {
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
