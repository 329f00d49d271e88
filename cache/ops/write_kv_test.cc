#include "reprise/cache/ops/write_kv.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/ops/read_kv.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/testing/write_kv_case.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// 4 blocks of 3 tokens, one head of 2 dims.
KvCache SmallCache(DType dtype = DType::kFloat32) {
  KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = 4,
                                                      .block_size = 3,
                                                      .num_kv_heads = 1,
                                                      .head_dim_qk = 2,
                                                      .head_dim_v = 2,
                                                      .dtype = dtype}),
                                   at::kCPU);
  EXPECT_TRUE(cache.Fill(kNan).ok());
  return cache;
}

at::Tensor Slots(std::vector<int64_t> slots) { return at::tensor(slots, at::kLong); }

// Returns values of shape [n, 1, 2] from a list.
at::Tensor Values(std::vector<float> values) {
  return at::tensor(values, at::kFloat).view({-1, 1, 2});
}

// Returns the elements of `tensor` of layer 0 that are not NaN, as {index, value}. In a small
// cache, the index is slot * 2 + dim.
std::vector<std::pair<int, float>> Written(const KvCache& cache, int tensor) {
  std::vector<std::pair<int, float>> written;
  const at::Tensor flat = cache.tensors(0)[tensor].to(at::kFloat).reshape(-1);
  for (int i = 0; i < flat.numel(); ++i) {
    if (!std::isnan(flat[i].item<float>())) written.emplace_back(i, flat[i].item<float>());
  }
  return written;
}

TEST(WriteKvTest, WritesEachTokenToItsSlot) {
  KvCache cache = SmallCache();
  const at::Tensor k = Values({1, 2, 3, 4, 5, 6}), v = Values({10, 20, 30, 40, 50, 60});
  ASSERT_TRUE(WriteKv(cache.layer(0), k, v, Slots({7, -1, 3})).ok());
  EXPECT_THAT(Written(cache, 0), testing::ElementsAre(std::pair(6, 5), std::pair(7, 6),
                                                      std::pair(14, 1), std::pair(15, 2)));
  EXPECT_THAT(Written(cache, 1), testing::ElementsAre(std::pair(6, 50), std::pair(7, 60),
                                                      std::pair(14, 10), std::pair(15, 20)));
}

TEST(WriteKvTest, LengthOfSlotMappingIsTheNumberOfTokens) {
  KvCache cache = SmallCache();
  ASSERT_TRUE(
      WriteKv(cache.layer(0), Values({1, 2, 3, 4}), Values({1, 2, 3, 4, 5, 6}), Slots({3})).ok());
  EXPECT_THAT(Written(cache, 0), testing::ElementsAre(std::pair(6, 1), std::pair(7, 2)));
  ASSERT_TRUE(WriteKv(cache.layer(0), Values({9, 9}), Values({9, 9}), Slots({})).ok());
  EXPECT_EQ(Written(cache, 0).size(), 2);
}

TEST(WriteKvTest, RejectsSlotsOutsideTheCacheWithoutWriting) {
  KvCache cache = SmallCache();
  const at::Tensor values = Values({1, 2, 3, 4});
  for (int64_t slot : {int64_t{12}, int64_t{-2}, std::numeric_limits<int64_t>::max(),
                       std::numeric_limits<int64_t>::min()}) {
    absl::Status status = WriteKv(cache.layer(0), values, values, Slots({3, slot}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("expected -1 to 11 for token 1, got ", slot)));
  }
  EXPECT_THAT(Written(cache, 0), testing::IsEmpty());
}

TEST(WriteKvTest, Fp8DividesByTheScaleAndSaturates) {
  for (const auto& [dtype, largest] :
       {std::pair(DType::kFp8E4M3, 448.0f), std::pair(DType::kFp8E5M2, 57344.0f)}) {
    SCOPED_TRACE(testing::Message() << dtype);
    KvCache cache = SmallCache(dtype);
    cache.SetScales(0, {.value = 2.0f}, {});
    ASSERT_TRUE(WriteKv(cache.layer(0), Values({6, -1e30f, kInf, -0.0f}),
                        Values({6, -1e30f, kInf, -0.0f}), Slots({0, 1}))
                    .ok());
    EXPECT_THAT(Written(cache, 0), testing::ElementsAre(std::pair(0, 3), std::pair(1, -largest),
                                                        std::pair(2, largest), std::pair(3, 0)));
    EXPECT_EQ(Written(cache, 1)[0], std::pair(0, 6.0f));  // the scale of v
  }
}

