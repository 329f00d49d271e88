#include "reprise/runner/sampling/logits_processors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/element_access.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/testing/logits_cases.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One row of float32 logits in slot 0.
struct OneRow {
  std::vector<float> logits;
  LogitsParams params = {};
  std::vector<LogitBias> biases = {};
  std::vector<TokenCount> counts = {};  // count of each token; empty: all 0
  std::vector<int32_t> mask = {};

  std::vector<float> Processed() {
    params.num_biases = static_cast<int>(biases.size());
    counts.resize(TokenCountStride(logits.size()));
    int32_t slot = 0;
    const LogitsProcessorsArgs args = {.logits = logits.data(),
                                       .num_rows = 1,
                                       .sample_slot = &slot,
                                       .slots = {.params = &params,
                                                 .biases = biases.data(),
                                                 .counts = counts.data(),
                                                 .num_slots = 1,
                                                 .max_biases = static_cast<int>(biases.size()),
                                                 .vocab_size = static_cast<int>(logits.size())},
                                       .allowed_tokens = mask.empty() ? nullptr : mask.data(),
                                       .num_masks = mask.empty() ? 0 : 1};
    EXPECT_EQ(CheckLogitsProcessors(args), absl::OkStatus());
    LogitsProcessorsOnHost(args);
    return logits;
  }
};

TEST(LogitsProcessorsTest, RepetitionPenalisesPromptAndOutputTowardsZeroProbability) {
  OneRow row = {.logits = {4, -4, 0, 4, -4, 4},
                .params = {.repetition_penalty = 2},
                .counts = {kInPrompt, kInPrompt, kInPrompt, 3, 1, 0}};
  EXPECT_THAT(row.Processed(), ElementsAre(2, -8, 0, 2, -8, 4));
}

TEST(LogitsProcessorsTest, PresenceAndFrequencyCountOnlyTheOutput) {
  OneRow row = {.logits = {1, 1, 1, 1},
                .params = {.presence_penalty = 0.5f, .frequency_penalty = 0.25f},
                .counts = {0, kInPrompt, 1, kInPrompt | 4}};
  EXPECT_THAT(row.Processed(), ElementsAre(1, 1, 0.25f, -0.5f));
}

TEST(LogitsProcessorsTest, AppliesRepetitionThenOtherPenaltiesThenBiasThenMask) {
  OneRow row = {.logits = {8, 8, 8},
                .params = {.repetition_penalty = 2, .presence_penalty = 1, .frequency_penalty = 2},
                .biases = {{1, 10}, {2, 100}},
                .counts = {2, 1, 0},
                .mask = {0b011}};
  // 8 / 2 - 2 * 2 - 1; 8 / 2 - 2 - 1 + 10; not allowed
  EXPECT_THAT(row.Processed(), ElementsAre(-1, 11, -kInfinity));
}

TEST(LogitsProcessorsTest, LastBiasOfATokenWinsAndInvalidTokensAreIgnored) {
  OneRow row = {.logits = {1, 1, 1},
                .biases = {{1, 5}, {-1, 9}, {1, 7}, {3, 9}, {1 << 30, 9}, {2, -kInfinity}}};
  EXPECT_THAT(row.Processed(), ElementsAre(1, 8, -kInfinity));
  // Entries of this row do not affect the next row.
  OneRow next = {.logits = {1, 1, 1}, .biases = {{0, 1}}};
  EXPECT_THAT(next.Processed(), ElementsAre(2, 1, 1));
}

TEST(LogitsProcessorsTest, MasksHaveTheLayoutOfXgrammar) {
  // Token 32 w + i is bit i of word w. Tokens 0, 31 and 33 of 34 are allowed; bits beyond the
  // vocabulary are also set.
  OneRow row = {.logits = std::vector<float>(34, 1),
                .mask = {static_cast<int32_t>(0x80000001), static_cast<int32_t>(0xfffffffe)}};
  std::vector<float> expected(34, -kInfinity);
  for (int token : {0, 31, 33}) expected[token] = 1;
  EXPECT_EQ(row.Processed(), expected);
}

TEST(LogitsProcessorsTest, NanStaysUnlessItsTokenIsExcluded) {
  OneRow row = {.logits = {kNan, kNan, kNan, kNan},
                .params = {.repetition_penalty = 2, .presence_penalty = 1},
                .biases = {{1, 5}},
                .counts = {3, 0, 0, 0},
                .mask = {0b0111}};
  const std::vector<float> processed = row.Processed();
  EXPECT_TRUE(std::isnan(processed[0]) && std::isnan(processed[1]) && std::isnan(processed[2]));
  EXPECT_EQ(processed[3], -kInfinity);
}

