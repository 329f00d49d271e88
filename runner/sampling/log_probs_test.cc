#include "reprise/runner/sampling/log_probs.h"

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
#include "reprise/runner/sampling/raw_logits.h"
#include "reprise/runner/testing/logits_cases.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::IsNan;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Result {
  float token_log_prob = 7;
  int32_t token_rank = 7;
  std::vector<int32_t> top_tokens;
  std::vector<float> top_log_probs;
};

// Returns the log-probabilities of one float32 row in slot 0, with `num_log_probs` of `max_top`
// columns.
Result LogProbsOf(std::vector<float> logits, int32_t token, int num_log_probs, int max_top) {
  Result result;
  result.top_tokens.assign(max_top, 7);
  result.top_log_probs.assign(max_top, 7);
  const int32_t slot = 0;
  const LogitsParams params = {.num_log_probs = num_log_probs};
  const LogProbsArgs args = {.logits = logits.data(),
                             .num_rows = 1,
                             .vocab_size = static_cast<int>(logits.size()),
                             .sample_slot = &slot,
                             .params = &params,
                             .tokens = &token,
                             .num_slots = 1,
                             .max_top = max_top,
                             .out = {.token_log_probs = &result.token_log_prob,
                                     .token_ranks = &result.token_rank,
                                     .top_tokens = result.top_tokens.data(),
                                     .top_log_probs = result.top_log_probs.data()}};
  EXPECT_EQ(CheckLogProbs(args), absl::OkStatus());
  LogProbsOnHost(args);
  return result;
}

TEST(LogProbsTest, AreTheLogarithmsOfProbabilities) {
  // Probabilities 1/8, 1/2, 1/8, 1/4.
  const float log2 = std::log(2.0f);
  const Result result = LogProbsOf({-3 * log2, -log2, -3 * log2, -2 * log2}, 3, 4, 4);
  EXPECT_NEAR(result.token_log_prob, -2 * log2, 1e-6);
  EXPECT_EQ(result.token_rank, 2);
  EXPECT_THAT(result.top_tokens, ElementsAre(1, 3, 0, 2));  // the lower id first among equals
  EXPECT_THAT(result.top_log_probs,
              ElementsAre(FloatNear(-log2, 1e-6), FloatNear(-2 * log2, 1e-6),
                          FloatNear(-3 * log2, 1e-6), FloatNear(-3 * log2, 1e-6)));
}

TEST(LogProbsTest, SingleTokenHasLogProbZero) {
  const Result result = LogProbsOf({-123.5f}, 0, 1, 1);
  EXPECT_EQ(result.token_log_prob, 0);
  EXPECT_EQ(result.token_rank, 1);
  EXPECT_THAT(result.top_log_probs, ElementsAre(0));
}

TEST(LogProbsTest, WritesOnlyTheRequestedTopTokens) {
  EXPECT_THAT(LogProbsOf({1, 3, 2}, 0, 2, 4).top_tokens, ElementsAre(1, 2, 7, 7));
  EXPECT_THAT(LogProbsOf({1, 3, 2}, 0, 0, 4).top_tokens, Each(7));
  EXPECT_THAT(LogProbsOf({1, 3, 2}, 0, 20, 2).top_tokens, ElementsAre(1, 2));
  const Result longer = LogProbsOf({1, 3, 2}, 0, 4, 4);  // longer than the vocabulary
  EXPECT_THAT(longer.top_tokens, ElementsAre(1, 2, 0, -1));
  EXPECT_THAT(longer.top_log_probs[3], IsNan());
  const Result none = LogProbsOf({1, 3, 2}, 0, -1, 4);
  EXPECT_EQ(none.token_log_prob, 7);
  EXPECT_EQ(none.token_rank, 7);
  EXPECT_THAT(none.top_tokens, Each(7));
}

