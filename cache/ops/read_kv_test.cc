#include "reprise/cache/ops/read_kv.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/ops/write_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/testing/read_kv_case.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// 4 blocks of 3 tokens, one head of 2 dims. Element (slot, dim) is slot * 10 + dim in k, and 100
// more in v.
KvCache SmallCache() {
  KvCache cache = *KvCache::Create(
      *KvLayout::Create(
          {.num_blocks = 4, .block_size = 3, .num_kv_heads = 1, .head_dim_qk = 2, .head_dim_v = 2}),
      at::kCPU);
  for (int slot = 0; slot < 12; ++slot) {
    for (int dim = 0; dim < 2; ++dim) {
      cache.tensors(0)[0][slot / 3][slot % 3][0][dim] = slot * 10 + dim;
      cache.tensors(0)[1][slot / 3][slot % 3][0][dim] = slot * 10 + dim + 100;
    }
  }
  return cache;
}

at::Tensor Ints(const std::vector<int>& values) { return at::tensor(values, at::kInt); }

std::vector<float> Column(const at::Tensor& k) {
  std::vector<float> column;
  for (int64_t i = 0; i < k.size(0); ++i) column.push_back(k[i][0][1].item<float>());
  return column;
}

TEST(ReadKvTest, GathersSlotsInOrder) {
  KvCache cache = SmallCache();
  const at::Tensor k = at::full({5, 1, 2}, 7.0f), v = at::full({4, 1, 2}, 7.0f);
  ASSERT_TRUE(ReadKv(cache.layer(0), at::tensor({11, -1, 0, 12}, at::kLong), k, v).ok());
  EXPECT_THAT(Column(k), testing::ElementsAre(111, 0, 1, 0, 7));  // the last row is past num_tokens
  EXPECT_THAT(Column(v), testing::ElementsAre(211, 0, 101, 0));
}

TEST(ReadKvTest, GathersRowsOfATable) {
  KvCache cache = SmallCache();
  const at::Tensor k = at::full({8, 1, 2}, 7.0f), v = at::full({8, 1, 2}, 7.0f);
  // Row 0: 4 keys of table row 1. Row 1: no keys. Row 2: keys 2 and 3 of table row 0, one of them
  // in an invalid block.
  const KvRows rows = {.block_table = Ints({3, 99, 2, 1}).view({2, 2}),
                       .start_loc = Ints({0, 4, 4, 6}),
                       .table_row = Ints({1, 0, 0}),
                       .key_start = Ints({0, 0, 2})};
  ASSERT_TRUE(ReadKvRows(cache.layer(0), rows, k, v).ok());
  EXPECT_THAT(Column(k), testing::ElementsAre(61, 71, 81, 31, 111, 0, 7, 7));
}

TEST(ReadKvTest, ReadReturnsWrittenValuesBitwiseIdentical) {
  std::mt19937 random(5);
  for (KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked}) {
    KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = 5,
                                                        .block_size = 4,
                                                        .num_kv_heads = 3,
                                                        .head_dim_qk = 16,
                                                        .head_dim_v = 16,
                                                        .dtype = DType::kBFloat16,
                                                        .form = form}),
                                     at::kCPU);
    ASSERT_TRUE(cache.Fill(kNan).ok());
    const at::Tensor k = at::randn({3, 3, 16}).to(at::kBFloat16), v = k.neg();
    const at::Tensor slots = at::tensor({17, 3, 8}, at::kLong);
    ASSERT_TRUE(WriteKv(cache.layer(0), k, v, slots).ok());
    const at::Tensor got_k = at::empty_like(k), got_v = at::empty_like(v);
    ASSERT_TRUE(ReadKv(cache.layer(0), slots, got_k, got_v).ok());
    EXPECT_TRUE(got_k.equal(k));
    EXPECT_TRUE(got_v.equal(v));
  }
}

TEST(ReadKvTest, RandomCasesMatchTheReference) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(RandomReadDifference(random, at::kCPU), "") << "case " << i;
  }
}

TEST(ReadKvTest, RejectsInvalidArguments) {
  KvCache cache = SmallCache();
  const at::Tensor good = at::zeros({2, 1, 2}), slots = at::tensor({0, 1}, at::kLong);
  const KvRows rows = {.block_table = Ints({1, 2}).view({1, 2}), .start_loc = Ints({0, 2})};
  const auto message = [](const absl::Status& status,
                          absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  const KvLayer kv = cache.layer(0);
  ASSERT_TRUE(ReadKv(kv, slots, good, good).ok());
  ASSERT_TRUE(ReadKvRows(kv, rows, good, good).ok());
  EXPECT_THAT(message(ReadKv(kv, slots, at::zeros({1, 1, 2}), good)),
              HasSubstr("k must be [>= num_tokens, num_kv_heads, head_dim_qk]"));
  EXPECT_THAT(message(ReadKv(kv, slots, good, at::zeros({2, 1, 3}))), HasSubstr("v must be"));
  EXPECT_THAT(message(ReadKv(kv, slots, good, at::Tensor())), HasSubstr("v must be"));
  EXPECT_THAT(message(ReadKv(kv, slots.to(at::kInt), good, good)), HasSubstr("slot_mapping"));
  EXPECT_THAT(message(ReadKv(kv, slots, good.to(at::kInt), good.to(at::kInt)),
                      absl::StatusCode::kUnimplemented),
              HasSubstr("expected float32, float16 or bfloat16 or float64, got int32"));
  KvLayer bad = kv;
  bad.block_size = 0;
  EXPECT_THAT(message(ReadKv(bad, slots, good, good)),
              HasSubstr("kv.block_size: expected at least 1, got 0"));
  bad = kv;
  const float one = 1;
  bad.k_scale = {.data = &one, .row_stride = 1};
  EXPECT_THAT(message(ReadKv(bad, slots, good, good)),
              HasSubstr("kv.k_scale.row_stride: expected 0, got 1"));
  KvRows wrong = rows;
  wrong.start_loc = Ints({});
  EXPECT_THAT(message(ReadKvRows(kv, wrong, good, good)), HasSubstr("start_loc"));
  wrong = rows;
  wrong.table_row = Ints({0, 0});
  EXPECT_THAT(message(ReadKvRows(kv, wrong, good, good)),
              HasSubstr("table_row must be [num_rows] int32: expected [1], got [2]"));
  wrong = rows;
  wrong.block_table = Ints({1, 2});
  EXPECT_THAT(message(ReadKvRows(kv, wrong, good, good)), HasSubstr("block_table must be"));
}

}  // namespace
}  // namespace reprise
