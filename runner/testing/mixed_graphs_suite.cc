#include "reprise/runner/testing/mixed_graphs_suite.h"

#include <ATen/ops/equal.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/runner/testing/runner_harness.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MixedGraphsSuite);

namespace {

using Kind = GraphDecision::Kind;
using Mode = GraphSetOptions::Mode;

constexpr int kVocab = 61;

ModelRunnerOptions Options() {
  return {.max_num_seqs = 8,
          .max_num_tokens = 96,
          .max_seq_len = 80,
          .cache = {.block_size = 4},
          .graphs = {.sizes = {1, 2}, .mixed = MixedGraphs::kOn, .mixed_tokens = {8, 16, 64}},
          .debug = {.mixed_graph_sizes = {3, 8}}};
}

GraphKey Mixed(int num_seqs, int num_tokens) {
  return {
      .padded_num_seqs = num_seqs, .padded_num_tokens = num_tokens, .max_query_len = num_tokens};
}

std::unique_ptr<RunnerHarness> Make(c10::Device device, const ModelRunnerOptions& options,
                                    const ToyModelOptions& model = {}) {
  ToyModelOptions on_device = model;
  on_device.vocab_size = kVocab;
  on_device.device = device;
  auto harness = RunnerHarness::Create(options, on_device);
  EXPECT_TRUE(harness.ok()) << harness.status();
  return harness.ok() ? *std::move(harness) : nullptr;
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

// Prompts of these lengths, with decodes of other sequences, and the graph that serves them.
TEST_P(MixedGraphsSuite, UsesTheSmallestGraphThatFits) {
  struct Case {
    std::vector<int> prompts;
    int num_decodes;
    GraphKey key;
  };
  for (const Mode mode : {Mode::kEager, Mode::kLazy}) {
    ModelRunnerOptions options = Options();
    options.graphs.mode = mode;
    auto harness = Make(GetParam(), options);
    ASSERT_NE(harness, nullptr);
    std::mt19937 rng(3);
    int num_steps = 0;
    for (const Case& c : std::vector<Case>{{{2}, 0, Mixed(3, 8)},
                                           {{8}, 0, Mixed(3, 8)},     // exactly full
                                           {{6, 1}, 1, Mixed(3, 8)},  // full in tokens and rows
                                           {{2}, 6, Mixed(8, 8)},     // full in tokens
                                           {{9}, 0, Mixed(3, 16)},
                                           {{3, 3}, 2, Mixed(8, 8)},
                                           {{13}, 3, Mixed(8, 16)},
                                           {{1, 1, 1, 1, 1, 1, 1, 1}, 0, Mixed(8, 8)},
                                           {{1, 1, 1}, 0, Mixed(3, 8)},  // not a decode graph
                                           {{64}, 0, Mixed(3, 64)},
                                           {{20, 37}, 6, Mixed(8, 64)}}) {
      SCOPED_TRACE(testing::Message() << c.key << ", " << c.num_decodes << " decodes");
      const int num_rows = c.num_decodes + static_cast<int>(c.prompts.size());
      for (int slot = 0; slot < c.num_decodes; ++slot) {
        harness->Join(SlotId(slot), RandomPrompt(rng, 2));
      }
      if (c.num_decodes > 0) {
        ASSERT_STEP(harness->Step(FirstSlots(c.num_decodes)));
        ++num_steps;
      }
      for (int i = 0; i < static_cast<int>(c.prompts.size()); ++i) {
        harness->Join(SlotId(c.num_decodes + i), RandomPrompt(rng, c.prompts[i]));
      }
      ASSERT_STEP(harness->Step(FirstSlots(num_rows)));
      ++num_steps;
      EXPECT_EQ(harness->decision().kind, Kind::kReplay);
      EXPECT_EQ(harness->decision().key, c.key);
      harness->ExpectTokensAndLogits();
      for (const SlotId slot : FirstSlots(num_rows)) harness->Leave(slot);
    }
    const GraphReport& report = harness->runner().graph_report();
    EXPECT_EQ(report.num_replays(), num_steps);
    EXPECT_EQ(report.num_eager_steps(), 0);
    EXPECT_EQ(report.Find(Mixed(8, 64))->num_replays, 1);
    EXPECT_EQ(report.Find(Mixed(8, 64))->live_rows, 8);
  }
}

// The tokens of a step do not affect the next step, whichever step is larger.
TEST_P(MixedGraphsSuite, EarlierStepsOfOtherKindsDoNotAffectAStep) {
  auto harness = Make(GetParam(), Options());
  ASSERT_NE(harness, nullptr);
  std::mt19937 rng(4);
  const auto step = [&](const std::vector<SlotId>& slots, const GraphKey& key) {
    ASSERT_STEP(harness->Step(slots));
    EXPECT_EQ(harness->decision().kind, Kind::kReplay);
    EXPECT_EQ(harness->decision().key, key);
    harness->ExpectTokensAndLogits();
  };
  const GraphKey decode = {.padded_num_seqs = 1, .padded_num_tokens = 1};
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    harness->Join(SlotId(0), RandomPrompt(rng, 40));
    harness->Join(SlotId(1), RandomPrompt(rng, 20));
    step({SlotId(1), SlotId(0)}, Mixed(3, 64));
    step({SlotId(0)}, decode);
    harness->Join(SlotId(2), RandomPrompt(rng, 3));
    step({SlotId(2), SlotId(0)}, Mixed(3, 8));
    step({SlotId(1)}, decode);
    step({SlotId(0), SlotId(1), SlotId(2)}, Mixed(3, 8));
    for (const SlotId slot : FirstSlots(3)) harness->Leave(slot);
  }
}

TEST_P(MixedGraphsSuite, StepsWithTooManyTokensOrRowsRunEagerly) {
  ModelRunnerOptions options = Options();
  options.debug.mixed_graph_sizes = {4};
  auto harness = Make(GetParam(), options);
  ASSERT_NE(harness, nullptr);
  std::mt19937 rng(5);
  harness->Join(SlotId(0), RandomPrompt(rng, 65));
  ASSERT_STEP(harness->Step({SlotId(0)}));
  EXPECT_EQ(harness->decision().reason, EagerReason::kQueryTooLong);
  EXPECT_EQ(harness->decision().key.padded_num_tokens, 65);  // not padded
  harness->ExpectTokensAndLogits();
  for (int slot = 1; slot < 5; ++slot) harness->Join(SlotId(slot), RandomPrompt(rng, 2));
  ASSERT_STEP(harness->Step(FirstSlots(5)));
  EXPECT_EQ(harness->decision().reason, EagerReason::kTooManySeqs);
  harness->ExpectTokensAndLogits();
}

TEST_P(MixedGraphsSuite, MixedStepsRunEagerlyWithoutPaddingIfSwitchedOff) {
  ModelRunnerOptions options = Options();
  options.graphs.mixed = MixedGraphs::kOff;
  options.graphs.mode = Mode::kEager;
  auto harness = Make(GetParam(), options);
  ASSERT_NE(harness, nullptr);
  harness->Join(SlotId(0), {1, 2, 3});
  ASSERT_STEP(harness->Step({SlotId(0)}));
  EXPECT_EQ(harness->decision().reason, EagerReason::kQueryTooLong);
  EXPECT_EQ(harness->decision().key.padded_num_tokens, 3);
  for (const GraphStats& graph : harness->runner().graph_report().graphs()) {
    EXPECT_EQ(graph.key.max_query_len, 1);
  }
}

// Prompts and decodes join and leave at random. Graphs that are captured at creation, graphs that
// are captured at first use, and eager steps compute bitwise identical results. With graphs, every
// step is a replay.
TEST_P(MixedGraphsSuite, RandomTrafficWithGraphsMatchesEagerStepsBitwise) {
  const uint32_t seed = 6;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::vector<std::unique_ptr<RunnerHarness>> harnesses;
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    ModelRunnerOptions options = Options();
    options.graphs.mode = mode;
    harnesses.push_back(Make(GetParam(), options));
    ASSERT_NE(harnesses.back(), nullptr);
  }
  std::mt19937 rng(seed);
  std::vector<bool> live(8, false);
  int num_mixed = 0;
  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    std::vector<SlotId> slots;
    int num_tokens = 0;
    for (const SlotId slot : FirstSlots(8)) {
      const int id = slot.value();
      if (live[id] && (harnesses[0]->text(slot).size() >= 79 || rng() % 20 == 0)) {
        for (const auto& harness : harnesses) harness->Leave(slot);
        live[id] = false;
      }
      if (!live[id] && rng() % 8 == 0) {
        const std::vector<int32_t> prompt = RandomPrompt(rng, 1 + rng() % 19);
        // With a decode in each other slot, the prompt still fits the largest graph.
        if (num_tokens + static_cast<int>(prompt.size()) > 57) continue;
        for (const auto& harness : harnesses) harness->Join(slot, prompt);
        live[id] = true;
        slots.push_back(slot);
        num_tokens += static_cast<int>(prompt.size());
      } else if (live[id] && rng() % 4 != 0) {
        slots.push_back(slot);
        ++num_tokens;
      }
    }
    if (slots.empty()) continue;
    std::shuffle(slots.begin(), slots.end(), rng);
    for (const auto& harness : harnesses) ASSERT_STEP(harness->Step(slots));
    const int64_t n = static_cast<int64_t>(slots.size());
    for (const auto& harness : harnesses) {
      ASSERT_TRUE(
          at::equal(harness->logits().narrow(0, 0, n), harnesses[0]->logits().narrow(0, 0, n)));
      EXPECT_EQ(harness->decision().key, harnesses[0]->decision().key);
    }
    if (step % 7 == 0) harnesses[0]->ExpectTokensAndLogits();
    EXPECT_EQ(harnesses[2]->decision().reason, EagerReason::kDisabled);
    if (harnesses[0]->decision().key.max_query_len > 1) ++num_mixed;
    if (HasFailure()) return;
  }
  EXPECT_GT(num_mixed, 100);
  for (int i = 0; i < 2; ++i) {
    const GraphReport& report = harnesses[i]->runner().graph_report();
    EXPECT_EQ(report.num_eager_steps() - report.num_eager_steps(EagerReason::kIdle), 0);
    EXPECT_GE(report.num_replays(), num_mixed);
  }
}

