#ifdef REPRISE_WITH_CUDA

#include "reprise/attention/cuda/attention_dispatch.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/work_map/verify_tile.h"
#include "reprise/attention/work_map/work_map_plan.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

AttentionKernelKey KeyOf(DType q_dtype, DType kv_dtype, int head_dim, int tile_rows) {
  return {.q_dtype = q_dtype,
          .kv_dtype = kv_dtype,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .tile_rows = tile_rows};
}

std::string NameFor(const AttentionKernelKey& key) {
  const absl::StatusOr<const AttentionKernelEntry*> kernel = FindAttentionKernel(key);
  return kernel.ok() ? (*kernel)->name() : std::string(kernel.status().message());
}

TEST(AttentionDispatchTest, TakesTheLeastHeadDimThatHoldsBoth) {
  const auto name_for = [](int head_dim_qk, int head_dim_v) {
    return NameFor({.q_dtype = DType::kFloat16,
                    .kv_dtype = DType::kFloat16,
                    .head_dim_qk = head_dim_qk,
                    .head_dim_v = head_dim_v,
                    .tile_rows = 16});
  };
  EXPECT_EQ(name_for(1, 1), "float16.d64.rows16.direct");
  EXPECT_EQ(name_for(64, 64), "float16.d64.rows16.direct");
  EXPECT_EQ(name_for(80, 64), "float16.d128.rows16.direct");
  EXPECT_EQ(name_for(64, 192), "float16.d256.rows16.direct");
  EXPECT_EQ(name_for(320, 64), "float16.d512.rows16.direct");
  EXPECT_EQ(name_for(512, 512), "float16.d512.rows16.direct");
  EXPECT_THAT(name_for(513, 512), HasSubstr("supported are V that is the first columns of K"));
}

TEST(AttentionDispatchTest, TunedKernelsServeTheCardTheyAreMadeForAndWhatTheyCanLoad) {
  AttentionKernelKey key = KeyOf(DType::kFloat16, DType::kFloat16, 100, 128);
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.direct");
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.warpgroup");
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.converted");
  key.loading = KvLoading::kDirect;
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.direct");
  key.max_tier = 2;
  for (const int other : {80, 89, 100, 120}) {
    key.compute_capability = other;
    EXPECT_EQ(NameFor(key), "float16.d128.rows128.direct");
  }
  key.compute_capability = 90;
  key.tile_rows = 16;
  EXPECT_EQ(NameFor(key), "float16.d128.rows16.direct");
  key = KeyOf(DType::kFloat16, DType::kFloat16, 256, 64);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d256.rows64.direct");
}

TEST(AttentionDispatchTest, PairsOfTilesHaveTunedKernelsForHeadDimsTo256) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 256, 128);
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows64.direct");
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows128.warpgroup");
  key.head_dim_qk = key.head_dim_v = 160;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows128.warpgroup");
  key.head_dim_qk = 192;
  key.head_dim_v = 128;
  EXPECT_EQ(NameFor(key), "bfloat16.d192.rows128.warpgroup");
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows64.direct");
  key.max_tier = 2;
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows64.converted");
  key.loading = KvLoading::kFp8;
  key.kv_dtype = DType::kFp8E4M3;
  EXPECT_EQ(NameFor(key), "float16.d256.rows128.warpgroup.fp8");
  // A range that one tile holds has no pair.
  key.tile_rows = 64;
  EXPECT_EQ(NameFor(key), "float16.d256.rows64.fp8");
  // Latent heads and head dims to 512 have tiles of 64 rows alone.
  key = KeyOf(DType::kBFloat16, DType::kBFloat16, 512, 128);
  EXPECT_THAT(NameFor(key), HasSubstr("supported are the tile rows that PlanWorkMap() chooses"));
}

TEST(AttentionDispatchTest, HeadDimsTo96HaveATunedKernel) {
  AttentionKernelKey key = KeyOf(DType::kFloat16, DType::kFloat16, 96, 128);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d96.rows128.warpgroup");
  key.head_dim_qk = 80;
  EXPECT_EQ(NameFor(key), "float16.d96.rows128.warpgroup");
  key.head_dim_v = 128;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.warpgroup");
  key.head_dim_v = 96;
  key.kv_dtype = DType::kFp8E5M2;
  key.loading = KvLoading::kFp8;
  EXPECT_EQ(NameFor(key), "float16.d96.rows128.warpgroup.fp8");
}

