#include "reprise/attention/checks.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

AttentionParams GoodParams() {
  return {.num_q_heads = 8, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64};
}

// Returns the message of `status`, which must be InvalidArgument.
std::string Refusal(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

template <typename Change>
std::string RefusalOf(const Change& change) {
  AttentionParams params = GoodParams();
  change(params);
  return Refusal(CheckAttentionParams(params));
}

TEST(ParamsCheckTest, AcceptsValidParameters) {
  AttentionParams params = GoodParams();
  EXPECT_TRUE(CheckAttentionParams(params).ok());
  params.num_q_heads = 14;  // 7 per KV head: any whole number
  params.head_dim_v = 1;
  params.window_left = 0;
  params.softcap = 30.0f;
  params.rotary = RotaryParams{.rotary_dim = 32};
  params.sparse = BlockSparseParams{};
  EXPECT_TRUE(CheckAttentionParams(params).ok());
}

TEST(ParamsCheckTest, ErrorsNameTheFieldTheExpectedAndTheActualValue) {
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.num_q_heads = 7; }),
            "num_q_heads: expected a multiple of num_kv_heads (2), got 7");
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.num_kv_heads = 0; }),
            "num_kv_heads: expected at least 1, got 0");
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.head_dim_qk = 0; }),
            "head_dim_qk: expected at least 1, got 0");
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.window_left = -1; }),
            "window_left: expected at least 0, got -1");
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.softcap = -0.5f; }),
            "softcap: expected a finite number, at least 0, got -0.5");
  EXPECT_THAT(RefusalOf([](AttentionParams& p) { p.scale = NAN; }), HasSubstr("scale"));
}

TEST(ParamsCheckTest, RejectsAlibiRowStridesBelowTheHeadCount) {
  const std::array<float, 16> slopes = {};
  AttentionParams params = GoodParams();
  params.alibi_slopes = slopes.data();
  params.alibi_row_stride = 8;
  EXPECT_TRUE(CheckAttentionParams(params).ok());
  for (const int stride : {7, -8}) {
    EXPECT_EQ(
        RefusalOf([&](AttentionParams& p) {
          p.alibi_slopes = slopes.data();
          p.alibi_row_stride = stride;
        }),
        "alibi_row_stride: expected 0 or at least num_q_heads (8), got " + std::to_string(stride));
  }
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.alibi_row_stride = 8; }),
            "alibi_slopes, with alibi_row_stride: expected an array, got none");
}

TEST(ParamsCheckTest, RejectsInvalidRotaryParams) {
  EXPECT_EQ(RefusalOf([](AttentionParams& p) { p.rotary = RotaryParams{.rotary_dim = 66}; }),
            "rotary.rotary_dim: expected an even number up to head_dim_qk (64), got 66");
  EXPECT_THAT(RefusalOf([](AttentionParams& p) { p.rotary = RotaryParams{.rotary_dim = 3}; }),
              HasSubstr("got 3"));
  EXPECT_THAT(RefusalOf([](AttentionParams& p) {
                p.head_dim_qk = 5;  // the default is the whole head, which is odd here
                p.rotary = RotaryParams{};
              }),
              HasSubstr("got 5"));
  EXPECT_THAT(RefusalOf([](AttentionParams& p) { p.rotary = RotaryParams{.rope_scale = 0}; }),
              HasSubstr("rotary.rope_scale"));
}

TEST(ParamsCheckTest, RejectsNegativeSparseStrides) {
  EXPECT_THAT(
      RefusalOf([](AttentionParams& p) { p.sparse = BlockSparseParams{.vertical_stride = -1}; }),
      HasSubstr("sparse.vertical_stride"));
}

TEST(ParamsCheckTest, AcceptsDisablingValuesOfOtherSystems) {
  AttentionParams params = GoodParams();
  params.softcap = 0.0f;
  params.sparse = BlockSparseParams{.vertical_stride = 0};
  EXPECT_TRUE(CheckAttentionParams(params).ok());
  EXPECT_FALSE(params.has_softcap());
  EXPECT_FALSE(params.is_sparse());
}

struct Arrays {
  std::array<int32_t, 2> loc = {0, 1};
  std::array<int32_t, 1> one = {1};
  std::array<uint64_t, 1> mask = {1};

  PagedBatch Batch() const {
    return {.query_start_loc = loc.data(),
            .seq_lens = one.data(),
            .block_table = one.data(),
            .block_table_stride = 1,
            .num_rows = 1,
            .num_tokens = 1,
            .max_query_len = 1,
            .max_seq_len = 1,
            .num_tables = 1,
            .max_blocks = 1};
  }
};