TEST(LogitsProcessorsTest, InfinitiesStayAndNoNewNanArises) {
  OneRow row = {.logits = {kInfinity, -kInfinity, kInfinity, -kInfinity, 1, 3e38f},
                .params = {.repetition_penalty = 2, .frequency_penalty = 3e38f},
                .biases = {{2, -kInfinity}, {3, kInfinity}, {4, kNan}},
                .counts = {kInPrompt, kInPrompt, 0, 0, 0, 3}};
  // 3e38 / 2 - inf is -inf
  EXPECT_THAT(row.Processed(),
              ElementsAre(kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity));
}

TEST(LogitsProcessorsTest, DoesNotChangeRowsWithoutProcessing) {
  std::mt19937 random(1);
  LogitsShape shape = {.num_rows = 6, .num_slots = 6, .num_masks = 1};
  BuilderMemory<LogitsProcessorsArgs> memory(
      [&](ArrayCarver& carver) { return CarveLogitsProcessors(shape, carver); });
  DrawLogitsProcessors(random, shape, 0.3, memory.args());
  LogitsProcessorsArgs& args = memory.args();
  auto* sample_slot = const_cast<int32_t*>(args.sample_slot);
  auto* mask_of_row = const_cast<int32_t*>(args.mask_of_row);
  const int32_t slots[] = {0, -1, 6, 1 << 30, 1, std::numeric_limits<int32_t>::min()};
  const int32_t masks[] = {-1, 0, 0, 0, 1, 0};  // mask 1 does not exist
  std::copy_n(slots, 6, sample_slot);
  std::copy_n(masks, 6, mask_of_row);
  args.slots.params[0] = {.num_log_probs = 3};
  args.slots.params[1] = {};
  const std::vector<std::byte> before(memory.base(), memory.base() + memory.num_bytes());
  LogitsProcessorsOnHost(args);
  EXPECT_EQ(memory.FirstDifference(before.data()), "");
}

// Computes the definition in float64, before the rounding to the dtype of the logits. `scale` is
// the largest intermediate value; its float32 rounding bounds the error.
struct Expected {
  double value = 0;
  double scale = 0;
};

Expected ByDefinition(double logit, const LogitsParams& params, TokenCount count,
                      const double* bias) {
  Expected expected = {logit, std::abs(logit)};
  const auto set = [&](double value) {
    expected.value = value;
    expected.scale = std::max(expected.scale, std::abs(value));
  };
  const int output = count & 0x7fff;
  if (count != 0) {
    const double r = params.repetition_penalty;
    set(logit > 0 ? logit / r : logit * r);
  }
  if (output > 0) {
    set(expected.value - double{params.frequency_penalty} * output);
    set(expected.value - params.presence_penalty);
  }
  if (bias != nullptr) set(expected.value + *bias);
  return expected;
}

double EpsilonOf(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}

