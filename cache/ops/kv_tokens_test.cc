#include "reprise/cache/ops/kv_tokens.h"

#include <cstdint>
#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(SlotPlacesTest, FindsBlockAndOffset) {
  const SlotAddresses places(KvLayer{.num_blocks = 4, .block_size = 3});
  EXPECT_EQ(places.num_slots(), 12);
  for (int slot = 0; slot < 12; ++slot) {
    const SlotAddress place = places.Find(slot);
    EXPECT_TRUE(place.is_there);
    EXPECT_EQ(place.block, slot / 3);
    EXPECT_EQ(place.offset, slot % 3);
  }
}

TEST(SlotPlacesTest, SlotsOutsideTheCacheAreInvalid) {
  const SlotAddresses places(KvLayer{.num_blocks = 4, .block_size = 3});
  for (int64_t slot : {int64_t{-1}, int64_t{-2}, int64_t{12}, int64_t{INT32_MAX} + 1,
                       std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    EXPECT_FALSE(places.Find(slot).is_there) << slot;
  }
}

TEST(SlotPlacesTest, CachesMayHaveMoreThanTwoToThe31Slots) {
  const SlotAddresses places(KvLayer{.num_blocks = 1 << 30, .block_size = 48});
  const int64_t slot = (int64_t{1} << 30) * 48 - 5;
  EXPECT_TRUE(places.Find(slot).is_there);
  EXPECT_EQ(places.Find(slot).block, (1 << 30) - 1);
  EXPECT_EQ(places.Find(slot).offset, 43);
  const KvView view = {.block_stride = 4800, .token_stride = 100};
  EXPECT_EQ(places.Find(slot).Offset(view), ((int64_t{1} << 30) - 1) * 4800 + 4300);
}

TEST(ScaleOfHeadTest, StridesOfZeroBroadcast) {
  const float scales[] = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(ScaleOfHead({.value = 7}, /*head=*/3, /*table_row=*/2), 7);
  EXPECT_EQ(ScaleOfHead({.data = scales}, 3, 2), 1);
  EXPECT_EQ(ScaleOfHead({.data = scales, .row_stride = 3, .head_stride = 1}, 2, 1), 6);
}

// An access is 8 bf16 elements. Changes the tokens, then the cache, from a good case to addresses
// and strides that are not aligned.
TEST(ElementsPerAccessTest, UsesSingleElementsIfAnAddressOrStrideIsUnaligned) {
  alignas(16) char memory[64] = {};
  const KvLayer kv = {
      .dtype = DType::kBFloat16, .num_blocks = 4, .block_size = 2, .num_kv_heads = 3};
  using Side = KvSide<KvTokens>;
  const Side good = {.tokens = {.data = memory, .token_stride = 48, .head_stride = 16},
                     .view = {.data = memory,
                              .block_stride = 96,
                              .token_stride = 48,
                              .head_stride = 16,
                              .dim_chunk = 16},
                     .head_dim = 16};
  const auto elements = [&](Side side, DType dtype = DType::kBFloat16, int num_tokens = 5) {
    return ElementsPerAccess(kv, side, dtype, num_tokens);
  };
  EXPECT_EQ(elements(good), 8);
  EXPECT_EQ(elements(good, DType::kFloat32), 8);  // in 16-byte loads
  Side side = good;
  side.tokens.data = memory + 2;
  EXPECT_EQ(elements(side), 1);
  side = good;
  side.tokens.token_stride = 50;
  EXPECT_EQ(elements(side), 1);
  EXPECT_EQ(elements(side, DType::kBFloat16, /*num_tokens=*/1), 8);
  side = good;
  side.tokens.dim_stride = 2;
  EXPECT_EQ(elements(side), 1);
  side = good;
  side.view.head_stride = 18;
  EXPECT_EQ(elements(side), 1);
  side = good;
  side.head_dim = 12;
  EXPECT_EQ(elements(side), 1);
  side = good;
  side.view.dim_chunk = 4;
  EXPECT_EQ(elements(side), 1);
  side.view.dim_chunk = 8;
  side.view.dim_chunk_stride = 16;
  EXPECT_EQ(elements(side), 8);
}

TEST(CheckKvLayerTest, RejectsInvalidSizesAndMissingMemory) {
  char memory[1] = {};
  const KvLayer good = {.k = {.data = memory, .dim_chunk = 1},
                        .v = {.data = memory, .dim_chunk = 1},
                        .num_blocks = 1,
                        .block_size = 1,
                        .num_kv_heads = 1,
                        .head_dim_qk = 1,
                        .head_dim_v = 1};
  EXPECT_TRUE(CheckKvLayer(good).ok());
  const auto message = [&](auto change) {
    KvLayer kv = good;
    change(kv);
    return std::string(CheckKvLayer(kv).message());
  };
  EXPECT_EQ(message([](KvLayer& kv) { kv.num_blocks = -1; }),
            "kv.num_blocks: expected at least 0, got -1");
  EXPECT_EQ(message([](KvLayer& kv) { kv.block_size = -1; }),
            "kv.block_size: expected at least 1, got -1");
  EXPECT_EQ(message([](KvLayer& kv) { kv.num_kv_heads = 0; }),
            "kv.num_kv_heads: expected at least 1, got 0");
  EXPECT_EQ(message([](KvLayer& kv) { kv.head_dim_qk = 0; }),
            "kv.head_dim_qk: expected at least 1, got 0");
  EXPECT_EQ(message([](KvLayer& kv) { kv.head_dim_v = 0; }),
            "kv.head_dim_v: expected at least 1, got 0");
  EXPECT_EQ(message([](KvLayer& kv) { kv.v.dim_chunk = 0; }),
            "kv.v.dim_chunk: expected at least 1, got 0");
  EXPECT_EQ(message([](KvLayer& kv) { kv.k.data = nullptr; }), "kv.k: expected an array, got none");
}

TEST(CheckKvLayerTest, RejectsARopePartWithoutALatent) {
  char memory[2] = {};
  const KvLayer good = {.k = {.data = memory, .dim_chunk = 3},
                        .v = {.data = memory, .dim_chunk = 3},
                        .num_blocks = 1,
                        .block_size = 1,
                        .num_kv_heads = 1,
                        .head_dim_qk = 5,
                        .head_dim_v = 3,
                        .rope_dim = 2,
                        .rope = {.data = memory, .dim_chunk = 2}};
  EXPECT_TRUE(CheckKvLayer(good).ok());
  const auto message = [&](auto change) {
    KvLayer kv = good;
    change(kv);
    return std::string(CheckKvLayer(kv).message());
  };
  EXPECT_EQ(message([](KvLayer& kv) { kv.rope_dim = 5; }), "kv.rope_dim: expected 0 to 4, got 5");
  EXPECT_EQ(message([](KvLayer& kv) { kv.rope_dim = 3; }),
            "kv.head_dim_v: expected at most 2, got 3");
  EXPECT_EQ(message([](KvLayer& kv) { kv.k.dim_chunk = 1; }),
            "kv.k.dim_chunk: expected at least 3, got 1");
  EXPECT_EQ(message([](KvLayer& kv) { kv.rope.dim_chunk = 1; }),
            "kv.rope.dim_chunk: expected at least 2, got 1");
  EXPECT_EQ(message([](KvLayer& kv) { kv.rope.data = nullptr; }),
            "kv.rope: expected an array, got none");
  EXPECT_EQ(message([&](KvLayer& kv) { kv.v.data = memory + 1; }),
            "kv.v: expected kv.k, with a rope part, got another");
}

}  // namespace
}  // namespace reprise
