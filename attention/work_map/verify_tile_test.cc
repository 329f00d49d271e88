#include "reprise/attention/work_map/verify_tile.h"

#include <iterator>
#include <utility>

#include "gtest/gtest.h"
#include "reprise/attention/work_map/attention_tile.h"

namespace reprise {
namespace {

TEST(VerifyTileTest, EveryNumberOfRowsHasTheLeastTileThatHoldsIt) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const int head_dim : {1, 64, 65, 128}) {
      for (int rows = 1; rows <= 200; ++rows) {
        const AttentionTile* tile = FindTile(dtype, head_dim, head_dim, rows);
        ASSERT_NE(tile, nullptr);
        EXPECT_EQ(tile->rows(), rows <= 16 ? 16 : rows <= 32 ? 32 : 128) << rows;
        EXPECT_EQ(tile->dtype, dtype);
        EXPECT_EQ(tile->head_dim_qk, head_dim <= 64 ? 64 : 128);
      }
    }
  }
}

TEST(VerifyTileTest, OtherTypesAndHeadDimsHaveTheTilesThatTheyHadBefore) {
  for (const int rows : {1, 17, 32, 40, 65}) {
    for (const auto& [head_dim_qk, head_dim_v] : {std::pair(256, 256), {192, 128}, {576, 512}}) {
      EXPECT_EQ(FindTile(DType::kBFloat16, head_dim_qk, head_dim_v, rows),
                FindAttentionTile(DType::kBFloat16, head_dim_qk, head_dim_v, rows));
    }
    EXPECT_EQ(FindTile(DType::kFloat32, 128, 128, rows),
              FindAttentionTile(DType::kFloat32, 128, 128, rows));
    EXPECT_EQ(FindTile(DType::kFloat64, 128, 128, rows), nullptr);
  }
  // Queries of fp8 are multiplied in bfloat16, unless the cache's type decides otherwise.
  EXPECT_EQ(FindTile(DType::kFp8E4M3, 128, 128, 20), FindTile(DType::kBFloat16, 128, 128, 20));
}

TEST(VerifyTileTest, TilesDifferFromADecodesInWarpsAndKeysOnly) {
  for (int i = 0; i < static_cast<int>(std::size(kVerifyTiles)); ++i) {
    const AttentionTile& tile = kVerifyTiles[i];
    EXPECT_EQ(VerifyTileIndex(tile.dtype, tile.head_dim_qk), i);
    EXPECT_EQ(tile.threads(), 128);
    const AttentionTile* decode =
        FindAttentionTile(tile.dtype, tile.head_dim_qk, tile.head_dim_v, kDecodeRows);
    EXPECT_EQ(decode->head_dim_qk, tile.head_dim_qk);
    // Two stages of as many keys together, so that as many bytes are in flight.
    EXPECT_EQ(tile.keys * tile.warps_n, decode->keys * decode->warps_n);
    EXPECT_EQ(tile.ctas_per_sm, decode->ctas_per_sm);
    EXPECT_EQ(tile.rows(), kVerifyRows);
  }
  EXPECT_EQ(VerifyTileIndex(DType::kBFloat16, 256), -1);
  EXPECT_EQ(VerifyTileIndex(DType::kFloat32, 128), -1);
}

}  // namespace
}  // namespace reprise
