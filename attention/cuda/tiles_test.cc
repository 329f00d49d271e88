#include "reprise/attention/cuda/tiles.h"

#include <algorithm>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(TilesTest, NamesAndIndicesAreUnique) {
  std::set<std::string> names;
  for (size_t i = 0; i < kAttentionKernels.size(); ++i) {
    const AttentionKernelEntry& kernel = kAttentionKernels[i];
    const AttentionTile& tile = kernel.tile;
    EXPECT_EQ(KernelIndex(tile.dtype, tile.head_dim_qk, tile.rows(), kernel.loading, kernel.family),
              static_cast<int>(i));
    EXPECT_TRUE(names.insert(kernel.name()).second) << kernel.name();
  }
  EXPECT_EQ(KernelIndex(DType::kBFloat16, 128, 16, KvLoading::kFp8, KernelFamily::kDecode), -1);
  EXPECT_EQ(KernelIndex(DType::kFloat32, 128, 32, KvLoading::kDirect, KernelFamily::kDecode), -1);
  EXPECT_EQ(KernelIndex(DType::kBFloat16, 256, 32, KvLoading::kDirect, KernelFamily::kDecode), -1);
}

TEST(TilesTest, Fp8KernelsMultiplyInFloat16AndBFloat16HasAllOtherKernels) {
  int num_half = 0, num_bfloat16 = 0, num_fp8 = 0;
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    num_half += kernel.tile.dtype == DType::kFloat16;
    num_bfloat16 += kernel.tile.dtype == DType::kBFloat16;
    if (kernel.loading != KvLoading::kFp8) continue;
    ++num_fp8;
    EXPECT_EQ(kernel.tile.dtype, DType::kFloat16);
  }
  EXPECT_EQ(num_bfloat16, num_half - num_fp8);
}

TEST(TilesTest, Fp8KvTilesHaveTwiceTheKeysUpToTheGroupsThreads) {
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    const AttentionTile& tile = kernel.tile;
    if (kernel.loading != KvLoading::kFp8 || kernel.tier() == 2) continue;
    const auto converted =
        std::ranges::find_if(kAttentionKernels, [&](const AttentionKernelEntry& other) {
          return other.family != KernelFamily::kWarpgroup && other.loading == KvLoading::kDirect &&
                 other.tile.dtype == tile.dtype && other.tile.head_dim_qk == tile.head_dim_qk &&
                 other.tile.rows() == tile.rows() && other.tier() == 1;
        });
    ASSERT_NE(converted, kAttentionKernels.end()) << kernel.name();
    EXPECT_EQ(tile.keys, std::min(2 * converted->tile.keys, tile.warps_m * tile.warps_d * 32))
        << kernel.name();
  }
}

TEST(TilesTest, VerifyTilesDifferFromDecodeTilesOnlyInWarpsAndKeys) {
  int count = 0;
  for (const AttentionKernelEntry& kernel : kAttentionKernels) {
    const AttentionTile& tile = kernel.tile;
    if (tile.rows() != 32) continue;
    ++count;
    EXPECT_TRUE(kernel.prefetches_in_prologue());
    EXPECT_EQ(tile.threads(), 128);
    const int index = KernelIndex(tile.dtype, tile.head_dim_qk, kDecodeRows, kernel.loading,
                                  KernelFamily::kDecode);
    ASSERT_GE(index, 0) << kernel.name();
    const AttentionTile& decode = kAttentionKernels[index].tile;
    EXPECT_EQ(tile.head_dim_v, decode.head_dim_v);
    // Both tiles have the same number of bytes in flight.
    if (kernel.loading == KvLoading::kDirect) {
      EXPECT_EQ(tile.keys * tile.warps_n, decode.keys * decode.warps_n);
    }
    EXPECT_EQ(tile.ctas_per_sm, decode.ctas_per_sm);
  }
  EXPECT_EQ(count, 6);
}

}  // namespace
}  // namespace reprise