TEST(LogitsProcessorsTest, FollowsTheDefinitionForManyShapes) {
  int num_changed = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const LogitsShape shape = DrawLogitsShape(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << shape);
    BuilderMemory<LogitsProcessorsArgs> memory(
        [&](ArrayCarver& carver) { return CarveLogitsProcessors(shape, carver); });
    DrawLogitsProcessors(random, shape, 0, memory.args());
    const LogitsProcessorsArgs& args = memory.args();
    const std::vector<std::byte> before(memory.base(), memory.base() + memory.num_bytes());
    const LogitsProcessorsArgs raw = memory.ArgsAt(const_cast<std::byte*>(before.data()));
    LogitsProcessorsOnHost(args);
    for (int row = 0; row < shape.num_rows; ++row) {
      const int32_t slot = args.sample_slot[row];
      const LogitsParams params = slot >= 0 ? args.slots.params[slot] : LogitsParams();
      const int32_t mask = slot < 0               ? -1
                           : args.num_masks == 0  ? -1
                           : shape.has_mask_map   ? args.mask_of_row[row]
                           : row < args.num_masks ? row
                                                  : -1;
      for (int v = 0; v < shape.vocab_size; ++v) {
        const int64_t at = row * args.logits_stride + v;
        const double got = LoadElement<double>(args.logits, args.dtype, at);
        const double logit = LoadElement<double>(raw.logits, args.dtype, at);
        if (mask >= 0 &&
            ((args.allowed_tokens[mask * args.mask_stride + v / 32] >> (v % 32)) & 1) == 0) {
          ASSERT_EQ(got, -kInfinity) << "row " << row << " token " << v;
          continue;
        }
        double bias = 0;
        bool has_bias = false;
        for (int i = 0; slot >= 0 && i < params.num_biases; ++i) {
          const LogitBias& entry = args.slots.biases_of(slot)[i];
          if (entry.token == v) bias = entry.bias;
          has_bias |= entry.token == v;
        }
        const TokenCount count = slot >= 0 && args.slots.counts != nullptr && HasPenalties(params)
                                     ? args.slots.counts_of(slot)[v]
                                     : TokenCount{0};
        const Expected expected = ByDefinition(logit, params, count, has_bias ? &bias : nullptr);
        num_changed += expected.value != logit;
        // A bias of -inf, or a value beyond the range of float16.
        if (std::isinf(RoundTo(args.dtype, expected.value))) {
          ASSERT_EQ(got, RoundTo(args.dtype, expected.value));
          continue;
        }
        // Four float32 operations, and a rounding to the dtype.
        ASSERT_NEAR(got, expected.value,
                    4 * 0x1p-24 * expected.scale + EpsilonOf(args.dtype) * std::abs(expected.value))
            << "row " << row << " token " << v << " logit " << logit;
      }
    }
  }
  EXPECT_GT(num_changed, 5000);
}

TEST(LogitsProcessorsTest, AllocatesNothingInSteadyState) {
  std::mt19937 random(5);
  const LogitsShape shape = {.num_rows = 8, .num_slots = 8, .vocab_size = 500};
  BuilderMemory<LogitsProcessorsArgs> memory(
      [&](ArrayCarver& carver) { return CarveLogitsProcessors(shape, carver); });
  DrawLogitsProcessors(random, shape, 0, memory.args());
  LogitsProcessorsOnHost(memory.args());
  const AllocationCounter allocations;
  LogitsProcessorsOnHost(memory.args());
  EXPECT_EQ(allocations.count(), 0);
}

TEST(LogitsProcessorsTest, BothFormsRejectBadArguments) {
  BuilderMemory<LogitsProcessorsArgs> memory(
      [](ArrayCarver& carver) { return CarveLogitsProcessors(LogitsShape{}, carver); });
  const LogitsProcessorsArgs good = memory.args();
  EXPECT_EQ(CheckLogitsProcessors(good), absl::OkStatus());
  const auto expect_refused = [&](const std::string& message, auto spoil) {
    LogitsProcessorsArgs args = good;
    spoil(args);
    EXPECT_EQ(CheckLogitsProcessors(args), absl::InvalidArgumentError(message));
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(LaunchLogitsProcessors(args, nullptr), absl::InvalidArgumentError(message));
#endif
  };
  using Args = LogitsProcessorsArgs;
  expect_refused("dtype: expected float32, float16 or bfloat16, got float64",
                 [](Args& a) { a.dtype = DType::kFloat64; });
  expect_refused("num_rows: expected at least 0, got -1", [](Args& a) { a.num_rows = -1; });
  expect_refused("num_masks: expected at least 0, got -1", [](Args& a) { a.num_masks = -1; });
  expect_refused("slots.vocab_size: expected at least 1, got 0",
                 [](Args& a) { a.slots.vocab_size = 0; });
  expect_refused("allowed_tokens: expected an array, got none",
                 [](Args& a) { a.allowed_tokens = nullptr; });
  expect_refused("mask_stride: expected at least 4, got 3", [](Args& a) { a.mask_stride = 3; });
  expect_refused("logits: expected an array, got none", [](Args& a) { a.logits = nullptr; });
  expect_refused("sample_slot: expected an array, got none",
                 [](Args& a) { a.sample_slot = nullptr; });
  expect_refused("logits_stride: expected at least 100, got 99",
                 [](Args& a) { a.logits_stride = 99; });
  LogitsProcessorsArgs empty = {.slots = {.vocab_size = 1}};
  EXPECT_EQ(CheckLogitsProcessors(empty), absl::OkStatus());
}

}  // namespace
}  // namespace reprise
