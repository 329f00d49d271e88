#include "reprise/runner/replay_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Four sequences with up to 8 tokens; 3 of the sequences are live, with 5 tokens.
constexpr GraphKey kKey = {.padded_num_seqs = 4, .padded_num_tokens = 8, .max_query_len = 8};
constexpr StepShape kShape = {.num_seqs = 3, .num_tokens = 5, .max_query_len = 3};

struct Named {
  std::string name;
  at::Tensor tensor;
  WatchedRows rows = WatchedRows::kAll;
};

absl::Status Pass(StepWatch& watch, const std::vector<Named>& tensors) {
  watch.Begin();
  for (const Named& named : tensors) watch.See(named.name, named.tensor, named.rows);
  return watch.End();
}

// Runs a graph that computes `replayed`, then the eager step that computes `eager`.
absl::Status Check(const std::vector<Named>& replayed, const std::vector<Named>& eager,
                   const GraphKey& key = kKey, const StepShape& shape = kShape) {
  ReplayChecker checker;
  StepWatch* kept = checker.WatchOf(key);
  for (int pass = 0; pass < 3; ++pass) {  // warm-up, capture, replay
    const absl::Status status = Pass(*kept, replayed);
    EXPECT_TRUE(status.ok()) << status;
  }
  ReplayComparison comparison = checker.Compare(key, shape);
  return Pass(comparison, eager);
}

std::string MessageOf(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  return std::string(status.message());
}

at::Tensor Numbers() { return at::arange(48, at::kFloat).view({8, 2, 3}); }

TEST(ReplayCheckTest, EqualTensorsPass) {
  EXPECT_EQ(Check({}, {}), absl::OkStatus());
  const at::Tensor nan = at::full({3}, std::numeric_limits<float>::quiet_NaN());
  const std::vector<Named> tensors = {{"a", Numbers()},
                                      {"b", nan},
                                      {"empty", at::zeros({0, 4})},
                                      {"scalar", at::ones({})},
                                      {"ids", at::arange(8)}};
  EXPECT_EQ(Check(tensors, tensors), absl::OkStatus());
}

TEST(ReplayCheckTest, ViewsAreComparedElementByElement) {
  const at::Tensor wide = at::arange(96, at::kFloat).view({8, 12});
  const at::Tensor view = wide.narrow(1, 3, 6);
  EXPECT_EQ(Check({{"a", view}}, {{"a", view.contiguous()}}), absl::OkStatus());
  at::Tensor other = wide.clone();
  other[2][4] = -1;
  EXPECT_THAT(MessageOf(Check({{"a", view}}, {{"a", other.narrow(1, 3, 6)}})),
              HasSubstr("'a' at [2, 1] -1 as in the eager run, got 28"));
}

TEST(ReplayCheckTest, TheFirstTensorAndElementThatDifferAreNamed) {
  at::Tensor replayed = Numbers();
  replayed[2][1][2] = 0.5;
  replayed[4][0][0] = 0.25;
  EXPECT_EQ(
      MessageOf(Check({{"same", Numbers()}, {"first", replayed}, {"second", replayed}},
                      {{"same", Numbers()}, {"first", Numbers()}, {"second", Numbers()}})),
      "the replay of 4 seqs x 8 (8 tokens), tokens is not the step that it was captured from: "
      "expected 'first' at [2, 1, 2] 17 as in the eager run, got 0.5");
}

// Changes each row in turn. Returns the rows whose change is detected.
std::vector<int> RowsCompared(int num_rows, WatchedRows rows, const GraphKey& key,
                              const StepShape& shape) {
  std::vector<int> compared;
  const at::Tensor eager = at::ones({num_rows, 2});
  for (int row = 0; row < num_rows; ++row) {
    at::Tensor replayed = eager.clone();
    replayed[row][1] = std::numeric_limits<float>::quiet_NaN();
    const absl::Status status = Check({{"a", replayed, rows}}, {{"a", eager, rows}}, key, shape);
    if (status.ok()) continue;
    EXPECT_THAT(MessageOf(status), HasSubstr("at [" + std::to_string(row) + ", 1] 1 as in"));
    compared.push_back(row);
  }
  return compared;
}

