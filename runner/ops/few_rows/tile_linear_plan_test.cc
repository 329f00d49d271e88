#include "reprise/runner/ops/few_rows/tile_linear_plan.h"

#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kSharedBytesOfAnSm = 227 * 1024;

std::vector<TileForm> AllForms() {
  std::vector<TileForm> forms;
  for (int cluster : {1, 2, 4}) {
    for (int row_groups = 1; row_groups <= kMaxTileGroups; ++row_groups) {
      for (int turns = 1; turns <= kMaxTileGroups / row_groups; ++turns) {
        for (int boxes : {1, 2, 4}) {
          forms.push_back(
              {.cluster = cluster, .row_groups = row_groups, .turns = turns, .boxes = boxes});
        }
      }
    }
  }
  return forms;
}

TEST(TileColumnsTest, RoundUpToTheNextMmaSize) {
  EXPECT_EQ(TileColumns(1), 16);
  EXPECT_EQ(TileColumns(16), 16);
  EXPECT_EQ(TileColumns(17), 32);
  EXPECT_EQ(TileColumns(32), 32);
  EXPECT_EQ(TileColumns(33), 40);
  EXPECT_EQ(TileColumns(40), 40);
  EXPECT_EQ(TileColumns(41), 48);
  EXPECT_EQ(TileColumns(48), 48);
  EXPECT_EQ(TileColumns(49), 64);
  EXPECT_EQ(TileColumns(kMaxTileLinearRows), 64);
  EXPECT_EQ(TileColumns(kMaxTileLinearRows + 1), 96);
  EXPECT_EQ(TileColumns(96), 96);
  EXPECT_EQ(TileColumns(97), 128);
  EXPECT_EQ(TileColumns(kMaxWideTileRows), 128);
}

TEST(TileLinearPlanTest, TilesCoverTheWeightOnceAndFitAnSm) {
  std::mt19937 random(1);
  std::vector<int> sizes = {1, 7, 8, 9, 63, 64, 65, 4096, 6144, 28672, 128256};
  for (int i = 0; i < 40; ++i) sizes.push_back(std::uniform_int_distribution(1, 200000)(random));
  for (const TileForm& form : AllForms()) {
    for (int out_features : sizes) {
      for (int num_rows : {1, 16, 17, 33, 41, 64, 65, 128}) {
        for (int max_clusters : {1, 16, 33, 132}) {
          SCOPED_TRACE(testing::Message()
                       << form.cluster << " " << form.row_groups << " " << form.turns << " "
                       << form.boxes << ": " << out_features << ", rows " << num_rows
                       << ", clusters " << max_clusters);
          const TileLinearPlan plan =
              PlanTileLinear(form, num_rows, out_features, 4096, max_clusters);
          EXPECT_EQ(plan.tile_rows % 8, 0);  // boxes remain aligned to 1024 bytes
          EXPECT_GE(plan.tile_rows, 8);
          EXPECT_LE(plan.tile_rows, form.row_groups * kTileGroupRows);
          EXPECT_GE(int64_t{plan.num_tiles} * plan.tile_rows, out_features);
          EXPECT_LT(int64_t{plan.num_tiles - 1} * plan.tile_rows, out_features);
          EXPECT_EQ(plan.num_clusters, std::min(plan.num_tiles, max_clusters));
          EXPECT_EQ(plan.owned_rows() % 16, 0);  // the rows of a warp have one owner
          EXPECT_EQ(plan.sums_stride() % 16, 4);
          EXPECT_LE(plan.shared_bytes, kSharedBytesOfAnSm);
          EXPECT_GT(plan.shared_bytes, kSharedBytesOfAnSm / 2);  // one CTA per SM
          EXPECT_LE(plan.threads(), MaxTileThreads(plan.columns));
          if (plan.stages == 0) continue;
          EXPECT_GE(plan.stages, 2);
          EXPECT_EQ(plan.stages % form.turns, 0);
          // Shared memory holds the last stage, which is read as if the tile were full, and the
          // sums.
          const int sums = plan.stores_directly ? 0 : plan.sums_bytes();
          const int beyond = (form.row_groups * kTileGroupRows - plan.tile_rows) * kTileBoxLine;
          EXPECT_LE(1024 + plan.stages * plan.stage_bytes() + std::max(beyond, sums) +
                        (2 * plan.stages + 2) * 8,
                    plan.shared_bytes);
        }
      }
    }
  }
}