TEST(LogProbsTest, NanCountsAsAbsentAndMinusInfinityAsImpossible) {
  const Result result = LogProbsOf({kNan, 0, -kInfinity, 0, kNan}, 1, 4, 4);
  EXPECT_NEAR(result.token_log_prob, -std::log(2.0), 1e-6);
  EXPECT_EQ(result.token_rank, 1);
  EXPECT_THAT(result.top_tokens, ElementsAre(1, 3, 2, -1));
  EXPECT_EQ(result.top_log_probs[2], -kInfinity);
  EXPECT_THAT(result.top_log_probs[3], IsNan());
  const Result of_nan = LogProbsOf({kNan, 0, -kInfinity, 0, kNan}, 0, 1, 1);
  EXPECT_THAT(of_nan.token_log_prob, IsNan());
  EXPECT_EQ(of_nan.token_rank, 0);
  EXPECT_THAT(of_nan.top_tokens, ElementsAre(1));
  const Result impossible = LogProbsOf({kNan, 0, -kInfinity, 0, kNan}, 2, 0, 1);
  EXPECT_EQ(impossible.token_log_prob, -kInfinity);
  EXPECT_EQ(impossible.token_rank, 3);
}

TEST(LogProbsTest, PlusInfinityTakesAllProbability) {
  const Result result = LogProbsOf({1, kInfinity, 3e38f, kInfinity}, 1, 3, 3);
  EXPECT_NEAR(result.token_log_prob, -std::log(2.0), 1e-6);
  EXPECT_THAT(result.top_tokens, ElementsAre(1, 3, 2));
  EXPECT_EQ(result.top_log_probs[2], -kInfinity);
}

TEST(LogProbsTest, IsNanForRowsWithoutAChoiceAndTokensOutsideTheVocabulary) {
  for (const std::vector<float>& row :
       {std::vector<float>{kNan, kNan}, {-kInfinity, -kInfinity}, {kNan, -kInfinity}}) {
    const Result result = LogProbsOf(row, 1, 2, 2);
    EXPECT_THAT(result.token_log_prob, IsNan());
    EXPECT_EQ(result.token_rank, 0);
    EXPECT_THAT(result.top_tokens, Each(-1));
    EXPECT_THAT(result.top_log_probs, Each(IsNan()));
  }
  for (int32_t token : {-1, 2, 1 << 30, std::numeric_limits<int32_t>::min()}) {
    const Result result = LogProbsOf({1, 2}, token, 1, 1);
    EXPECT_THAT(result.token_log_prob, IsNan());
    EXPECT_EQ(result.token_rank, 0);
    EXPECT_THAT(result.top_tokens, ElementsAre(1));
  }
}

// log_softmax in float64, and the order of the tokens.
struct Expected {
  std::vector<double> log_probs;
  std::vector<int32_t> order;
};