TEST(ReplayCheckTest, RowsOfPaddingAreNotCompared) {
  EXPECT_THAT(RowsCompared(8, WatchedRows::kTokens, kKey, kShape), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(RowsCompared(4, WatchedRows::kLogits, kKey, kShape), ElementsAre(0, 1, 2));
  EXPECT_THAT(RowsCompared(4, WatchedRows::kAll, kKey, kShape), ElementsAre(0, 1, 2, 3));
}

// Four rows with a token and a draft each: eight rows of logits, six of them live.
TEST(ReplayCheckTest, EarlierLogitsHaveSeparatePadding) {
  const GraphKey key = {.padded_num_seqs = 4,
                        .padded_num_tokens = 8,
                        .max_query_len = 2,
                        .num_earlier_logits = 4,
                        .num_drafts = 1};
  const StepShape shape = {
      .num_seqs = 3, .num_tokens = 6, .max_query_len = 2, .num_earlier_logits = 3, .num_drafts = 1};
  EXPECT_THAT(RowsCompared(8, WatchedRows::kLogits, key, shape), ElementsAre(0, 1, 2, 4, 5, 6));
  EXPECT_THAT(RowsCompared(8, WatchedRows::kTokens, key, shape), ElementsAre(0, 1, 2, 3, 4, 5));
}

TEST(ReplayCheckTest, RejectsWatchedTensorsWithTheWrongNumberOfRows) {
  const Named a = {"a", at::ones({7, 2}), WatchedRows::kTokens};
  const absl::Status status = Check({a}, {a});
  EXPECT_EQ(status.message(),
            "a watched tensor must have one row per token of the step, or be watched with "
            "WatchedRows::kAll: expected 8 rows, got 'a' [7, 2] float");
}

TEST(ReplayCheckTest, ComparesBitsInsteadOfValues) {
  EXPECT_THAT(MessageOf(Check({{"a", at::zeros({1})}}, {{"a", -at::zeros({1})}})),
              HasSubstr("'a' at [0] -0 as"));
}

TEST(ReplayCheckTest, ReportsMissingAndUnexpectedTensors) {
  const Named a = {"a", at::ones({2, 3})};
  const Named b = {"b", at::ones({2, 3})};
  EXPECT_THAT(MessageOf(Check({a}, {b})),
              AllOf(HasSubstr("expected 'b' [2, 3] float as"), HasSubstr("got 'a' [2, 3] float")));
  EXPECT_THAT(MessageOf(Check({a}, {{"a", at::ones({3, 2})}})), HasSubstr("'a' [3, 2] float"));
  EXPECT_THAT(MessageOf(Check({a}, {{"a", at::ones({2, 3}, at::kInt)}})),
              HasSubstr("'a' [2, 3] int"));
  EXPECT_THAT(MessageOf(Check({a}, {a, b})), HasSubstr("got no such tensor"));
  EXPECT_THAT(MessageOf(Check({a, b}, {a})), HasSubstr("expected no more tensors as in the eager"));
}

TEST(ReplayCheckTest, RejectsPassesThatWatchDifferentTensors) {
  const Named a = {"a", at::ones({2})};
  const Named b = {"b", at::ones({2})};
  for (const auto& second :
       std::vector<std::vector<Named>>{{b}, {}, {a, a}, {{"a", at::ones({3})}}}) {
    ReplayChecker checker;
    StepWatch* kept = checker.WatchOf(kKey);
    ASSERT_EQ(Pass(*kept, {a}), absl::OkStatus());
    EXPECT_THAT(MessageOf(Pass(*kept, second)), HasSubstr("must watch the same tensors each time"));
    EXPECT_EQ(Pass(*kept, {a}), absl::OkStatus());
  }
}

TEST(ReplayCheckTest, LargerKeysKeepTheMemoryOfSmallerKeysAlive) {
  GraphKey large = kKey;
  large.padded_num_tokens = large.max_query_len = 64;
  ReplayChecker checker;
  EXPECT_EQ(checker.WatchOf(kKey), checker.WatchOf(kKey));
  EXPECT_NE(checker.WatchOf(kKey), checker.WatchOf(large));
  const auto tensors = [](int num_tokens, float value) {
    return std::vector<Named>{{"a", at::full({num_tokens, 2}, value)}};
  };
  ASSERT_EQ(Pass(*checker.WatchOf(kKey), tensors(8, 1)), absl::OkStatus());
  ASSERT_EQ(Pass(*checker.WatchOf(large), tensors(64, 2)), absl::OkStatus());
  // The smaller key's graph still uses the memory that it was captured with.
  ASSERT_EQ(Pass(*checker.WatchOf(kKey), tensors(8, 3)), absl::OkStatus());
  ReplayComparison same = checker.Compare(kKey, kShape);
  EXPECT_EQ(Pass(same, tensors(8, 3)), absl::OkStatus());
  ReplayComparison other = checker.Compare(kKey, kShape);
  EXPECT_THAT(MessageOf(Pass(other, tensors(8, 1))), HasSubstr("'a' at [0, 0] 1 as"));
}

}  // namespace
}  // namespace reprise
