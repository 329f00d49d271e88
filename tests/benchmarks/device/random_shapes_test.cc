#include "tests/benchmarks/device/random_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace reprise {
namespace {

using ::testing::AnyOf;

bool AllAre(const std::vector<int>& values, int value) {
  return std::all_of(values.begin(), values.end(), [&](int v) { return v == value; });
}

TEST(RandomShapesTest, EveryShapeIsAValidBatchOfItsKind) {
  const std::vector<RandomShape> shapes = RandomShapes(1, 4000);
  ASSERT_EQ(shapes.size(), 4000u);
  for (size_t i = 0; i < shapes.size(); ++i) {
    const RandomShape& shape = shapes[i];
    SCOPED_TRACE(shape.Name());
    EXPECT_EQ(static_cast<size_t>(shape.kind), i % kNumShapeKinds);
    ASSERT_FALSE(shape.lens.empty());
    ASSERT_EQ(shape.lens.size(), shape.query_lens.size());
    for (size_t r = 0; r < shape.lens.size(); ++r) {
      EXPECT_GE(shape.query_lens[r], 1);
      EXPECT_LE(shape.query_lens[r], shape.lens[r]);
    }
    EXPECT_LE(std::accumulate(shape.lens.begin(), shape.lens.end(), 0), 1 << 18);
    EXPECT_LE(std::accumulate(shape.query_lens.begin(), shape.query_lens.end(), 0), 1 << 14);
    EXPECT_EQ(shape.num_q_heads % shape.num_kv_heads, 0);
    EXPECT_LE(shape.num_q_heads / shape.num_kv_heads, 8);
    EXPECT_THAT(shape.head_dim, AnyOf(64, 128));
    EXPECT_THAT(shape.block_size, AnyOf(16, 32, 64, 128));
    if (shape.kind == ShapeKind::kDecode) {
      EXPECT_TRUE(AllAre(shape.query_lens, 1));
    }
    if (shape.kind == ShapeKind::kVerify) {
      EXPECT_TRUE(AllAre(shape.query_lens, shape.query_lens[0]));
      EXPECT_GE(shape.query_lens[0], 2);
      EXPECT_LE(shape.query_lens[0], 8);
    }
    if (shape.kind == ShapeKind::kMixed) {
      EXPECT_EQ(shape.query_lens[0], 1);
    }
  }
}

TEST(RandomShapesTest, ShapesVary) {
  std::set<int> groups, kv_heads, rows, lens;
  bool has_prompt_after_keys = false, has_whole_prompt = false;
  for (const RandomShape& shape : RandomShapes(2, 2000)) {
    groups.insert(shape.num_q_heads / shape.num_kv_heads);
    kv_heads.insert(shape.num_kv_heads);
    rows.insert(static_cast<int>(shape.lens.size()));
    lens.insert(shape.lens.begin(), shape.lens.end());
    if (shape.kind != ShapeKind::kPrefill) continue;
    (shape.lens[0] > shape.query_lens[0] ? has_prompt_after_keys : has_whole_prompt) = true;
  }
  EXPECT_EQ(groups.size(), 8u);
  EXPECT_EQ(kv_heads.size(), 7u);
  EXPECT_GT(rows.size(), 60u);
  EXPECT_GT(lens.size(), 1000u);
  EXPECT_TRUE(has_prompt_after_keys);
  EXPECT_TRUE(has_whole_prompt);
}

TEST(RandomShapesTest, TheSeedDecides) {
  const std::vector<RandomShape> shapes = RandomShapes(3, 8);
  const std::vector<RandomShape> same = RandomShapes(3, 12);
  for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(shapes[i].lens, same[i].lens) << i;
  EXPECT_NE(RandomShapes(4, 1)[0].Name(), shapes[0].Name());
}

TEST(RandomShapesTest, NamesSayWhatAShapeIs) {
  const RandomShape verify = {.kind = ShapeKind::kVerify,
                              .num_q_heads = 14,
                              .num_kv_heads = 2,
                              .head_dim = 64,
                              .block_size = 32,
                              .lens = {100, 20},
                              .query_lens = {3, 3}};
  EXPECT_EQ(verify.Name(), "verify 14/2 d64 p32 2 x 3 of 120");
  RandomShape other = verify;
  other.kind = ShapeKind::kPrefill;
  EXPECT_EQ(other.Name(), "prefill 14/2 d64 p32 2:6 of 120");
  other.kind = ShapeKind::kDecode;
  EXPECT_EQ(other.Name(), "decode 14/2 d64 p32 2 of 120");
}

TEST(RandomShapesTest, SummaryIsOfTheSortedRatios) {
  EXPECT_EQ(Summarize({}).count, 0);
  const RatioSummary one = Summarize({2.5});
  EXPECT_EQ(one.count, 1);
  EXPECT_EQ(one.least, 2.5);
  EXPECT_EQ(one.median, 2.5);
  EXPECT_EQ(one.nine_tenths, 2.5);
  EXPECT_EQ(one.most, 2.5);
  std::vector<double> ratios(20);
  std::iota(ratios.rbegin(), ratios.rend(), 1.0);
  const RatioSummary many = Summarize(ratios);
  EXPECT_EQ(many.count, 20);
  EXPECT_EQ(many.least, 1);
  EXPECT_EQ(many.median, 10.5);
  EXPECT_EQ(many.nine_tenths, 18);
  EXPECT_EQ(many.most, 20);
}

}  // namespace
}  // namespace reprise