TEST_P(MixedGraphsSuite, AMixedGraphReadsNewScalesOfAnFp8Cache) {
  std::vector<std::unique_ptr<RunnerHarness>> harnesses;
  for (const Mode mode : {Mode::kEager, Mode::kOff, Mode::kEager}) {
    ModelRunnerOptions options = Options();
    options.cache.dtype = DType::kFp8E4M3;
    options.graphs.mode = mode;
    harnesses.push_back(Make(GetParam(), options));
    ASSERT_NE(harnesses.back(), nullptr);
  }
  std::mt19937 rng(7);
  const auto join = [&](int slot, int length) {
    const std::vector<int32_t> prompt = RandomPrompt(rng, length);
    for (const auto& harness : harnesses) harness->Join(SlotId(slot), prompt);
  };
  const auto same = [&](int a, int b, int64_t rows) {
    return at::equal(harnesses[a]->logits().narrow(0, 0, rows),
                     harnesses[b]->logits().narrow(0, 0, rows));
  };
  join(0, 9);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {
      for (int i = 0; i < 2; ++i) {  // all harnesses except the last
        const c10::StreamGuard guard(harnesses[i]->runner().stream());
        at::Tensor(harnesses[i]->runner().kv_scales()->layer(1).v).mul_(2);
      }
    }
    join(1 + step, 5);
    for (const auto& harness : harnesses) ASSERT_STEP(harness->Step(FirstSlots(step + 2)));
    EXPECT_EQ(harnesses[0]->decision().kind, Kind::kReplay);
    EXPECT_GT(harnesses[0]->decision().key.max_query_len, 1);
    EXPECT_TRUE(same(0, 1, step + 2)) << "step " << step;
    EXPECT_EQ(same(0, 2, step + 2), step < 2) << "step " << step;
  }
}