template <typename Change>
std::string BatchRefusal(const Change& change) {
  const Arrays arrays;
  PagedBatch batch = arrays.Batch();
  AttentionParams params = GoodParams();
  change(batch, params, arrays);
  return Refusal(CheckBatchFields(params, batch));
}

TEST(ParamsCheckTest, AcceptsValidAndEmptyBatches) {
  const Arrays arrays;
  EXPECT_TRUE(CheckBatchFields(GoodParams(), arrays.Batch()).ok());
  const PagedBatch idle = {.query_start_loc = arrays.loc.data()};
  EXPECT_TRUE(CheckBatchFields(GoodParams(), idle).ok());
}

TEST(ParamsCheckTest, RejectsMissingArraysByName) {
  using Params = AttentionParams;
  EXPECT_EQ(BatchRefusal([](PagedBatch& b, Params&, const Arrays&) { b.seq_lens = nullptr; }),
            "seq_lens: expected an array, got none");
  EXPECT_THAT(
      BatchRefusal([](PagedBatch& b, Params&, const Arrays& a) { b.tail_len = a.one.data(); }),
      HasSubstr("tail_mask, with tail_len"));
}

TEST(ParamsCheckTest, RejectsTablesWithTooFewRows) {
  using Params = AttentionParams;
  EXPECT_EQ(BatchRefusal([](PagedBatch& b, Params&, const Arrays&) { b.num_tables = 0; }),
            "num_tables: expected at least 1, got 0");
  EXPECT_EQ(BatchRefusal([](PagedBatch& b, Params&, const Arrays&) {
              b.num_tables = 2;
              b.max_blocks = 9;
            }),
            "block_table_stride: expected at least 9, got 1");
}

TEST(ParamsCheckTest, ContextParallelismRejectsTailsAndRequiresPositions) {
  using Params = AttentionParams;
  EXPECT_EQ(BatchRefusal([](PagedBatch& b, Params&, const Arrays& a) {
              b.key_positions = {.rank = 1, .world = 2};
              b.tail_len = a.one.data();
              b.tail_mask = a.mask.data();
            }),
            "tail_len: expected none under context parallelism (world 2), got one");
  EXPECT_THAT(BatchRefusal([](PagedBatch& b, Params&, const Arrays&) {
                b.key_positions = {.rank = 1, .world = 2};
              }),
              HasSubstr("query_positions"));
  EXPECT_EQ(BatchRefusal([](PagedBatch& b, Params&, const Arrays&) {
              b.key_positions = {.rank = 2, .world = 2};
            }),
            "key_positions.rank: expected 0 to world - 1 (1), got 2");
  const Arrays arrays;
  PagedBatch cross = arrays.Batch();  // positions do not matter here
  cross.key_positions = {.rank = 1, .world = 2};
  cross.causal = false;
  EXPECT_TRUE(CheckBatchFields(GoodParams(), cross).ok());
}

TEST(ParamsCheckTest, CustomMasksRequireOffsetsAndRejectTailsAndRanks) {
  using Params = AttentionParams;
  const std::array<uint8_t, 1> bits = {1};
  const std::array<int64_t, 1> offset = {0};
  const auto masked = [&](PagedBatch& b) {
    b.custom_mask = bits.data();
    b.custom_mask_offset = offset.data();
    b.custom_mask_bytes = 1;
  };
  const Arrays arrays;
  PagedBatch good = arrays.Batch();
  masked(good);
  EXPECT_TRUE(CheckBatchFields(GoodParams(), good).ok());
  EXPECT_EQ(BatchRefusal([&](PagedBatch& b, Params&, const Arrays&) {
              masked(b);
              b.custom_mask_offset = nullptr;
            }),
            "custom_mask_offset, with custom_mask: expected an array, got none");
  EXPECT_EQ(BatchRefusal([&](PagedBatch& b, Params&, const Arrays&) {
              masked(b);
              b.custom_mask = nullptr;
            }),
            "custom_mask, with custom_mask_offset: expected an array, got none");
  EXPECT_EQ(BatchRefusal([&](PagedBatch& b, Params&, const Arrays&) {
              masked(b);
              b.custom_mask_bytes = -1;
            }),
            "custom_mask_bytes: expected at least 0, got -1");
  EXPECT_EQ(BatchRefusal([&](PagedBatch& b, Params&, const Arrays& a) {
              masked(b);
              b.tail_len = a.one.data();
              b.tail_mask = a.mask.data();
            }),
            "tail_len must not be given together with custom_mask");
  EXPECT_EQ(BatchRefusal([&](PagedBatch& b, Params&, const Arrays&) {
              masked(b);
              b.key_positions = {.rank = 0, .world = 2};
            }),
            "custom_mask: expected none under context parallelism (world 2), got one");
  RaggedBatch ragged = {.query_start_loc = arrays.loc.data(),
                        .key_start_loc = arrays.loc.data(),
                        .custom_mask = bits.data(),
                        .num_rows = 1};
  EXPECT_THAT(Refusal(CheckBatchFields(ragged)), HasSubstr("custom_mask_offset"));
  ragged.custom_mask_offset = offset.data();
  EXPECT_TRUE(CheckBatchFields(ragged).ok());
}

