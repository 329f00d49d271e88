#include "reprise/attention/cuda/attention_dispatch.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// The key for a call whose tile schedule has tiles of `rows` rows.
AttentionKernelKey KeyOf(DType q_dtype, DType kv_dtype, int head_dim, int rows) {
  return {.q_dtype = q_dtype,
          .kv_dtype = kv_dtype,
          .head_dim_qk = head_dim,
          .head_dim_v = head_dim,
          .rows = rows,
          .is_planned = true};
}

std::string NameFor(const AttentionKernelKey& key) {
  const absl::StatusOr<const AttentionKernelEntry*> kernel = FindAttentionKernel(key);
  return kernel.ok() ? (*kernel)->name() : std::string(kernel.status().message());
}

TEST(AttentionDispatchTest, TakesTheSmallestSufficientHeadDim) {
  const auto name_for = [](int head_dim_qk, int head_dim_v) {
    return NameFor({.q_dtype = DType::kFloat16,
                    .kv_dtype = DType::kFloat16,
                    .head_dim_qk = head_dim_qk,
                    .head_dim_v = head_dim_v,
                    .rows = 16});
  };
  EXPECT_EQ(name_for(1, 1), "float16.d64.rows16.direct");
  EXPECT_EQ(name_for(64, 64), "float16.d64.rows16.direct");
  EXPECT_EQ(name_for(80, 64), "float16.d128.rows16.direct");
  EXPECT_EQ(name_for(64, 192), "float16.d256.rows16.direct");
  EXPECT_EQ(name_for(320, 64), "float16.d512.rows16.direct");
  EXPECT_EQ(name_for(512, 512), "float16.d512.rows16.direct");
  EXPECT_THAT(name_for(513, 512), HasSubstr("supported are V that is the first columns of K"));
}

TEST(AttentionDispatchTest, TunedKernelsServeOnlyTheirCardAndLoading) {
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
  key.rows = 16;
  EXPECT_EQ(NameFor(key), "float16.d128.rows16.direct");
  key = KeyOf(DType::kFloat16, DType::kFloat16, 256, 64);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d256.rows64.direct");
}

TEST(AttentionDispatchTest, HeadDimsTo256HaveTunedKernelsOf128Rows) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 256, 128);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows128.warpgroup");
  key.head_dim_qk = key.head_dim_v = 160;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows128.warpgroup");
  key.head_dim_qk = 192;
  key.head_dim_v = 128;
  EXPECT_EQ(NameFor(key), "bfloat16.d192.rows128.warpgroup");
  key.loading = KvLoading::kFp8;
  key.kv_dtype = DType::kFp8E4M3;
  EXPECT_EQ(NameFor(key), "float16.d256.rows128.warpgroup.fp8");
  key.rows = 64;
  EXPECT_EQ(NameFor(key), "float16.d256.rows64.fp8");
}

// For these head dims the general kernels have tiles of 64 rows, which cannot hold a Q tile of 128
// rows.
TEST(AttentionDispatchTest, LargeTilesForHeadDimsTo256ExcludeGeneralKernels) {
  constexpr char kRefusal[] = "supported are tiles of at least the rows of the tile schedule";
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 256, 128);
  EXPECT_THAT(NameFor(key), HasSubstr(kRefusal));  // another card
  key.compute_capability = 90;
  key.max_tier = 1;
  EXPECT_THAT(NameFor(key), HasSubstr(kRefusal));
  key.max_tier = 2;
  key.is_general = true;
  EXPECT_THAT(NameFor(key), HasSubstr(kRefusal));
  key.is_general = false;
  key.loading = KvLoading::kConverted;
  EXPECT_THAT(NameFor(key), HasSubstr(kRefusal));
  // A schedule that is planned for general kernels has tiles of 64 rows.
  key.rows = 64;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows64.converted");
  // MLA and head dims to 512 have only tiles of up to 64 rows.
  EXPECT_THAT(NameFor(KeyOf(DType::kBFloat16, DType::kBFloat16, 512, 128)), HasSubstr(kRefusal));
}

// A plan takes the smallest tile that holds a Q tile, or the largest tile.
TEST(AttentionDispatchTest, RowsChooseTheTileWithoutASchedule) {
  const auto rows_for = [](DType dtype, int head_dim, int rows) {
    AttentionKernelKey key = KeyOf(dtype, dtype, head_dim, rows);
    key.is_planned = false;
    key.compute_capability = 90;
    const absl::StatusOr<const AttentionKernelEntry*> kernel = FindAttentionKernel(key);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    return kernel.ok() ? (*kernel)->tile.rows() : 0;
  };
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (int rows = 1; rows <= 200; ++rows) {
      for (const int head_dim : {1, 64, 65, 128}) {
        EXPECT_EQ(rows_for(dtype, head_dim, rows), rows <= 16 ? 16 : rows <= 32 ? 32 : 128) << rows;
      }
      EXPECT_EQ(rows_for(dtype, 129, rows), rows <= 16 ? 16 : rows <= 64 ? 64 : 128) << rows;
      EXPECT_EQ(rows_for(dtype, 256, rows), rows <= 16 ? 16 : rows <= 64 ? 64 : 128) << rows;
      EXPECT_EQ(rows_for(dtype, 257, rows), rows <= 16 ? 16 : 64) << rows;
      EXPECT_EQ(rows_for(dtype, 512, rows), rows <= 16 ? 16 : 64) << rows;
    }
  }
  for (const int rows : {1, 17, 65, 200}) EXPECT_EQ(rows_for(DType::kFloat32, 128, rows), 16);
  // fp8 queries are multiplied in bfloat16, unless the cache's type decides otherwise.
  EXPECT_EQ(rows_for(DType::kFp8E4M3, 128, 20), 32);
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