TEST(AttentionDispatchTest, AFewQueriesARowHaveKernelsOfTheirSize) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 128, 32);
  for (const int capability : {80, 90}) {
    key.compute_capability = capability;
    EXPECT_EQ(NameFor(key), "bfloat16.d128.rows32.direct");
    key.is_general = true;
    EXPECT_EQ(NameFor(key), "bfloat16.d128.rows32.direct");
    key.is_general = false;
  }
  key.head_dim_qk = key.head_dim_v = 40;
  EXPECT_EQ(NameFor(key), "bfloat16.d64.rows32.direct");
  // What must be converted is served by the tile of 128 rows.
  key.has_rotary = true;
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d64.rows128.converted");
  key = KeyOf(DType::kBFloat16, DType::kFp8E4M3, 100, 32);
  key.loading = KvLoading::kFp8;
  EXPECT_EQ(NameFor(key), "float16.d128.rows32.fp8");
  // Other tiles of 64 rows are as they were.
  EXPECT_EQ(NameFor(KeyOf(DType::kFloat16, DType::kFloat16, 256, 64)),
            "float16.d256.rows64.direct");
}

TEST(AttentionDispatchTest, ConvertsWhatCannotBeLoadedAsItIs) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kFp8E4M3, 128, 128);
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d128.rows128.converted");
  key.kv_dtype = DType::kBFloat16;  // for example with new keys
  EXPECT_EQ(NameFor(key), "bfloat16.d128.rows128.converted");
}

TEST(AttentionDispatchTest, CachesOfFp8AreLoadedAsTheyAreForQueriesOfAnyNarrowType) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kFp8E4M3, 128, 16);
  key.loading = KvLoading::kFp8;
  for (const DType kv_dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    key.kv_dtype = kv_dtype;
    for (const DType q_dtype : {DType::kBFloat16, DType::kFloat16, DType::kFp8E4M3}) {
      key.q_dtype = q_dtype;
      EXPECT_EQ(NameFor(key), "float16.d128.rows16.fp8");
    }
  }
  key.q_dtype = DType::kFloat32;
  EXPECT_EQ(NameFor(key), "float32.d128.rows16.converted");
  key.q_dtype = DType::kBFloat16;
  key.products = DType::kBFloat16;
  EXPECT_EQ(NameFor(key), "bfloat16.d128.rows16.converted");
  key.products = DType::kFloat16;
  EXPECT_EQ(NameFor(key), "float16.d128.rows16.fp8");
  key.products.reset();
  key.tile_rows = 128;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.fp8");
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.warpgroup.fp8");
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.fp8");
  key.tile_rows = 16;
  key.loading = KvLoading::kConverted;  // for example with new keys
  EXPECT_EQ(NameFor(key), "bfloat16.d128.rows16.converted");
}

TEST(AttentionDispatchTest, QuantisedQueriesAreMultipliedInTheTypeOfA16BitCacheOrInBFloat16) {
  AttentionKernelKey key = KeyOf(DType::kFp8E5M2, DType::kFp8E5M2, 64, 16);
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d64.rows16.converted");
  key.kv_dtype = DType::kFloat16;
  EXPECT_EQ(NameFor(key), "float16.d64.rows16.converted");
}

TEST(AttentionDispatchTest, LatentHeadsWantTheirValuesInTheKeys) {
  AttentionKernelKey key = {.q_dtype = DType::kBFloat16,
                            .kv_dtype = DType::kBFloat16,
                            .head_dim_qk = 576,
                            .head_dim_v = 512,
                            .tile_rows = 64,
                            .values = ValueSource::kKeyTile};
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.direct");
  key.values = ValueSource::kOwn;
  EXPECT_THAT(NameFor(key), HasSubstr("supported are V that is the first columns of K"));
  key.values = ValueSource::kKeyTile;
  key.has_rotary = true;
  EXPECT_THAT(NameFor(key), HasSubstr("rotary embedding in the kernel, for head dims to 512"));
  key.head_dim_qk = 320;
  key.head_dim_v = 256;
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d512.rows64.converted");
  key.head_dim_qk = 576;
  key.head_dim_v = 512;
  key.loading = KvLoading::kDirect;
  key.has_rotary = false;
  key.max_shared_bytes = 99 * 1024;  // a card of compute capability 8.6
  EXPECT_THAT(NameFor(key), HasSubstr("cards with the shared memory"));
}