TEST(TileLinearPlanTest, GatedTilesAreWholePairs) {
  for (const TileForm& form : AllForms()) {
    for (int out_features : {16, 48, 4096, 28672, 200000}) {
      for (int max_clusters : {1, 33, 132}) {
        const TileLinearPlan plan =
            PlanTileLinear(form, 32, out_features, 4096, max_clusters, TileRows::kGated);
        EXPECT_EQ(plan.tile_rows % kGatedTileUnit, 0);
        EXPECT_EQ(plan.owned_rows() % kGatedTileUnit, 0);  // a pair has one owner
        EXPECT_LE(plan.tile_rows, form.row_groups * kTileGroupRows);
        EXPECT_GE(int64_t{plan.num_tiles} * plan.tile_rows, out_features);
      }
    }
  }
}

TEST(TileLinearPlanTest, TilesOfOneSourceNeedNoMemoryForSums) {
  const TileForm alone = {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1};
  for (const TileRows rows : {TileRows::kPlain, TileRows::kGated}) {
    const TileLinearPlan plan = PlanTileLinear(alone, 64, 28672, 4096, 132, rows);
    EXPECT_TRUE(plan.stores_directly);
    EXPECT_EQ(plan.tile_rows, 224);
    EXPECT_EQ(plan.stages, 6);
  }
  // With more rows of x, stages are larger, so that fewer of them fit.
  EXPECT_EQ(PlanTileLinear(alone, 96, 28672, 4096, 132, TileRows::kGated).stages, 5);
  EXPECT_EQ(PlanTileLinear(alone, 128, 28672, 4096, 132, TileRows::kGated).stages, 4);
  for (TileForm form : AllForms()) {
    EXPECT_EQ(PlanTileLinear(form, 8, 4096, 4096, 132).stores_directly,
              form.cluster == 1 && form.turns == 1);
  }
}

TEST(TileLinearPlanTest, UsesTheMinimumNumberOfRoundsWithEqualTiles) {
  const TileForm form = {.cluster = 4, .row_groups = 3, .turns = 1, .boxes = 1};
  // 32 clusters of 192 rows.
  TileLinearPlan plan = PlanTileLinear(form, 32, 6144, 4096, 33);
  EXPECT_EQ(plan.tile_rows, 192);
  EXPECT_EQ(plan.num_tiles, 32);
  // One round of smaller tiles.
  plan = PlanTileLinear(form, 32, 4096, 4096, 33);
  EXPECT_EQ(plan.tile_rows, 128);
  EXPECT_EQ(plan.num_tiles, 32);
  // Five rounds.
  plan = PlanTileLinear(form, 32, 28672, 4096, 33);
  EXPECT_EQ(plan.tile_rows, 176);
  EXPECT_EQ(plan.num_tiles, 163);
  EXPECT_EQ(plan.num_clusters, 33);
  EXPECT_EQ(plan.num_boxes, 64);
}

TEST(TileLinearPlanTest, EveryFormServesUpTo32Rows) {
  for (const TileForm& form : AllForms()) {
    if (form.row_groups * form.boxes > 2) continue;
    for (int num_rows : {1, 32}) {
      EXPECT_GE(PlanTileLinear(form, num_rows, 1 << 20, 4096, 1).stages, 2)
          << form.cluster << " " << form.row_groups << " " << form.turns << " " << form.boxes;
    }
  }
}