TEST(WriteKvTest, Fp8KeysAreCopiedRegardlessOfTheScales) {
  for (const auto& [dtype, other] :
       {std::pair(DType::kFp8E4M3, DType::kFp8E5M2), std::pair(DType::kFp8E5M2, DType::kFp8E4M3)}) {
    SCOPED_TRACE(testing::Message() << dtype);
    KvCache cache = SmallCache(dtype);
    cache.SetScales(0, {.value = 2.0f}, {.value = 8.0f});
    const at::ScalarType type = ToScalarType(dtype);
    const at::Tensor k = Values({6, -3, 1.5f, 0.5f}).to(type), v = Values({1, 2, 3, 4}).to(type);
    ASSERT_TRUE(WriteKv(cache.layer(0), k, v, Slots({5, 0})).ok());
    EXPECT_THAT(Written(cache, 0), testing::ElementsAre(std::pair(0, 1.5f), std::pair(1, 0.5f),
                                                        std::pair(10, 6.0f), std::pair(11, -3.0f)));
    EXPECT_THAT(Written(cache, 1), testing::ElementsAre(std::pair(0, 3.0f), std::pair(1, 4.0f),
                                                        std::pair(10, 1.0f), std::pair(11, 2.0f)));
    const at::Tensor wrong = k.to(at::kFloat).to(ToScalarType(other));
    const absl::Status status = WriteKv(cache.layer(0), wrong, wrong, Slots({5, 0}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("k and v must have the fp8 type of the cache"));
    EXPECT_EQ(WriteKv(SmallCache().layer(0), k, v, Slots({5, 0})).code(),
              absl::StatusCode::kUnimplemented);
  }
}

TEST(WriteKvTest, CacheWithoutBlocksAcceptsNoTokens) {
  KvLayer kv = SmallCache().layer(0);
  kv.num_blocks = 0;
  kv.k.data = kv.v.data = nullptr;
  const at::Tensor keys = Values({1, 2, 3, 4});
  EXPECT_TRUE(WriteKv(kv, keys, keys, Slots({-1, -1})).ok());
  EXPECT_EQ(WriteKv(kv, keys, keys, Slots({-1, 0})).code(), absl::StatusCode::kInvalidArgument);
}

TEST(WriteKvTest, LatentCacheWithoutBlocksAcceptsNoTokens) {
  const KvView view = {.dim_chunk = 4};
  const KvLayer whole = {
      .k = view, .v = view, .block_size = 2, .num_kv_heads = 1, .head_dim_qk = 6, .head_dim_v = 4};
  KvLayer parts = whole;
  parts.rope_dim = 2;
  parts.rope = {.dim_chunk = 2};
  parts.dtype = DType::kFp8E4M3;
  parts.rope_dtype = DType::kFloat32;
  const at::Tensor latent = at::ones({2, 4}), rope = at::ones({2, 2});
  EXPECT_TRUE(WriteLatentKv(parts, latent, rope, Slots({-1, -1})).ok());
  EXPECT_EQ(WriteLatentKv(parts, latent, rope, Slots({-1, 0})).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(WriteKv(whole, at::ones({2, 1, 6}), at::Tensor(), Slots({-1, -1})).ok());
}

TEST(WriteKvTest, NanStaysNan) {
  for (DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    KvCache cache = SmallCache(dtype);
    ASSERT_TRUE(cache.Fill(1).ok());
    ASSERT_TRUE(WriteKv(cache.layer(0), Values({kNan, 2}), Values({2, kNan}), Slots({0})).ok());
    EXPECT_TRUE(std::isnan(cache.tensors(0)[0].reshape(-1)[0].to(at::kFloat).item<float>()));
  }
}

TEST(WriteKvTest, ScalesMayDifferByHead) {
  KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = 1,
                                                      .block_size = 1,
                                                      .num_kv_heads = 3,
                                                      .head_dim_qk = 1,
                                                      .head_dim_v = 1,
                                                      .dtype = DType::kFp8E4M3}),
                                   at::kCPU);
  const float scales[] = {1.0f, 99.0f, 2.0f, 99.0f, 4.0f};
  cache.SetScales(0, {.data = scales, .head_stride = 2}, {.data = &scales[4]});
  const at::Tensor values = at::full({1, 3, 1}, 8.0f);
  ASSERT_TRUE(WriteKv(cache.layer(0), values, values, Slots({0})).ok());
  const at::Tensor k = cache.tensors(0)[0].to(at::kFloat), v = cache.tensors(0)[1].to(at::kFloat);
  EXPECT_TRUE(k.equal(at::tensor({8.0f, 4.0f, 2.0f}).view({1, 1, 3, 1}))) << k;
  EXPECT_TRUE(v.equal(at::full({1, 1, 3, 1}, 2.0f))) << v;
}

TEST(WriteKvTest, SlotMappingMayHaveTwoDimensions) {
  KvCache cache = SmallCache();
  const at::Tensor values = Values({1, 2, 3, 4, 5, 6, 7, 8});
  ASSERT_TRUE(WriteKv(cache.layer(0), values, values, Slots({0, -1, -1, 2}).view({2, 2})).ok());
  EXPECT_THAT(Written(cache, 0), testing::ElementsAre(std::pair(0, 1), std::pair(1, 2),
                                                      std::pair(4, 7), std::pair(5, 8)));
}

// 2 blocks of 2 tokens, a latent of 3 and a rope part of 2.
KvCache LatentCache(DType dtype) {
  KvCache cache = *KvCache::Create(*KvLayout::Create({.num_blocks = 2,
                                                      .block_size = 2,
                                                      .num_kv_heads = 1,
                                                      .head_dim_qk = 5,
                                                      .head_dim_v = 3,
                                                      .dtype = dtype,
                                                      .form = KvForm::kLatent}),
                                   at::kCPU);
  EXPECT_TRUE(cache.Fill(kNan).ok());
  return cache;
}

TEST(WriteKvTest, ALatentIsWrittenAsK) {
  KvCache cache = LatentCache(DType::kFloat32);
  const at::Tensor k = at::tensor({1.0f, 2.0f, 3.0f, 4.0f, 5.0f}).view({1, 1, 5});
  ASSERT_TRUE(WriteKv(cache.layer(0), k, at::Tensor(), Slots({2})).ok());
  const at::Tensor written = cache.tensors(0)[0];
  EXPECT_TRUE(written[1][0][0].equal(k[0][0])) << written;
  EXPECT_EQ(Written(cache, 0).size(), 5);
  absl::Status status = WriteKv(cache.layer(0), k, k, Slots({2}));
  EXPECT_THAT(std::string(status.message()), HasSubstr("v must be undefined for a latent cache"));
}

TEST(WriteKvTest, ALatentIsWrittenFromItsTwoParts) {
  KvCache cache = LatentCache(DType::kFp8E4M3);
  cache.SetScales(0, {.value = 2.0f}, {.value = 99.0f});
  const at::Tensor latent = at::tensor({2.0f, 4.0f, 6.0f, 8.0f, 10.0f, 12.0f}).view({2, 3});
  const at::Tensor rope = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2});
  ASSERT_TRUE(WriteLatentKv(cache.layer(0), latent, rope, Slots({3, 1})).ok());
  const at::Tensor written = cache.tensors(0)[0].to(at::kFloat);
  EXPECT_TRUE(written[1][1][0].equal(at::tensor({1.0f, 2.0f, 3.0f, 0.5f, 1.0f}))) << written;
  EXPECT_TRUE(written[0][1][0].equal(at::tensor({4.0f, 5.0f, 6.0f, 1.5f, 2.0f}))) << written;
  EXPECT_EQ(Written(cache, 0).size(), 10);

  const auto message = [&](const KvLayer& kv, const at::Tensor& a, const at::Tensor& b) {
    absl::Status status = WriteLatentKv(kv, a, b, Slots({0}));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(SmallCache().layer(0), latent, rope), HasSubstr("must be a latent cache"));
  EXPECT_THAT(message(cache.layer(0), rope, rope), HasSubstr("latent must be [rows, 3]"));
  EXPECT_THAT(message(cache.layer(0), latent, latent), HasSubstr("rope must be [rope_rows, 2]"));
  KvLayer whole = cache.layer(0);
  whole.head_dim_v = 5;
  EXPECT_THAT(message(whole, latent, rope),
              HasSubstr("kv must have contiguous dims after the latent"));
}