TEST(AttentionDispatchTest, LatentHeadsOfManyRowsHaveATunedKernelForWhatItLoadsAsItIs) {
  AttentionKernelKey key = {.q_dtype = DType::kBFloat16,
                            .kv_dtype = DType::kBFloat16,
                            .head_dim_qk = 576,
                            .head_dim_v = 512,
                            .tile_rows = 64,
                            .values = ValueSource::kKeyTile,
                            .compute_capability = 90};
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.warpgroup");
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.direct");
  key.max_tier = 2;
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.converted");
  key.kv_dtype = DType::kFp8E4M3;
  key.loading = KvLoading::kFp8;
  EXPECT_EQ(NameFor(key), "float16.d576.rows64.fp8");
  key.kv_dtype = DType::kBFloat16;
  key.loading = KvLoading::kDirect;
  key.tile_rows = 16;
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows16.direct");
  // Tiles for head dims to 256 are planned for other kernels.
  key.tile_rows = 64;
  key.head_dim_qk = key.head_dim_v = 256;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows64.direct");
}

TEST(AttentionDispatchTest, HeadDimsTo512HaveKernelsForValuesOfTheirOwn) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 512, 64);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "bfloat16.d512.rows64.direct");
  key.values = ValueSource::kKeyTile;
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.warpgroup");
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.direct");
  key.values = ValueSource::kOwn;
  key.kv_dtype = DType::kFp8E4M3;
  key.loading = KvLoading::kFp8;
  EXPECT_EQ(NameFor(key), "float16.d512.rows64.fp8");
  key = KeyOf(DType::kBFloat16, DType::kBFloat16, 512, 16);
  key.max_shared_bytes = 99 * 1024;  // a card of compute capability 8.6: decodes only
  EXPECT_EQ(NameFor(key), "bfloat16.d512.rows16.direct");
  key.tile_rows = 64;
  EXPECT_THAT(NameFor(key), HasSubstr("cards with the shared memory"));
}

// Planned for such a card (WorkMapOptions::max_shared_bytes), prefills too have tiles of 16 rows.
TEST(AttentionDispatchTest, SmallCardsServeEveryHeadDimOf16BitsInTheTilesThatAreTheirs) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const int head_dim : {64, 128, 256, 300, 512}) {
      for (const int max_query_len : {1, 512}) {
        const WorkMapPlan plan = *PlanWorkMap({.dtype = dtype,
                                               .num_q_heads = 8,
                                               .num_kv_heads = 2,
                                               .head_dim_qk = head_dim,
                                               .head_dim_v = head_dim,
                                               .max_rows = 4,
                                               .max_tokens = 2048,
                                               .max_query_len = max_query_len,
                                               .max_seq_len = 4096,
                                               .max_shared_bytes = 99 * 1024});
        for (const KvLoading loading :
             {KvLoading::kDirect, KvLoading::kConverted, KvLoading::kFp8}) {
          AttentionKernelKey key =
              KeyOf(dtype, loading == KvLoading::kFp8 ? DType::kFp8E4M3 : dtype, head_dim,
                    plan.shape.main.tile_rows);
          key.loading = loading;
          key.max_shared_bytes = 99 * 1024;
          key.compute_capability = 89;
          const absl::StatusOr<const AttentionKernelEntry*> kernel = FindAttentionKernel(key);
          ASSERT_TRUE(kernel.ok()) << kernel.status();
          EXPECT_LE((*kernel)->shared_bytes(), 99 * 1024);
        }
      }
    }
  }
}

TEST(AttentionDispatchTest, RopePartsOfTheirOwnAreConverted) {
  AttentionKernelKey key = {.q_dtype = DType::kBFloat16,
                            .kv_dtype = DType::kFp8E4M3,
                            .head_dim_qk = 576,
                            .head_dim_v = 512,
                            .tile_rows = 64,
                            .values = ValueSource::kKeyTile,
                            .loading = KvLoading::kConverted,
                            .rope_dtype = DType::kBFloat16,
                            .compute_capability = 90};
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.converted");
  key.rope_dtype = DType::kFloat16;  // which bfloat16 does not hold
  EXPECT_THAT(NameFor(key), HasSubstr("rope parts of float16: supported are KV of q's type"));
  key.products = DType::kFloat32;
  key.tile_rows = 16;
  EXPECT_EQ(NameFor(key), "float32.d576.rows16.converted");
}

