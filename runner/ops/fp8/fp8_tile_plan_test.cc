#include "reprise/runner/ops/fp8/fp8_tile_plan.h"

#include <algorithm>
#include <cstdint>

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kSharedBytesOfAnSm = 227 * 1024;

TEST(Fp8TilePlanTest, StagesFitAnSmAndHaveTwoBoxesOfXPerWeightBox) {
  for (const TileForm& form : {TileForm{.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
                               TileForm{.cluster = 2, .row_groups = 2, .turns = 2, .boxes = 1},
                               TileForm{.cluster = 4, .row_groups = 1, .turns = 4, .boxes = 2}}) {
    for (const int out_features : {1, 100, 4096, 6144, 28672, 128256}) {
      for (const int num_rows : {1, 16, 17, 33, 41, 64}) {
        SCOPED_TRACE(testing::Message()
                     << ToString(form) << ", " << out_features << ", rows " << num_rows);
        const Fp8TilePlan plan = PlanFp8Tile(form, num_rows, out_features, 4096, 33);
        EXPECT_EQ(plan.columns, TileColumns(num_rows));
        EXPECT_EQ(plan.num_boxes, 32);
        EXPECT_EQ(plan.stage_bytes(), form.boxes * (plan.tile_rows + 2 * plan.columns) * 128);
        EXPECT_GE(int64_t{plan.num_tiles} * plan.tile_rows, out_features);
        EXPECT_LE(plan.tile_rows, form.row_groups * kTileGroupRows);
        EXPECT_LE(plan.shared_bytes, kSharedBytesOfAnSm);
        EXPECT_GT(plan.shared_bytes, kSharedBytesOfAnSm / 2);  // one CTA per SM
        if (plan.stages == 0) continue;
        EXPECT_GE(plan.stages, 2);
        EXPECT_EQ(plan.stages % form.turns, 0);
        // Shared memory holds the last box, which is read as if the tile were full, and the sums.
        const int beyond = (form.row_groups * kTileGroupRows - plan.tile_rows) * 128;
        EXPECT_LE(1024 + plan.stages * plan.stage_bytes() + std::max(beyond, plan.sums_bytes()) +
                      (2 * plan.stages + 2) * 8,
                  plan.shared_bytes);
      }
    }
  }
}

TEST(Fp8TilePlanTest, PartialBoxCountsAsABox) {
  EXPECT_EQ(PlanFp8Tile({}, 1, 64, 1, 132).num_boxes, 1);
  EXPECT_EQ(PlanFp8Tile({}, 1, 64, 128, 132).num_boxes, 1);
  EXPECT_EQ(PlanFp8Tile({}, 1, 64, 129, 132).num_boxes, 2);
  EXPECT_EQ(PlanFp8Tile({}, 1, 64, 14336, 132).num_boxes, 112);
}

// The rule returns a valid form for all sizes, even if fewer clusters run concurrently.
TEST(Fp8TileFormTest, ServesEveryNumberOfRows) {
  for (int num_rows = 1; num_rows <= kMaxTileLinearRows; ++num_rows) {
    for (const int out_features : {1, 64, 2048, 4096, 5120, 6144, 16384, 28672, 128256}) {
      for (const int in_features : {1, 128, 2048, 4096, 14336}) {
        const TileForm form = Fp8TileForm(num_rows, out_features);
        EXPECT_TRUE(IsTileForm(form));
        for (const int max_clusters : {1, 30, 132}) {
          EXPECT_GE(PlanFp8Tile(form, num_rows, out_features, in_features, max_clusters).stages, 2)
              << ToString(form) << ", rows " << num_rows << ", " << out_features;
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise
