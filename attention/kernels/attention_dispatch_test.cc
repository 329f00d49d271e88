#ifdef REPRISE_WITH_CUDA

#include "attention/kernels/attention_dispatch.h"

#include <algorithm>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

TEST(AttentionDispatchTest, TakesTheLeastHeadDimThatHoldsBoth) {
  const auto head_dim_for = [](int head_dim_qk, int head_dim_v) {
    const absl::StatusOr<const AttentionKernelEntry*> kernel =
        FindAttentionKernel({.q_dtype = DType::kFloat16,
                             .kv_dtype = DType::kFloat16,
                             .head_dim_qk = head_dim_qk,
                             .head_dim_v = head_dim_v,
                             .tile_rows = 16});
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    return (*kernel)->tile.head_dim;
  };
  EXPECT_EQ(head_dim_for(1, 1), 64);
  EXPECT_EQ(head_dim_for(64, 64), 64);
  EXPECT_EQ(head_dim_for(80, 64), 128);
  EXPECT_EQ(head_dim_for(64, 192), 256);
}

// The plan of a work map and the dispatch must agree on the tile.
TEST(AttentionDispatchTest, HasTheKernelOfEveryTileThatAPlanChooses) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int head_dim = 1; head_dim <= kMaxAttentionHeadDim; ++head_dim) {
      for (int rows : {1, 16, 17, 64, 100}) {
        const AttentionTile* tile = FindAttentionTile(dtype, head_dim, head_dim, rows);
        ASSERT_NE(tile, nullptr);
        const absl::StatusOr<const AttentionKernelEntry*> kernel =
            FindAttentionKernel({.q_dtype = dtype,
                                 .kv_dtype = dtype,
                                 .head_dim_qk = head_dim,
                                 .head_dim_v = head_dim,
                                 .tile_rows = tile->rows()});
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        EXPECT_EQ((*kernel)->tile.head_dim, tile->head_dim);
      }
    }
  }
}

TEST(AttentionDispatchTest, AnUnsupportedCombinationNamesWhatIsSupported) {
  const absl::StatusOr<const AttentionKernelEntry*> kernel =
      FindAttentionKernel({.q_dtype = DType::kBFloat16,
                           .kv_dtype = DType::kFp8E4M3,
                           .head_dim_qk = 128,
                           .head_dim_v = 128,
                           .tile_rows = 16});
  EXPECT_EQ(kernel.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(kernel.status().message()),
              HasSubstr("supported are float32, float16 and bfloat16 for q and KV alike"));
}

TEST(AttentionDispatchTest, TheTableHasALineForEachKernel) {
  const std::string table = AttentionKernelTable();
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), std::ssize(AttentionKernels()));
  EXPECT_THAT(table, HasSubstr("bfloat16  head_dim <= 128  16 rows  1 x 4 warps"));
}

}  // namespace
}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
