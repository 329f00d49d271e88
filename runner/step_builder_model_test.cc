// Compares StepBuilder over a ModelRunner with RunnerHarness, which computes each prompt as a whole
// and without prefix hits.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/step_builder.h"
#include "reprise/runner/testing/runner_harness.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

constexpr int kNewTokens = 12;

// Three prompts; the second and the third share 21 tokens with the first.
std::vector<std::vector<int32_t>> Prompts() {
  std::mt19937 random(3);
  std::vector<std::vector<int32_t>> prompts(3);
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (int t = 0; t < 30 - static_cast<int>(i); ++t) {
      prompts[i].push_back(static_cast<int32_t>(random() % 61));
    }
    std::copy_n(prompts[0].begin(), 21, prompts[i].begin());
  }
  return prompts;
}

std::vector<int32_t> TextOfHarness(RunnerHarness& harness, const std::vector<int32_t>& prompt) {
  harness.Join(SlotId(0), prompt);
  for (int i = 0; i < kNewTokens; ++i) EXPECT_TRUE(harness.Step({SlotId(0)}).ok());
  harness.ExpectTokensAndLogits();
  harness.Leave(SlotId(0));
  return harness.text(SlotId(0));
}

class StepBuilderModelTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, StepBuilderModelTest, testing::Values(1, 2));

TEST_P(StepBuilderModelTest, MatchesTheTextsOfTheHarnessWithChunksAndPrefixHits) {
  const auto harness = RunnerHarness::Create(
      {.max_num_seqs = 1, .max_num_tokens = 64, .max_seq_len = 64, .cache = {.block_size = 4}}, {});
  ASSERT_TRUE(harness.ok()) << harness.status();
  ToyModel model({});
  const auto runner = ModelRunner::Create(&model, {.max_num_seqs = 3,
                                                   .max_num_tokens = 8,
                                                   .max_seq_len = 64,
                                                   .max_steps_in_flight = GetParam(),
                                                   .cache = {.block_size = 4}});
  ASSERT_TRUE(runner.ok()) << runner.status();
  auto steps = StepBuilder::Create(**runner, {.partial_hits = PartialHits::kCopied});
  ASSERT_TRUE(steps.ok()) << steps.status();
  std::vector<SlotId> slots;
  for (const std::vector<int32_t>& prompt : Prompts()) {
    // The previous prompt has been computed, and its sequence is still running.
    const auto slot = steps->Join(prompt);
    ASSERT_TRUE(slot.ok()) << slot.status();
    EXPECT_EQ(steps->num_cached_tokens(*slot), slots.empty() ? 0 : 21);
    slots.push_back(*slot);
    while (steps->tokens(*slot).size() < prompt.size() + 2) ASSERT_TRUE(steps->Run().ok());
  }
  while (steps->tokens(slots.back()).size() < Prompts().back().size() + kNewTokens) {
    ASSERT_TRUE(steps->Run().ok());
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const std::vector<int32_t> want = TextOfHarness(**harness, Prompts()[i]);
    const absl::Span<const int32_t> text = steps->tokens(slots[i]);
    ASSERT_GE(text.size(), want.size());
    EXPECT_EQ(std::vector<int32_t>(text.begin(), text.begin() + want.size()), want);
  }
  EXPECT_GT((*runner)->graph_report().num_replays(), 0);
}

}  // namespace
}  // namespace reprise