Expected ByDefinition(const LogProbsArgs& args, int row) {
  Expected expected;
  double max = -kInfinity;
  const auto logit = [&](int v) {
    return LoadElement<double>(args.logits, args.dtype, row * args.logits_stride + v);
  };
  for (int v = 0; v < args.vocab_size; ++v) {
    max = std::max(max, logit(v));
    expected.order.push_back(v);
  }
  double total = 0;
  for (int v = 0; v < args.vocab_size; ++v) total += std::exp(logit(v) - max);
  for (int v = 0; v < args.vocab_size; ++v) {
    expected.log_probs.push_back(logit(v) - max - std::log(total));
  }
  std::stable_sort(expected.order.begin(), expected.order.end(),
                   [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  return expected;
}

TEST(LogProbsTest, MatchesFloat64ForManyShapes) {
  double largest_error = 0;
  int num_rows = 0;
  for (unsigned seed = 0; seed < 80; ++seed) {
    std::mt19937 random(seed);
    LogitsShape shape = DrawLogitsShape(random);
    if (seed % 20 == 19) shape.vocab_size = 128256;
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << shape);
    BuilderMemory<LogProbsArgs> memory(
        [&](ArrayCarver& carver) { return CarveLogProbs(shape, carver); });
    DrawLogProbs(random, shape, 0, memory.args());
    const LogProbsArgs& args = memory.args();
    LogProbsOnHost(args);
    for (int row = 0; row < shape.num_rows; ++row) {
      const int32_t slot = args.sample_slot[row];
      if (slot < 0 || args.params[slot].num_log_probs < 0) continue;
      ++num_rows;
      const Expected expected = ByDefinition(args, row);
      const int32_t token = shape.has_row_tokens ? args.row_tokens[row] : args.tokens[slot];
      const auto check = [&](int32_t v, float got) {
        largest_error = std::max(largest_error, std::abs(got - expected.log_probs[v]));
      };
      check(token, args.out.token_log_probs[row]);
      const auto larger =
          std::count_if(expected.log_probs.begin(), expected.log_probs.end(),
                        [&](double log_prob) { return log_prob > expected.log_probs[token]; });
      EXPECT_EQ(args.out.token_ranks[row], larger + 1);
      const int num_top = std::min(args.params[slot].num_log_probs, args.max_top);
      for (int i = 0; i < std::min(num_top, shape.vocab_size); ++i) {
        const int64_t at = row * args.max_top + i;
        EXPECT_EQ(args.out.top_tokens[at], expected.order[i]);
        check(expected.order[i], args.out.top_log_probs[at]);
      }
    }
  }
  EXPECT_GT(num_rows, 100);
  // The bound is above half a unit in the last place of a distance of 32 to 64, which is 1.9e-6.
  EXPECT_LT(largest_error, 3e-6);
}

TEST(LogProbsTest, RowTokensReplaceTheTokenOfTheSlot) {
  const std::vector<float> logits = {0, 0, 0, 0, /**/ 1, 2, 3, 4, /**/ 4, 3, 2, 1};
  const int32_t sample_slot[] = {0, -1, 0};
  const int32_t row_tokens[] = {2, 3, 0};
  LogitsParams params = {.num_log_probs = 0};
  float log_probs[] = {7, 7, 7};
  LogProbsArgs args = {.logits = logits.data(),
                       .logits_stride = 4,
                       .num_rows = 3,
                       .vocab_size = 4,
                       .sample_slot = sample_slot,
                       .params = &params,
                       .row_tokens = row_tokens,  // without `tokens`
                       .num_slots = 1,
                       .out = {.token_log_probs = log_probs}};
  LogProbsOnHost(args);
  EXPECT_THAT(log_probs,
              ElementsAre(FloatNear(-std::log(4.0f), 1e-6f), 7, FloatNear(-0.4401897f, 1e-6f)));

  // The slot requests log-probabilities only of chosen tokens, or only of known tokens.
  std::fill(std::begin(log_probs), std::end(log_probs), 7.0f);
  args.of_known_tokens = true;
  LogProbsOnHost(args);
  EXPECT_THAT(log_probs, ElementsAre(7, 7, 7));
  params = {.num_known_log_probs = 0};
  LogProbsOnHost(args);
  EXPECT_THAT(log_probs,
              ElementsAre(FloatNear(-std::log(4.0f), 1e-6f), 7, FloatNear(-0.4401897f, 1e-6f)));
}

TEST(LogProbsTest, AllocateNothingInSteadyState) {
  std::mt19937 random(5);
  const LogitsShape shape = {.num_rows = 8, .num_slots = 8, .vocab_size = 500};
  BuilderMemory<LogProbsArgs> memory(
      [&](ArrayCarver& carver) { return CarveLogProbs(shape, carver); });
  DrawLogProbs(random, shape, 0, memory.args());
  LogProbsOnHost(memory.args());
  const AllocationCounter allocations;
  LogProbsOnHost(memory.args());
  EXPECT_EQ(allocations.count(), 0);
}

TEST(LogProbsTest, BothFormsRejectBadArguments) {
  BuilderMemory<LogProbsArgs> memory(
      [](ArrayCarver& carver) { return CarveLogProbs(LogitsShape{}, carver); });
  const LogProbsArgs good = memory.args();
  EXPECT_EQ(CheckLogProbs(good), absl::OkStatus());
  const auto expect_refused = [&](const std::string& message, auto spoil) {
    LogProbsArgs args = good;
    spoil(args);
    EXPECT_EQ(CheckLogProbs(args), absl::InvalidArgumentError(message));
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(LaunchLogProbs(args, nullptr), absl::InvalidArgumentError(message));
#endif
  };
  using Args = LogProbsArgs;
  expect_refused("dtype: expected float32, float16 or bfloat16, got float8_e5m2",
                 [](Args& a) { a.dtype = DType::kFp8E5M2; });
  expect_refused("num_rows: expected at least 0, got -1", [](Args& a) { a.num_rows = -1; });
  expect_refused("vocab_size: expected at least 1, got 0", [](Args& a) { a.vocab_size = 0; });
  expect_refused("num_slots: expected at least 0, got -1", [](Args& a) { a.num_slots = -1; });
  expect_refused("max_top: expected 0 to 20, got 21", [](Args& a) { a.max_top = 21; });
  expect_refused("logits: expected an array, got none", [](Args& a) { a.logits = nullptr; });
  expect_refused("sample_slot: expected an array, got none",
                 [](Args& a) { a.sample_slot = nullptr; });
  expect_refused("params: expected an array, got none", [](Args& a) { a.params = nullptr; });
  expect_refused("tokens: expected an array, got none", [](Args& a) { a.tokens = nullptr; });
  LogProbsArgs of_rows = good;
  of_rows.tokens = nullptr;
  of_rows.row_tokens = good.tokens;
  EXPECT_EQ(CheckLogProbs(of_rows), absl::OkStatus());
  expect_refused("out.token_log_probs: expected an array, got none",
                 [](Args& a) { a.out.token_log_probs = nullptr; });
  expect_refused("out.top_tokens: expected an array, got none",
                 [](Args& a) { a.out.top_tokens = nullptr; });
  expect_refused("out.top_log_probs: expected an array, got none",
                 [](Args& a) { a.out.top_log_probs = nullptr; });
  expect_refused("logits_stride: expected at least 100, got 99",
                 [](Args& a) { a.logits_stride = 99; });
  EXPECT_EQ(CheckLogProbs({.vocab_size = 1}), absl::OkStatus());
}

TEST(RawLogitsTest, CopiesOnlyTheRequestedRowsBitwise) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    const LogitsShape shape = DrawLogitsShape(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << shape);
    BuilderMemory<RawLogitsArgs> memory(
        [&](ArrayCarver& carver) { return CarveRawLogits(shape, carver); });
    DrawRawLogits(random, shape, 0.2, memory.args());
    const RawLogitsArgs& args = memory.args();
    std::vector<std::byte> expected(memory.base(), memory.base() + memory.num_bytes());
    const RawLogitsArgs expected_args = memory.ArgsAt(expected.data());
    const int size = SizeOf(args.dtype);
    for (int row = 0; row < shape.num_rows; ++row) {
      const int32_t slot = args.sample_slot[row];
      if (slot < 0 || slot >= args.num_slots || args.params[slot].num_log_probs < 0) continue;
      std::copy_n(static_cast<const std::byte*>(args.logits) + row * args.logits_stride * size,
                  args.vocab_size * size,
                  static_cast<std::byte*>(expected_args.raw) + row * args.raw_stride * size);
    }
    ASSERT_EQ(CheckKeepRawLogits(args), absl::OkStatus());
    KeepRawLogitsOnHost(args);
    ASSERT_EQ(memory.FirstDifference(expected.data()), "");
  }
}