TEST(ParamsCheckTest, RaggedBatchesRequireBothPrefixSums) {
  const Arrays arrays;
  RaggedBatch batch = {.query_start_loc = arrays.loc.data(), .key_start_loc = arrays.loc.data()};
  EXPECT_TRUE(CheckBatchFields(batch).ok());
  batch.num_keys = -1;
  EXPECT_EQ(Refusal(CheckBatchFields(batch)), "num_keys: expected at least 0, got -1");
  batch.num_keys = 0;
  batch.key_start_loc = nullptr;
  EXPECT_THAT(Refusal(CheckBatchFields(batch)), HasSubstr("key_start_loc"));
}

TEST(ParamsCheckTest, RejectsACacheThatDoesNotFitTheLayer) {
  float memory = 0;
  const KvView view = {.data = &memory, .dim_chunk = 64};
  const KvLayer good = {.k = view,
                        .v = view,
                        .num_blocks = 2,
                        .block_size = 16,
                        .num_kv_heads = 2,
                        .head_dim_qk = 64,
                        .head_dim_v = 64};
  EXPECT_TRUE(CheckKvLayer(GoodParams(), good).ok());

  KvLayer kv = good;
  kv.num_kv_heads = 8;
  EXPECT_EQ(Refusal(CheckKvLayer(GoodParams(), kv)), "kv.num_kv_heads: expected 2, got 8");
  kv = good;
  kv.dtype = DType::kFloat64;
  EXPECT_THAT(Refusal(CheckKvLayer(GoodParams(), kv)), HasSubstr("got float64"));
  kv = good;
  kv.v.data = nullptr;
  EXPECT_THAT(Refusal(CheckKvLayer(GoodParams(), kv)), HasSubstr("kv.v"));
  AttentionParams sparse = GoodParams();
  sparse.sparse = BlockSparseParams{.vertical_stride = 2, .block_size = 24};
  EXPECT_EQ(Refusal(CheckKvLayer(sparse, good)),
            "sparse.block_size: expected a multiple of the cache's block_size (16), got 24");
  sparse.sparse->vertical_stride = 1;  // inactive
  EXPECT_TRUE(CheckKvLayer(sparse, good).ok());
}