TEST(IsTileFormTest, AcceptsExactlyTheValidForms) {
  for (const TileForm& form : AllForms()) EXPECT_TRUE(IsTileForm(form));
  EXPECT_TRUE(IsTileForm({}));
  EXPECT_FALSE(IsTileForm({.cluster = 0}));
  EXPECT_FALSE(IsTileForm({.cluster = 3}));
  EXPECT_FALSE(IsTileForm({.cluster = 8}));
  EXPECT_FALSE(IsTileForm({.row_groups = 0}));
  EXPECT_FALSE(IsTileForm({.row_groups = 5, .turns = 1}));
  EXPECT_FALSE(IsTileForm({.row_groups = 2, .turns = 3}));
  EXPECT_FALSE(IsTileForm({.turns = 0}));
  EXPECT_FALSE(IsTileForm({.turns = 5}));
  EXPECT_FALSE(IsTileForm({.row_groups = 1 << 30, .turns = 4}));
  EXPECT_FALSE(IsTileForm({.boxes = 0}));
  EXPECT_FALSE(IsTileForm({.boxes = 3}));
  EXPECT_FALSE(IsTileForm({.boxes = 8}));
}

// Wide GEMMs have no adding threads.
TEST(TileLinearPlanTest, WideGemmsRequireFormsWithOneSource) {
  for (const TileForm& form : AllForms()) {
    for (const int num_rows : {kMaxTileLinearRows + 1, kMaxWideTileRows}) {
      const TileLinearPlan plan = PlanTileLinear(form, num_rows, 4096, 4096, 132);
      EXPECT_EQ(plan.threads(), form.groups() * 128 + 64);
      EXPECT_TRUE(plan.num_sources() == 1 || plan.stages == 0) << ToString(form);
    }
    EXPECT_EQ(PlanTileLinear(form, kMaxTileLinearRows, 4096, 4096, 132).threads(),
              form.groups() * 128 + 192);
  }
}

TEST(TileLinearPlanTest, ReportsFormsThatAreTooLarge) {
  // 256 rows of the weight and 64 rows of x, 4 boxes: 160 KB per stage.
  const TileForm large = {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 4};
  EXPECT_EQ(PlanTileLinear(large, 64, 1 << 20, 4096, 1).stages, 0);
  // Three stages fit, but the form has four turns.
  TileForm form = {.cluster = 1, .row_groups = 1, .turns = 3, .boxes = 4};
  EXPECT_GT(PlanTileLinear(form, 32, 1 << 20, 4096, 1).stages, 0);
  form.turns = 4;
  EXPECT_EQ(PlanTileLinear(form, 32, 1 << 20, 4096, 1).stages, 0);
}

TEST(TileFormsToTryTest, SupportLargeWeights) {
  for (int num_rows = 1; num_rows <= kMaxWideTileRows; ++num_rows) {
    const absl::Span<const TileForm> forms = TileFormsToTry(num_rows);
    EXPECT_FALSE(forms.empty());
    for (const TileForm& form : forms) {
      EXPECT_TRUE(IsTileForm(form));
      EXPECT_GE(PlanTileLinear(form, num_rows, 1 << 20, 4096, 1).stages, 2)
          << ToString(form) << ", rows " << num_rows;
    }
  }
}

TEST(TileFormTest, PrintsItsFields) {
  EXPECT_EQ(ToString(TileForm{.cluster = 1, .row_groups = 2, .turns = 2, .boxes = 4}),
            "cluster 1 rows 128 turns 2 boxes 4");
}

TEST(TileLinearPlanTest, AcceptsTheLargestSizes) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const TileLinearPlan plan = PlanTileLinear({}, 1, kMost, kMost, 132);
  EXPECT_EQ(plan.tile_rows, 64);
  EXPECT_EQ(plan.num_tiles, 1 << 25);
  EXPECT_EQ(plan.num_boxes, 1 << 25);
}

}  // namespace
}  // namespace reprise