// 4 slots: latents of 3 dims and rope parts of 2 dims, with a stride of 4 elements.
struct LatentParts {
  LatentParts(at::ScalarType latent_type, DType dtype, at::ScalarType rope_type, DType rope_dtype)
      : latent(at::full({2, 2, 3}, kNan).to(latent_type)),
        rope(at::full({2, 2, 4}, kNan).to(rope_type)),
        kv({.k = {.data = latent.data_ptr(), .block_stride = 6, .token_stride = 3, .dim_chunk = 3},
            .v = {.data = latent.data_ptr(), .block_stride = 6, .token_stride = 3, .dim_chunk = 3},
            .dtype = dtype,
            .num_blocks = 2,
            .block_size = 2,
            .num_kv_heads = 1,
            .head_dim_qk = 5,
            .head_dim_v = 3,
            .k_scale = {.value = 2.0f},
            .v_scale = {.value = 99.0f},
            .rope_dim = 2,
            .rope_dtype = rope_dtype,
            .rope = {.data = rope.data_ptr(), .block_stride = 8, .token_stride = 4, .dim_chunk = 2},
            .rope_scale = {.value = 0.5f}}) {}

  at::Tensor latent;
  at::Tensor rope;
  KvLayer kv;
};

TEST(WriteKvTest, LatentAndRopePartAreWrittenToSeparateTensors) {
  constexpr auto kE4M3 = at::kFloat8_e4m3fn;
  for (const auto& [types, dtypes] :
       {std::pair(std::pair(kE4M3, kE4M3), std::pair(DType::kFp8E4M3, DType::kFp8E4M3)),
        std::pair(std::pair(kE4M3, at::kBFloat16), std::pair(DType::kFp8E4M3, DType::kBFloat16)),
        std::pair(std::pair(at::kHalf, kE4M3), std::pair(DType::kFloat16, DType::kFp8E4M3))}) {
    SCOPED_TRACE(testing::Message() << dtypes.first << " and " << dtypes.second);
    LatentParts cache(types.first, dtypes.first, types.second, dtypes.second);
    const at::Tensor latent = at::tensor({2.0f, 4.0f, 6.0f, 8.0f, 10.0f, 12.0f}).view({2, 3});
    const at::Tensor rope = at::tensor({1.0f, 2.0f, 3.0f, 4.0f}).view({2, 2});
    ASSERT_TRUE(WriteLatentKv(cache.kv, latent, rope, Slots({3, 1})).ok());
    const at::Tensor latents = cache.latent.to(at::kFloat).view({4, 3});
    const at::Tensor ropes = cache.rope.to(at::kFloat).view({4, 4});
    EXPECT_TRUE(latents[3].equal(at::tensor({1.0f, 2.0f, 3.0f}))) << latents;
    EXPECT_TRUE(latents[1].equal(at::tensor({4.0f, 5.0f, 6.0f}))) << latents;
    EXPECT_TRUE(ropes[3].slice(0, 0, 2).equal(at::tensor({2.0f, 4.0f}))) << ropes;
    EXPECT_TRUE(ropes[1].slice(0, 0, 2).equal(at::tensor({6.0f, 8.0f}))) << ropes;
    EXPECT_EQ(at::isnan(latents).sum().item<int>(), 6);
    EXPECT_EQ(at::isnan(ropes).sum().item<int>(), 12);

    // Reads both parts back as one dequantised key.
    const at::Tensor k = at::full({2, 1, 5}, 7.0f);
    ASSERT_TRUE(ReadKv(cache.kv, Slots({1, -1}), k, at::Tensor()).ok());
    EXPECT_TRUE(k[0][0].equal(at::tensor({8.0f, 10.0f, 12.0f, 3.0f, 4.0f}))) << k;
    EXPECT_TRUE(k[1][0].equal(at::zeros({5}))) << k;
  }
}

