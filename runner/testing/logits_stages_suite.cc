#include "reprise/runner/testing/logits_stages_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LogitsStagesSuite);

namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 61;
constexpr int kSlots = 3;
constexpr int kBlockSize = 16;
constexpr int kBlocksOfSlot = 4;

// A runner in which each slot has blocks for the longest sequence.
struct Runner {
  ToyModel model;
  std::unique_ptr<ModelRunner> runner;

  // Keeps the logits of every step.
  Runner(c10::Device device, LogitsOptions logits)
      : model({.vocab_size = kVocab, .device = device}) {
    logits.step_logits = StepLogits::kOfEvery;
    auto made = ModelRunner::Create(&model, {.max_num_seqs = kSlots,
                                             .max_num_tokens = 64,
                                             .max_seq_len = kBlockSize * kBlocksOfSlot,
                                             .max_steps_in_flight = 2,
                                             .cache = {.block_size = kBlockSize},
                                             .logits = logits});
    EXPECT_TRUE(made.ok()) << made.status();
    runner = *std::move(made);
  }

  static std::vector<BlockTableUpdate> Blocks(int slot) {
    std::vector<BlockTableUpdate> updates;
    for (int column = 0; column < kBlocksOfSlot; ++column) {
      updates.push_back({.slot = SlotId(slot),
                         .column = column,
                         .block = BlockId(1 + kBlocksOfSlot * slot + column)});
    }
    return updates;
  }

  absl::StatusOr<int64_t> Join(int slot, absl::Span<const int32_t> prompt,
                               const LogitsRequest& request, absl::Span<const int32_t> mask = {}) {
    const SlotJoin join[] = {JoinOf(SlotId(slot), {}, prompt.size())};
    const LogitsRequest requests[] = {request};
    const std::vector<BlockTableUpdate> updates = Blocks(slot);
    const ScheduledRow rows[] = {{.slot = SlotId(slot), .tokens = prompt, .allowed_tokens = mask}};
    return runner->Launch(
        {.joins = join, .logits_requests = requests, .updates = updates, .rows = rows});
  }
  absl::StatusOr<int64_t> Decode(const std::vector<int>& slots,
                                 absl::Span<const int32_t> mask_of_first = {}) {
    std::vector<ScheduledRow> rows;
    for (const int slot : slots) rows.push_back({.slot = SlotId(slot)});
    rows[0].allowed_tokens = mask_of_first;
    return runner->Launch({.rows = rows});
  }
};

#define ASSERT_LAUNCHED(variable, expression)            \
  const absl::StatusOr<int64_t> variable = (expression); \
  ASSERT_TRUE(variable.ok()) << variable.status()

std::vector<int32_t> MaskOf(int32_t token) {
  std::vector<int32_t> mask(MaskWords(kVocab));
  mask[token / 32] = static_cast<int32_t>(1u << (token % 32));
  return mask;
}

TEST_P(LogitsStagesSuite, PenalisesTokensOfStepsInFlight) {
  Runner runner(GetParam(), {.penalties = true});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const LogitsRequest request = {
      .slot = SlotId(0), .params = {.presence_penalty = 1e6f}, .prompt = prompt};
  ASSERT_LAUNCHED(first, runner.Join(0, prompt, request));
  std::vector<int64_t> in_flight = {*first};
  std::vector<int32_t> tokens;
  for (int step = 0; step < 40; ++step) {
    if (step < 39) {
      ASSERT_LAUNCHED(next, runner.Decode({0}));
      in_flight.push_back(*next);
    }
    const auto result = runner.runner->Await(in_flight.front());
    ASSERT_TRUE(result.ok()) << result.status();
    in_flight.erase(in_flight.begin());
    tokens.push_back(result->tokens[0]);
  }
  // No token may occur twice.
  EXPECT_EQ(std::set<int32_t>(tokens.begin(), tokens.end()).size(), tokens.size());
}