TEST(ParamsCheckTest, RejectsRopePartsOutsideMla) {
  float memory[2] = {};
  AttentionParams layer = GoodParams();
  layer.head_dim_qk = 80;
  const KvView view = {.data = memory, .token_stride = 64, .dim_chunk = 64};
  const KvLayer good = {.k = view,
                        .v = view,
                        .num_blocks = 2,
                        .block_size = 16,
                        .num_kv_heads = 2,
                        .head_dim_qk = 80,
                        .head_dim_v = 64,
                        .rope_dim = 16,
                        .rope = {.data = memory, .dim_chunk = 16}};
  EXPECT_TRUE(CheckKvLayer(layer, good).ok()) << CheckKvLayer(layer, good);
  const auto refusal = [&](auto change) {
    KvLayer kv = good;
    change(kv);
    return Refusal(CheckKvLayer(layer, kv));
  };
  EXPECT_EQ(refusal([](KvLayer& kv) { kv.rope_dim = 17; }),
            "kv.rope_dim: expected 0 to head_dim_qk - head_dim_v (16), got 17");
  EXPECT_THAT(refusal([](KvLayer& kv) { kv.rope_dim = -1; }), HasSubstr("got -1"));
  EXPECT_EQ(refusal([](KvLayer& kv) { kv.k.dim_chunk = 32; }),
            "kv.k.dim_chunk: expected at least 64, got 32");
  EXPECT_EQ(refusal([](KvLayer& kv) { kv.rope.dim_chunk = 8; }),
            "kv.rope.dim_chunk: expected at least 16, got 8");
  EXPECT_EQ(refusal([](KvLayer& kv) { kv.rope.data = nullptr; }),
            "kv.rope: expected an array, got none");
  EXPECT_EQ(refusal([&](KvLayer& kv) { kv.v.data = memory + 1; }),
            "kv.v: expected kv.k, with a rope part, got another");
  EXPECT_THAT(refusal([](KvLayer& kv) { kv.v.token_stride = 80; }), HasSubstr("got another"));
  EXPECT_THAT(refusal([](KvLayer& kv) { kv.rope_dtype = DType::kFloat64; }),
              HasSubstr("kv.rope_dtype: expected float32, float16, bfloat16 or an fp8 type"));
  EXPECT_EQ(refusal([](KvLayer& kv) { kv.k_scale.value = 0; }),
            "kv.k_scale: expected a positive, finite number, got 0");
  layer.rotary = RotaryParams{};
  EXPECT_THAT(Refusal(CheckKvLayer(layer, good)), HasSubstr("rotary: expected none"));
}

TEST(ParamsCheckTest, AcceptsACacheWithoutBlocksOrMemory) {
  const KvView view = {.dim_chunk = 64};
  KvLayer kv = {.k = view,
                .v = view,
                .block_size = 16,
                .num_kv_heads = 2,
                .head_dim_qk = 64,
                .head_dim_v = 64};
  EXPECT_TRUE(CheckKvLayer(GoodParams(), kv).ok());
  kv.num_blocks = -1;
  EXPECT_EQ(Refusal(CheckKvLayer(GoodParams(), kv)), "kv.num_blocks: expected at least 0, got -1");
}

// Two rows: 2 queries over 5 keys, and 1 query over 3 keys. block_size 2, tables of 3 blocks.
struct TwoRows {
  std::vector<int32_t> query_start_loc = {0, 2, 3};
  std::vector<int32_t> seq_lens = {5, 3};
  std::vector<int32_t> table_row = {0, 1};
  std::vector<int32_t> key_start = {0, 0};
  std::vector<int32_t> block_table = {3, 1, 2, 4, 5, -9};
  std::vector<int32_t> tail_len = {0, 0};
  std::vector<uint64_t> tail_mask = {0, 0, 0};
  std::vector<uint8_t> custom_mask = {0, 0, 0, 0};
  std::vector<int64_t> custom_mask_offset = {-1, -1};
  AttentionParams layer = {.num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8};
  KvLayer kv = {.num_blocks = 6, .block_size = 2};

  absl::Status Check() const {
    const PagedBatch batch = {.query_start_loc = query_start_loc.data(),
                              .seq_lens = seq_lens.data(),
                              .table_row = table_row.data(),
                              .key_start = key_start.data(),
                              .block_table = block_table.data(),
                              .block_table_stride = 3,
                              .tail_len = tail_len.data(),
                              .tail_mask = tail_mask.data(),
                              .custom_mask = custom_mask.data(),
                              .custom_mask_offset = custom_mask_offset.data(),
                              .num_rows = 2,
                              .num_tokens = 4,
                              .max_query_len = 3,
                              .max_seq_len = 6,
                              .num_tables = 2,
                              .max_blocks = 3,
                              .custom_mask_bytes = std::ssize(custom_mask)};
    return CheckBatchArrays(layer, batch, kv);
  }
};

template <typename Change>
std::string RefusalOfRows(const Change& change) {
  TwoRows rows;
  EXPECT_TRUE(rows.Check().ok()) << rows.Check();
  change(rows);
  const absl::Status status = rows.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(BatchCheckTest, RejectsDecreasingOrNonzeroStartLocs) {
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) {
              rows.query_start_loc = {0, 2, 1};
            }),
            "query_start_loc[2]: expected 2 to 5 (max_query_len), got 1");
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) {
              rows.query_start_loc = {1, 2, 3};
            }),
            "query_start_loc[0]: expected 0 to 0 (the start), got 1");
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) {
              rows.query_start_loc = {0, 2, 5};
            }),
            "query_start_loc[2]: expected 0 to 4 (num_tokens), got 5");
}