TEST(WriteKvTest, RejectsInvalidLatentOrRopeBeforeWritingEither) {
  LatentParts cache(at::kFloat8_e4m3fn, DType::kFp8E4M3, at::kBFloat16, DType::kBFloat16);
  const at::Tensor latent = at::ones({2, 3}), rope = at::ones({2, 2});
  const auto message = [&](const KvLayer& kv, const at::Tensor& a, const at::Tensor& b,
                           const at::Tensor& slots) {
    const absl::Status status = WriteLatentKv(kv, a, b, slots);
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  const at::Tensor slots = Slots({0, 1});
  EXPECT_THAT(message(cache.kv, rope, rope, slots), HasSubstr("latent must be [rows, 3]"));
  EXPECT_THAT(message(cache.kv, latent, latent, slots), HasSubstr("rope must be [rope_rows, 2]"));
  EXPECT_THAT(message(cache.kv, latent, rope.to(at::kInt), slots), HasSubstr("got int"));
  EXPECT_THAT(message(cache.kv, latent, rope, Slots({0, 4})), HasSubstr("expected -1 to 3"));
  EXPECT_THAT(message(cache.kv, latent, rope.slice(0, 0, 1), slots), HasSubstr("[>= 2, 1, 2]"));
  KvLayer bad = cache.kv;
  bad.rope_scale.value = 0;
  EXPECT_THAT(message(bad, latent, rope, slots), HasSubstr("scale: expected a positive"));
  EXPECT_EQ(at::isnan(cache.latent.to(at::kFloat)).sum().item<int>(), 12);
  EXPECT_EQ(at::isnan(cache.rope.to(at::kFloat)).sum().item<int>(), 16);
  const absl::Status joined = WriteKv(cache.kv, at::ones({2, 1, 5}), at::Tensor(), slots);
  EXPECT_THAT(std::string(joined.message()), HasSubstr("kv.rope_dim: expected 0, got 2"));
}

TEST(WriteKvTest, RejectsInvalidArguments) {
  KvCache cache = SmallCache();
  const at::Tensor good = Values({1, 2});
  const auto message = [&](const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& slots,
                           absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    absl::Status status = WriteKv(kv, k, v, slots);
    EXPECT_EQ(status.code(), code) << status;
    return std::string(status.message());
  };
  const KvLayer kv = cache.layer(0);
  const at::Tensor slot = Slots({0});
  EXPECT_THAT(message(kv, good, good, Slots({0, 1})),
              HasSubstr("k must be [>= num_tokens, num_kv_heads, head_dim_qk]: expected "
                        "[>= 2, 1, 2], got [1, 1, 2]"));
  EXPECT_THAT(message(kv, good, at::ones({1, 1, 3}), slot), HasSubstr("v must be"));
  EXPECT_THAT(message(kv, at::Tensor(), good, slot), HasSubstr("k must be"));
  EXPECT_THAT(message(kv, good, good, slot.to(at::kInt)),
              HasSubstr("slot_mapping must be [num_tokens] int64: expected int64, got int32"));
  EXPECT_THAT(message(kv, good, good, slot.view({1, 1, 1})),
              HasSubstr("expected [num_tokens], got [1, 1, 1]"));
  EXPECT_THAT(message(kv, Values({1, 2, 3, 4}), Values({1, 2, 3, 4}),
                      Slots({0, 9, 1, 9}).view({2, 2}).slice(1, 0, 1)),
              HasSubstr("slot_mapping must be contiguous: expected strides [1, 1], got [2, 1]"));
  EXPECT_THAT(message(kv, good, good, Slots({0, 1}).view({1, 2})), HasSubstr("[>= 2, 1, 2]"));
  EXPECT_THAT(message(kv, Values({1, 2, 3, 4}), Values({1, 2, 3, 4}),
                      Slots({0, 9, 1, 9}).slice(0, 0, 4, 2)),
              HasSubstr("slot_mapping must have stride 1"));
  EXPECT_THAT(message(kv, good, good.to(at::kHalf), slot),
              HasSubstr("v has the wrong dtype: expected float32, got float16"));
  EXPECT_THAT(
      message(kv, good.to(at::kInt), good.to(at::kInt), slot, absl::StatusCode::kUnimplemented),
      HasSubstr("expected float32, float16 or bfloat16 or float64, got int32"));

  KvLayer bad = kv;
  bad.block_size = 0;
  EXPECT_THAT(message(bad, good, good, slot),
              HasSubstr("kv.block_size: expected at least 1, got 0"));
  bad = kv;
  bad.v.data = nullptr;
  EXPECT_THAT(message(bad, good, good, slot), HasSubstr("kv.v: expected an array, got none"));
  bad = kv;
  bad.k_scale.value = 0;
  EXPECT_THAT(message(bad, good, good, slot),
              HasSubstr("kv.k_scale: expected a positive, finite number, got 0"));
  bad = kv;
  const float one = 1;
  bad.v_scale = {.data = &one, .row_stride = 1};
  EXPECT_THAT(message(bad, good, good, slot),
              HasSubstr("kv.v_scale.row_stride: expected 0, got 1"));
  EXPECT_THAT(Written(cache, 0), testing::IsEmpty());
}

TEST(WriteKvTest, WritesBeyondTwoToThe31Elements) {
  // 2^31 + 2^20 bytes of fp8. The operating system provides only the touched pages.
  constexpr int kNumBlocks = (1 << 15) + 16;
  KvLayout layout = *KvLayout::Create({.num_blocks = kNumBlocks,
                                       .block_size = 64,
                                       .num_kv_heads = 4,
                                       .head_dim_qk = 128,
                                       .head_dim_v = 128,
                                       .dtype = DType::kFp8E4M3,
                                       .form = KvForm::kPacked});
  KvCache cache = *KvCache::Create(layout, at::kCPU);
  const int64_t last = int64_t{kNumBlocks} * 64 - 1;
  const at::Tensor k = at::full({2, 4, 128}, 3.0f), v = at::full({2, 4, 128}, 5.0f);
  ASSERT_TRUE(WriteKv(cache.layer(0), k, v, Slots({last, 1 << 20})).ok());
  const at::Tensor kv = cache.tensors(0)[0];
  EXPECT_GT(cache.layer(0).k.Offset(kNumBlocks - 1, 63, 0, 0), int64_t{1} << 31);
  EXPECT_TRUE(kv[kNumBlocks - 1].select(1, 63)[0].to(at::kFloat).eq(3).all().item<bool>());
  EXPECT_TRUE(kv[kNumBlocks - 1].select(1, 63)[1].to(at::kFloat).eq(5).all().item<bool>());
}

TEST(WriteKvTest, RandomCasesMatchTheReference) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 80; ++i) {
    WriteKvCase c = WriteKvCase::Random(random, {.device = at::kCPU});
    SCOPED_TRACE(testing::Message() << "case " << i);
    absl::Status status = c.Write();
    ASSERT_TRUE(status.ok()) << status << c.description();
    ASSERT_EQ(c.Difference(), "");
    c.ChangeContents(random);
    ASSERT_TRUE(c.Write().ok());
    ASSERT_EQ(c.Difference(), "");
  }
}

TEST(WriteKvTest, ManyTokensAreSplitOverThreads) {
  std::mt19937 random(7);
  at::set_num_threads(4);
  WriteKvCase c = WriteKvCase::Random(random, {.device = at::kCPU,
                                               .layout = KvLayoutOptions{.num_blocks = 80,
                                                                         .block_size = 16,
                                                                         .num_kv_heads = 4,
                                                                         .head_dim_qk = 64,
                                                                         .head_dim_v = 64},
                                               .num_tokens = 1200});  // 2.4 MB
  ASSERT_TRUE(c.Write().ok());
  EXPECT_EQ(c.Difference(), "");
}

}  // namespace
}  // namespace reprise