TEST(AttentionDispatchTest, CustomMasksAndScalesPerQHeadHaveGeneralKernels) {
  AttentionKernelKey key = KeyOf(DType::kFloat16, DType::kFloat16, 128, 128);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.warpgroup");
  key.is_general = true;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.direct");
  EXPECT_THAT(ExplainAttentionKernels(key),
              HasSubstr("float16.d128.rows128.warpgroup      wants general kernels, for custom "
                        "masks, scales per q head and slopes per sequence"));
}

TEST(AttentionDispatchTest, TheProductsCanBeChosen) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 128, 16);
  key.products = DType::kFloat32;  // CUDA cores
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "float32.d128.rows16.converted");
  key.tile_rows = 64;
  EXPECT_THAT(NameFor(key), HasSubstr("the tile rows that PlanWorkMap() chooses"));
}

// The plan of a work map and the dispatch must agree on the tile.
TEST(AttentionDispatchTest, HasTheKernelOfEveryTileThatAPlanChooses) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3}) {
    for (int head_dim = 1; head_dim <= kMaxAttentionHeadDim; ++head_dim) {
      for (int rows : {1, 16, 17, 64, 100}) {
        const AttentionTile* tile = FindTile(dtype, head_dim, head_dim, rows);
        ASSERT_NE(tile, nullptr);
        AttentionKernelKey key = KeyOf(dtype, dtype, head_dim, tile->rows());
        key.loading = KvLoading::kConverted;
        absl::StatusOr<const AttentionKernelEntry*> kernel = FindAttentionKernel(key);
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        EXPECT_EQ((*kernel)->tile.head_dim_qk, tile->head_dim_qk);
        // The plan does not know where V is; latent heads have tiles of as many rows.
        key.values = ValueSource::kKeyTile;
        kernel = FindAttentionKernel(key);
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        // For 32 rows, keys that are converted have the kernel of 128 rows.
        if (tile->rows() == kVerifyRows) continue;
        EXPECT_EQ((*kernel)->tile.ctas_per_sm, tile->ctas_per_sm);
      }
    }
  }
}

TEST(AttentionDispatchTest, AnUnsupportedCombinationNamesWhatIsSupported) {
  EXPECT_THAT(NameFor(KeyOf(DType::kBFloat16, DType::kFloat16, 128, 16)),
              HasSubstr("q of bfloat16, KV of float16, head dims 128 and 128, tiles of 16 rows: "
                        "supported are KV of q's type, of fp8"));
  EXPECT_EQ(FindAttentionKernel(KeyOf(DType::kFloat64, DType::kFloat64, 8, 16)).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(AttentionDispatchTest, TheTableHasALineForEachKernel) {
  const std::string table = AttentionKernelTable();
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), std::ssize(AttentionKernels()));
  EXPECT_THAT(table, HasSubstr("bfloat16.d128.rows16.direct"));
  const std::string reasons =
      ExplainAttentionKernels(KeyOf(DType::kFloat16, DType::kFloat16, 128, 16));
  EXPECT_THAT(reasons, HasSubstr("float16.d128.rows16.direct          serves"));
  EXPECT_THAT(reasons, HasSubstr("float16.d64.rows16.direct           wants head dims to 512"));
}

TEST(AttentionDispatchTest, TheTableInTheDocumentationIsThisOne) {
  std::ifstream file("docs/kernels.md");
  ASSERT_TRUE(file.is_open()) << "to be run from the root of the repository";
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("    tier ")) text += line + "\n";
  }
  // Each line is indented by four blanks and lacks the last column.
  const std::string table =
      std::regex_replace(AttentionKernelTable(), std::regex(" +[0-9]+ bytes\n"), "\n");
  EXPECT_EQ(text, std::regex_replace(table, std::regex("tier "), "    tier "))
      << "put this into docs/kernels.md:\n"
      << std::regex_replace(table, std::regex("tier "), "    tier ");
}

}  // namespace
}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