TEST_P(LogitsStagesSuite, MaskAppliesToItsRowAndStepOnly) {
  Runner runner(GetParam(), {.allowed_tokens = true});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const std::vector<int32_t> only_nine = MaskOf(9);
  ASSERT_LAUNCHED(first, runner.Join(0, prompt, {}, only_nine));
  ASSERT_LAUNCHED(second, runner.Join(1, prompt, {.slot = SlotId(1)}));
  EXPECT_EQ(runner.runner->Await(*first)->tokens[0], 9);
  const auto free_row = runner.runner->Await(*second);
  EXPECT_EQ(free_row->tokens[0],
            (*runner.runner->logits(free_row->step))[0].argmax().item<int64_t>());
  for (int32_t token = 0; token < kVocab; token += 7) {
    const std::vector<int32_t> mask = MaskOf(token);
    ASSERT_LAUNCHED(ticket, runner.Decode({0, 1}, mask));
    const auto result = runner.runner->Await(*ticket);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->tokens[0], token);
    EXPECT_EQ(result->tokens[1],
              (*runner.runner->logits(result->step))[1].argmax().item<int64_t>());
  }
}

TEST_P(LogitsStagesSuite, MaskThatAllowsNothingFailsOnlyItsRow) {
  Runner runner(GetParam(), {.allowed_tokens = true});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const std::vector<int32_t> nothing(MaskWords(kVocab), 0);
  ASSERT_LAUNCHED(first, runner.Join(0, prompt, {}));
  ASSERT_TRUE(runner.runner->Await(*first).ok());
  ASSERT_LAUNCHED(second, runner.Join(1, prompt, {.slot = SlotId(1)}));
  ASSERT_TRUE(runner.runner->Await(*second).ok());
  ASSERT_LAUNCHED(third, runner.Decode({0, 1}, nothing));
  ASSERT_LAUNCHED(in_flight, runner.Decode({0, 1}));  // launched before the host receives the error
  const auto result = runner.runner->Await(*third);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens[0], kNanRow);
  EXPECT_GE(result->tokens[1], 0);
  EXPECT_TRUE(runner.runner->Await(*in_flight).ok());
}

TEST_P(LogitsStagesSuite, ReportsLogProbabilitiesOfRawLogits) {
  Runner runner(GetParam(), {.max_biases = 1, .max_log_probs = 4});
  const std::vector<int32_t> prompt = {4, 5};
  const LogitBias bias[] = {{.token = 30, .bias = 1e4f}};
  ASSERT_LAUNCHED(
      ticket,
      runner.Join(1, prompt, {.slot = SlotId(1), .params = {.num_log_probs = 3}, .biases = bias}));
  const auto result = runner.runner->Await(*ticket);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->tokens[0], 30);
  // Logits kept by StepLogits are raw, too.
  const at::Tensor log_probs =
      (*runner.runner->logits(result->step))[0].cpu().to(at::kDouble).log_softmax(0);
  EXPECT_NEAR(result->log_probs.token_log_probs[0], log_probs[30].item<double>(), 1e-5);
  EXPECT_EQ(result->log_probs.top_tokens[0], log_probs.argmax().item<int64_t>());
  for (int i = 0; i < 3; ++i) {
    const int32_t token = result->log_probs.top_tokens[i];
    EXPECT_NEAR(result->log_probs.top_log_probs[i], log_probs[token].item<double>(), 1e-5);
  }
}

TEST_P(LogitsStagesSuite, RejectsRequestsBeyondTheOptionsAndChangesNothing) {
  Runner runner(GetParam(), {});
  const std::vector<int32_t> prompt = {1, 2, 3};
  const auto refused = runner.Join(0, prompt, {.params = {.presence_penalty = 1}});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("requests: slot 0: penalties: the options do not provide for them"));
  EXPECT_EQ(runner.Join(0, prompt, {}, MaskOf(3)).status().code(),
            absl::StatusCode::kInvalidArgument);
  ASSERT_LAUNCHED(ticket, runner.Join(0, prompt, {}));  // slot 0 is still free
  EXPECT_TRUE(runner.runner->Await(*ticket).ok());
}

}  // namespace
}  // namespace reprise