TEST_P(MixedGraphsSuite, CalibratingStepIsPaddedLikeItsGraph) {
  ModelRunnerOptions options = Options();
  options.cache.dtype = DType::kFp8E4M3;
  options.cache.calibration = KvCalibration::kFirstStep;
  auto harness = Make(GetParam(), options, {.kv_factor = 3000});
  ASSERT_NE(harness, nullptr);
  std::mt19937 rng(8);
  harness->Join(SlotId(0), RandomPrompt(rng, 9));
  ASSERT_STEP(harness->Step({SlotId(0)}));
  EXPECT_EQ(harness->decision().reason, EagerReason::kCalibrates);
  EXPECT_EQ(harness->decision().key, Mixed(3, 16));
  EXPECT_LT(harness->MaxLogitsError(), 0.5);  // padded tokens have set no scale
  harness->Join(SlotId(1), RandomPrompt(rng, 9));
  ASSERT_STEP(harness->Step({SlotId(0), SlotId(1)}));
  EXPECT_EQ(harness->decision().kind, Kind::kReplay);
  EXPECT_LT(harness->MaxLogitsError(), 0.5);
}

TEST_P(MixedGraphsSuite, ChunkedPromptMatchesTheWholePrompt) {
  auto harness = Make(GetParam(), Options());
  ASSERT_NE(harness, nullptr);
  ModelRunner& runner = harness->runner();
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7};
  const SlotJoin join[] = {JoinOf(SlotId(0), {}, prompt.size())};
  const BlockTableUpdate updates[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(1)},
                                      {.slot = SlotId(0), .column = 1, .block = BlockId(2)}};
  const ScheduledRow first[] = {{.slot = SlotId(0),
                                 .tokens = absl::MakeConstSpan(prompt).subspan(0, 4),
                                 .output = RowOutput::kNone}};
  const auto chunk = runner.Step({.joins = join, .updates = updates, .rows = first});
  ASSERT_TRUE(chunk.ok()) << chunk.status();
  EXPECT_EQ(chunk->decision.key, Mixed(3, 8));
  EXPECT_EQ(chunk->tokens[0], kNotSampled);
  const ScheduledRow rest[] = {
      {.slot = SlotId(0), .tokens = absl::MakeConstSpan(prompt).subspan(4)}};
  const auto last = runner.Step({.rows = rest});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->decision.key, Mixed(3, 8));
  auto whole = Make(GetParam(), Options());
  whole->Join(SlotId(0), prompt);
  ASSERT_STEP(whole->Step({SlotId(0)}));
  EXPECT_EQ(last->tokens[0], whole->text(SlotId(0)).back());
}

}  // namespace
}  // namespace reprise