TEST(BatchCheckTest, RejectsLengthsBeyondTheCapacityOrTheTable) {
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.seq_lens[1] = 7; }),
            "seq_lens[1]: expected 0 to 6 (max_seq_len), got 7");
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.seq_lens[0] = -1; }),
            "seq_lens[0]: expected 0 to 6 (max_seq_len), got -1");
  // Keys 4 to 6 of a table with 6 keys.
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.key_start[1] = 4; }),
            "key_start[1]: expected 0 to 3 (max_blocks * block_size - seq_len), got 4");
}

TEST(BatchCheckTest, RejectsRowsOutsideTheTables) {
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.table_row[0] = 2; }),
            "table_row[0]: expected 0 to 1 (num_tables - 1), got 2");
}

TEST(BatchCheckTest, RejectsOutOfRangeBlocksOnlyIfRead) {
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.block_table[1] = 6; }),
            "block_table[0][1]: expected 0 to 5 (a block of the cache), got 6");
  TwoRows rows;  // window of 1 token: queries at 3 and 4, so keys before 3 are not read
  rows.layer.window_left = 0;
  rows.block_table[0] = std::numeric_limits<int32_t>::min();
  EXPECT_TRUE(rows.Check().ok());
}

TEST(BatchCheckTest, RejectsTailsLongerThanTheRow) {
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.tail_len[1] = 4; }),
            "tail_len[1]: expected 0 to 3 (64 and seq_len), got 4");
}

TEST(BatchCheckTest, RejectsMasksBeyondTheirArray) {
  // Row 0 has 2 queries and 5 keys: 10 bits.
  EXPECT_EQ(RefusalOfRows([](TwoRows& rows) { rows.custom_mask_offset[0] = 3; }),
            "custom_mask_offset[0]: expected 0 to 2 (custom_mask_bytes minus the row's mask bytes, "
            "or -1), got 3");
  EXPECT_THAT(RefusalOfRows([](TwoRows& rows) { rows.custom_mask_offset[1] = -2; }),
              HasSubstr("custom_mask_offset[1]"));
  TwoRows rows;
  rows.custom_mask_offset = {2, 3};
  EXPECT_TRUE(rows.Check().ok());
}

TEST(BatchCheckTest, AcceptsGarbageInRowsWithoutKeysOrQueries) {
  TwoRows rows;
  rows.seq_lens[1] = 0;
  rows.custom_mask_offset[1] = -999;
  rows.table_row[1] = rows.key_start[1] = rows.tail_len[1] = -77;
  EXPECT_TRUE(rows.Check().ok());
  rows.seq_lens[1] = 3;
  rows.query_start_loc = {0, 2, 2};
  EXPECT_TRUE(rows.Check().ok());
}

TEST(BatchCheckTest, AcceptsGeneratedBatchesWithoutAllocating) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    const PagedBatch batch = fixture.Batch(OnHost);
    const KvLayer kv = fixture.Kv(OnHost);
    const AllocationCounter allocations;
    const absl::Status status = CheckBatchArrays(layer, batch, kv);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(status.ok()) << status;
  }
}

TEST(BatchCheckTest, RaggedPrefixSumsAreChecked) {
  const RaggedFixture fixture = MakeRaggedFixture({.seed = 3});
  RaggedBatch batch = fixture.Batch(OnHost);
  EXPECT_TRUE(CheckBatchArrays(batch).ok());
  batch.num_keys = 0;
  EXPECT_THAT(std::string(CheckBatchArrays(batch).message()), HasSubstr("(num_keys)"));
}

TEST(BatchCheckTest, MasksOfRaggedRowsAreChecked) {
  const std::vector<int32_t> loc = {0, 3, 3};
  const std::vector<uint8_t> mask(2);
  std::vector<int64_t> offsets = {0, -999};  // row 1 has no keys
  const RaggedBatch batch = {.query_start_loc = loc.data(),
                             .key_start_loc = loc.data(),
                             .custom_mask = mask.data(),
                             .custom_mask_offset = offsets.data(),
                             .num_rows = 2,
                             .num_tokens = 3,
                             .num_keys = 3,
                             .max_query_len = 3,
                             .max_seq_len = 3,
                             .custom_mask_bytes = 2};
  EXPECT_TRUE(CheckBatchArrays(batch).ok());
  offsets[0] = 1;
  EXPECT_THAT(std::string(CheckBatchArrays(batch).message()), HasSubstr("custom_mask_offset[0]"));
}

}  // namespace
}  // namespace reprise