TEST(AttentionDispatchTest, SmallQueryCountsHaveKernelsWith32Rows) {
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
  // If K or V must be converted, the tile of 128 rows serves the call.
  key.has_rotary = true;
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d64.rows128.converted");
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "bfloat16.d64.rows128.converted");
  key = KeyOf(DType::kBFloat16, DType::kFp8E4M3, 100, 32);
  key.loading = KvLoading::kFp8;
  EXPECT_EQ(NameFor(key), "float16.d128.rows32.fp8");
  // Head dims to 256 have tiles of 64 rows and no tiles of 32 rows.
  EXPECT_EQ(NameFor(KeyOf(DType::kFloat16, DType::kFloat16, 256, 64)),
            "float16.d256.rows64.direct");
}

TEST(AttentionDispatchTest, ChoosesConvertingKernelsForConvertedLoading) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kFp8E4M3, 128, 128);
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "bfloat16.d128.rows128.converted");
  key.kv_dtype = DType::kBFloat16;  // for example with new keys
  EXPECT_EQ(NameFor(key), "bfloat16.d128.rows128.converted");
}

TEST(AttentionDispatchTest, Fp8CachesAreLoadedUnconvertedForNarrowQueryTypes) {
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
  key.rows = 128;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.fp8");
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.warpgroup.fp8");
  key.max_tier = 1;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.fp8");
  key.rows = 16;
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

TEST(AttentionDispatchTest, MlaRequiresValuesInTheKeys) {
  AttentionKernelKey key = {.q_dtype = DType::kBFloat16,
                            .kv_dtype = DType::kBFloat16,
                            .head_dim_qk = 576,
                            .head_dim_v = 512,
                            .rows = 64,
                            .is_planned = true,
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

TEST(AttentionDispatchTest, MlaTilesOf64RowsHaveATunedKernelForDirectLoading) {
  AttentionKernelKey key = {.q_dtype = DType::kBFloat16,
                            .kv_dtype = DType::kBFloat16,
                            .head_dim_qk = 576,
                            .head_dim_v = 512,
                            .rows = 64,
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
  key.rows = 16;
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows16.direct");
  // Head dims to 256 have no MLA kernel, even if V is in K.
  key.rows = 64;
  key.head_dim_qk = key.head_dim_v = 256;
  EXPECT_EQ(NameFor(key), "bfloat16.d256.rows64.direct");
}

TEST(AttentionDispatchTest, HeadDimsTo512HaveKernelsForSeparateValues) {
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
  key.max_shared_bytes = 99 * 1024;  // a card of compute capability 8.6
  EXPECT_EQ(NameFor(key), "bfloat16.d512.rows16.direct");
  key.rows = 64;
  EXPECT_THAT(NameFor(key), HasSubstr("cards with the shared memory"));
}

// In a plan for such a card (DeviceLimits::max_shared_bytes), prefills with head dims beyond 256
// also have tiles of 16 rows.
TEST(AttentionDispatchTest, CardsWith99KbServeEveryHeadDimIn16Bits) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const int head_dim : {64, 128, 256, 300, 512}) {
      for (const int max_query_len : {1, 512}) {
        const TileSchedulePlan plan =
            *PlanTileSchedule({.dtype = dtype,
                               .num_q_heads = 8,
                               .num_kv_heads = 2,
                               .head_dim_qk = head_dim,
                               .head_dim_v = head_dim,
                               .max_rows = 4,
                               .max_tokens = 2048,
                               .max_query_len = max_query_len,
                               .max_seq_len = 4096,
                               .device = {.max_shared_bytes = 99 * 1024}});
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

TEST(AttentionDispatchTest, SeparateRopePartsAreConverted) {
  AttentionKernelKey key = {.q_dtype = DType::kBFloat16,
                            .kv_dtype = DType::kFp8E4M3,
                            .head_dim_qk = 576,
                            .head_dim_v = 512,
                            .rows = 64,
                            .values = ValueSource::kKeyTile,
                            .loading = KvLoading::kConverted,
                            .rope_dtype = DType::kBFloat16,
                            .compute_capability = 90};
  EXPECT_EQ(NameFor(key), "bfloat16.d576.rows64.converted");
  key.rope_dtype = DType::kFloat16;  // bfloat16 does not hold its values
  EXPECT_THAT(NameFor(key), HasSubstr("rope parts of float16: supported are KV in q's type"));
  key.products = DType::kFloat32;
  key.rows = 16;
  EXPECT_EQ(NameFor(key), "float32.d576.rows16.converted");
}

TEST(AttentionDispatchTest, CustomMasksAndScalesPerQHeadHaveGeneralKernels) {
  AttentionKernelKey key = KeyOf(DType::kFloat16, DType::kFloat16, 128, 128);
  key.compute_capability = 90;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.warpgroup");
  key.is_general = true;
  EXPECT_EQ(NameFor(key), "float16.d128.rows128.direct");
  EXPECT_THAT(ExplainAttentionKernels(key),
              HasSubstr("float16.d128.rows128.warpgroup      not this one; supported: general "
                        "kernels, for custom "
                        "masks, scales per q head and slopes per sequence"));
}

TEST(AttentionDispatchTest, ProductTypeCanBeChosen) {
  AttentionKernelKey key = KeyOf(DType::kBFloat16, DType::kBFloat16, 128, 16);
  key.products = DType::kFloat32;  // CUDA cores
  key.loading = KvLoading::kConverted;
  EXPECT_EQ(NameFor(key), "float32.d128.rows16.converted");
  key.rows = 64;
  EXPECT_THAT(NameFor(key),
              HasSubstr("supported are tiles of at least the rows of the tile schedule"));
}

// Calls that convert keys can use any planned schedule, except schedules for the tuned tiles of
// head dims 129 to 256.
TEST(AttentionDispatchTest, HasAKernelForEveryTileThatAPlanChooses) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3}) {
    for (int head_dim = 1; head_dim <= kMaxAttentionHeadDim; ++head_dim) {
      for (int rows : {1, 16, 17, 64, 100}) {
        AttentionKernelKey key = KeyOf(dtype, dtype, head_dim, rows);
        key.is_planned = false;
        key.compute_capability = 90;
        absl::StatusOr<const AttentionKernelEntry*> planned = FindAttentionKernel(key);
        ASSERT_TRUE(planned.ok()) << planned.status();
        key.rows = (*planned)->tile.rows();
        key.is_planned = true;
        EXPECT_EQ(*FindAttentionKernel(key), *planned);
        key.loading = KvLoading::kConverted;
        const bool is_tuned_alone = key.rows == 128 && head_dim > 128;
        absl::StatusOr<const AttentionKernelEntry*> kernel = FindAttentionKernel(key);
        ASSERT_EQ(kernel.ok(), !is_tuned_alone) << kernel.status();
        if (is_tuned_alone) continue;
        // The plan does not depend on whether V is in K. The tiles for both cases have the same
        // rows.
        key.values = ValueSource::kKeyTile;
        kernel = FindAttentionKernel(key);
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        // The converting kernel for a schedule with tiles of 32 rows has tiles of 128 rows.
        if ((*planned)->tile.rows() == 32) continue;
        EXPECT_EQ((*kernel)->tile.rows(), (*planned)->tile.rows());
        EXPECT_EQ((*kernel)->tile.ctas_per_sm, (*planned)->tile.ctas_per_sm);
      }
    }
  }
}

TEST(AttentionDispatchTest, ErrorListsTheSupportedOptions) {
  EXPECT_THAT(NameFor(KeyOf(DType::kBFloat16, DType::kFloat16, 128, 16)),
              HasSubstr("q of bfloat16, KV of float16, head dims 128 and 128, tiles of 16 rows: "
                        "supported are KV in q's type, in fp8"));
  EXPECT_EQ(FindAttentionKernel(KeyOf(DType::kFloat64, DType::kFloat64, 8, 16)).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(AttentionDispatchTest, TheTableHasALineForEachKernel) {
  const std::string table = AttentionKernelTable();
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), std::ssize(kAttentionKernels));
  EXPECT_THAT(table, HasSubstr("bfloat16.d128.rows16.direct"));
  const std::string reasons =
      ExplainAttentionKernels(KeyOf(DType::kFloat16, DType::kFloat16, 128, 16));
  EXPECT_THAT(reasons, HasSubstr("float16.d128.rows16.direct          serves"));
  EXPECT_THAT(
      reasons,
      HasSubstr("float16.d64.rows16.direct           not this one; supported: head dims to"));
}

TEST(AttentionDispatchTest, TableMatchesTheDocumentation) {
  std::ifstream file("docs/kernels.md");
  ASSERT_TRUE(file.is_open()) << "must run from the root of the repository";
  std::string text;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("    tier ")) text += line + "\n";
  }
  // Each line is indented by four spaces and lacks the last column, "NUMBER KB".
  std::istringstream lines(AttentionKernelTable());
  std::string table;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_TRUE(line.ends_with(" KB")) << line;
    line.resize(line.find_last_of(' ', line.size() - 4));
    line.resize(line.find_last_not_of(' ') + 1);
    table += "    " + line + "\n";
  }
  EXPECT_EQ(text, table) << "put this into docs/kernels.md:\n" << table;
}

}  // namespace
}  // namespace reprise