TEST(RawLogitsTest, BothFormsRejectBadArguments) {
  BuilderMemory<RawLogitsArgs> memory(
      [](ArrayCarver& carver) { return CarveRawLogits(LogitsShape{}, carver); });
  const RawLogitsArgs good = memory.args();
  EXPECT_EQ(CheckKeepRawLogits(good), absl::OkStatus());
  const auto expect_refused = [&](const std::string& message, auto spoil) {
    RawLogitsArgs args = good;
    spoil(args);
    EXPECT_EQ(CheckKeepRawLogits(args), absl::InvalidArgumentError(message));
#ifdef REPRISE_WITH_CUDA
    EXPECT_EQ(LaunchKeepRawLogits(args, nullptr), absl::InvalidArgumentError(message));
#endif
  };
  using Args = RawLogitsArgs;
  expect_refused("dtype: expected float32, float16 or bfloat16, got float64",
                 [](Args& a) { a.dtype = DType::kFloat64; });
  expect_refused("num_rows: expected at least 0, got -1", [](Args& a) { a.num_rows = -1; });
  expect_refused("raw: expected an array, got none", [](Args& a) { a.raw = nullptr; });
  expect_refused("raw_stride: expected at least 100, got 0", [](Args& a) { a.raw_stride = 0; });
  expect_refused("params: expected an array, got none", [](Args& a) { a.params = nullptr; });
}

}  // namespace
}  // namespace reprise
