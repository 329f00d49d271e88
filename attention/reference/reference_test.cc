#include "reprise/attention/reference/reference.h"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr double kInf = std::numeric_limits<double>::infinity();

// One row whose last token is the only query. head_dim is 2 and block_size is 2. The table lists
// the blocks in descending order.
class OneQuery {
 public:
  explicit OneQuery(int seq_len) : seq_lens_{seq_len}, kv_(Options(seq_len)) {
    const int num_blocks = (seq_len + 1) / 2;
    for (int c = 0; c < num_blocks; ++c) block_table_.push_back(num_blocks - c);
    block_table_.push_back(-1);
    batch.query_start_loc = query_start_loc_.data();
    batch.seq_lens = seq_lens_.data();
    batch.block_table = block_table_.data();
    batch.block_table_stride = static_cast<int64_t>(block_table_.size());
    batch.num_rows = 1;
    batch.num_tokens = 1;
  }

  void SetKey(int key, std::array<double, 2> k, std::array<double, 2> v) {
    for (int d = 0; d < 2; ++d) {
      kv_.SetK(block_table_[key / 2], key % 2, 0, d, k[d]);
      kv_.SetV(block_table_[key / 2], key % 2, 0, d, v[d]);
    }
  }

  ReferenceResult<double> Attend() {
    KvLayer kv = kv_.View(OnHost);
    kv.k_scale = k_scale;
    kv.v_scale = v_scale;
    return ReferencePagedAttention<double>(layer, batch, {.data = q.data(), .head_stride = 2}, kv);
  }

  AttentionParams layer = {
      .num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 2, .head_dim_v = 2, .scale = 1.0f};
  Scale k_scale, v_scale;
  PagedBatch batch;
  std::array<float, 2> q = {1, 0};

 private:
  static KvMemoryOptions Options(int seq_len) {
    return {.num_blocks = (seq_len + 1) / 2 + 1,
            .block_size = 2,
            .num_kv_heads = 1,
            .head_dim_qk = 2,
            .head_dim_v = 2};
  }

  std::array<int32_t, 2> query_start_loc_ = {0, 1};
  std::array<int32_t, 1> seq_lens_;
  std::vector<int32_t> block_table_;
  KvMemory kv_;
};

TEST(ReferenceTest, SingleKeyYieldsItsValueAndScore) {
  OneQuery query(1);
  query.SetKey(0, {3, 9}, {5, -7});
  const auto result = query.Attend();
  EXPECT_THAT(result.out, ElementsAre(5, -7));
  EXPECT_THAT(result.lse, ElementsAre(3));  // 1 * 3 + 0 * 9
}

TEST(ReferenceTest, WeightsKeysByTheExponentialOfTheirScores) {
  OneQuery query(3);
  query.SetKey(0, {0, 0}, {1, 0});
  query.SetKey(1, {std::log(2.0), 0}, {0, 1});
  query.SetKey(2, {0, 0}, {1, 4});
  const auto result = query.Attend();  // weights 1/4, 1/2, 1/4, up to log 2 in float32
  EXPECT_THAT(result.out, Pointwise(DoubleNear(1e-7), {0.5, 1.5}));
  EXPECT_NEAR(result.lse[0], std::log(4.0), 1e-7);
}

TEST(ReferenceTest, DefaultScaleIsTheInverseRootOfHeadDim) {
  OneQuery query(1);
  query.layer.scale.reset();
  query.SetKey(0, {3, 0}, {1, 1});
  EXPECT_NEAR(query.Attend().lse[0], 3 / std::sqrt(2.0), 1e-6);
}

TEST(ReferenceTest, ScalesMultiplyScoresAndValues) {
  OneQuery query(1);
  const std::array<float, 4> scales = {0, 0, 0, 3};
  query.layer.q_scale.value = 2;
  query.k_scale = {.data = scales.data() + 3, .row_stride = 1, .head_stride = 1};
  query.v_scale.value = 10;
  query.SetKey(0, {1, 0}, {5, 7});
  const auto result = query.Attend();
  EXPECT_THAT(result.lse, ElementsAre(6));
  EXPECT_THAT(result.out, ElementsAre(50, 70));
}

// A latent and a rope part that are stored separately, with different scales, give the same result
// as one joined key.
TEST(ReferenceTest, SeparateLatentAndRopePartMatchTheJoinedKey) {
  KvMemoryOptions options = {.layout = KvMemoryLayout::kMla,
                             .num_blocks = 2,
                             .block_size = 2,
                             .num_kv_heads = 1,
                             .head_dim_qk = 5,
                             .head_dim_v = 3};
  KvMemory joined(options);
  options.layout = KvMemoryLayout::kMlaParts;
  options.dtype = DType::kFp8E4M3;
  options.rope_dtype = DType::kBFloat16;
  KvMemory parts(options);
  constexpr double kLatentScale = 0.5, kRopeScale = 8;
  for (int token = 0; token < 2; ++token) {
    for (int dim = 0; dim < 5; ++dim) {
      const double stored = (token * 5 + dim - 4) * 0.25;
      parts.SetK(1, token, 0, dim, stored);
      joined.SetK(1, token, 0, dim, stored * (dim < 3 ? kLatentScale : kRopeScale));
    }
  }
  const std::array<float, 10> q = {1, 0.5, -1, 0.25, -0.75, 2, -0.5, 1, 0.125, 0.5};
  const std::array<int32_t, 2> starts = {0, 2};
  const int32_t seq_len = 2, block = 1;
  const PagedBatch batch = {.query_start_loc = starts.data(),
                            .seq_lens = &seq_len,
                            .block_table = &block,
                            .num_rows = 1,
                            .num_tokens = 2};
  const AttentionParams layer = {
      .num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 5, .head_dim_v = 3};
  const TokenView queries = {.data = const_cast<float*>(q.data()), .token_stride = 5};
  KvLayer kv = parts.View(OnHost);
  kv.k_scale.value = kv.v_scale.value = kLatentScale;
  kv.rope_scale.value = kRopeScale;
  const auto got = ReferencePagedAttention<double>(layer, batch, queries, kv);
  const auto expected = ReferencePagedAttention<double>(layer, batch, queries, joined.View(OnHost));
  EXPECT_THAT(got.out, Pointwise(DoubleNear(1e-12), expected.out));
  EXPECT_THAT(got.lse, Pointwise(DoubleNear(1e-12), expected.lse));
  kv.rope_scale.value = kRopeScale / 2;
  EXPECT_GT(
      std::abs(ReferencePagedAttention<double>(layer, batch, queries, kv).lse[1] - got.lse[1]),
      1e-3);
}

TEST(ReferenceTest, ScalesAreReadByTableRowAndKvHead) {
  const std::array<float, 6> scales = {1, 2, 3, 4, 5, 6};  // [3 table rows, 2 heads]
  const std::array<int32_t, 2> loc = {0, 1};
  const std::array<int32_t, 1> one = {1};
  const std::array<int32_t, 1> table_row = {2};
  const std::array<int32_t, 3> table = {-1, -1, 1};
  PagedBatch batch = {.query_start_loc = loc.data(),
                      .seq_lens = one.data(),
                      .table_row = table_row.data(),
                      .block_table = table.data(),
                      .block_table_stride = 1,
                      .num_rows = 1,
                      .num_tokens = 1};
  KvMemory memory(
      {.num_blocks = 2, .block_size = 1, .num_kv_heads = 2, .head_dim_qk = 1, .head_dim_v = 1});
  for (int head = 0; head < 2; ++head) {
    memory.SetK(1, 0, head, 0, 1);
    memory.SetV(1, 0, head, 0, 1);
  }
  KvLayer kv = memory.View(OnHost);
  kv.v_scale = {.data = scales.data(), .row_stride = 2, .head_stride = 1};
  const AttentionParams layer = {
      .num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 1, .head_dim_v = 1};
  std::array<float, 4> q = {1, 1, 1, 1};
  const auto result =
      ReferencePagedAttention<double>(layer, batch, {.data = q.data(), .head_stride = 1}, kv);
  EXPECT_THAT(result.out, ElementsAre(5, 5, 6, 6));  // two q heads per kv head
}

TEST(ReferenceTest, AppliesSoftcapBeforeAlibi) {
  OneQuery query(3);
  const std::array<float, 1> slopes = {0.5f};
  query.layer.alibi_slopes = slopes.data();
  query.layer.softcap = 2.0f;
  query.layer.window_left = 2;
  query.SetKey(0, {100, 0}, {1, 1});    // 2 * tanh(50) - 0.5 * 2 = 1
  query.SetKey(1, {-1000, 0}, {1, 1});  // -2 - 0.5 = -2.5
  query.SetKey(2, {0, 0}, {1, 1});      // 0
  EXPECT_NEAR(query.Attend().lse[0], std::log(std::exp(1) + std::exp(-2.5) + 1), 1e-12);
}

TEST(ReferenceTest, AlibiGrowsWithDistanceInBothDirections) {
  OneQuery query(4);
  const std::array<float, 1> slopes = {0.5f};
  const std::array<int32_t, 1> positions = {1};
  query.layer.alibi_slopes = slopes.data();
  query.batch.query_positions = positions.data();
  query.batch.causal = false;
  for (int key : {0, 1, 2, 3}) query.SetKey(key, {0, 0}, {1, 1});
  const double sum = std::exp(-0.5) + 1 + std::exp(-0.5) + std::exp(-1.0);
  EXPECT_NEAR(query.Attend().lse[0], std::log(sum), 1e-12);
}

TEST(ReferenceTest, SlopesAndScalesAreReadByTableRowAndQHead) {
  const std::array<float, 6> slopes = {9,    9,     9,
                                       0.5f, 0.25f, 9};  // [2 table rows, 2 heads], row stride 3
  const std::array<float, 2> scales = {2, -3};
  const std::array<int32_t, 2> loc = {0, 1};
  const std::array<int32_t, 1> two = {2};
  const std::array<int32_t, 1> table_row = {1};
  const std::array<int32_t, 4> table = {-1, -1, 0, 1};
  const PagedBatch batch = {.query_start_loc = loc.data(),
                            .seq_lens = two.data(),
                            .table_row = table_row.data(),
                            .block_table = table.data(),
                            .block_table_stride = 2,
                            .num_rows = 1,
                            .num_tokens = 1};
  KvMemory memory(
      {.num_blocks = 2, .block_size = 1, .num_kv_heads = 1, .head_dim_qk = 1, .head_dim_v = 1});
  for (int block = 0; block < 2; ++block) {
    memory.SetK(block, 0, 0, 0, 1);
    memory.SetV(block, 0, 0, 0, 1);
  }
  AttentionParams layer = {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 1, .head_dim_v = 1};
  layer.alibi_slopes = slopes.data();
  layer.alibi_row_stride = 3;
  layer.q_head_scales = scales.data();
  std::array<float, 2> q = {1, 1};
  const auto result = ReferencePagedAttention<double>(
      layer, batch, {.data = q.data(), .head_stride = 1}, memory.View(OnHost));
  EXPECT_NEAR(result.lse[0], std::log(std::exp(2 - 0.5) + std::exp(2)), 1e-12);
  EXPECT_NEAR(result.lse[1], std::log(std::exp(-3 - 0.25) + std::exp(-3)), 1e-12);
}

TEST(ReferenceTest, SinkTakesWeightAndCountsInLse) {
  OneQuery query(1);
  const std::array<float, 1> sinks = {0.0f};
  query.layer.sinks = sinks.data();
  query.SetKey(0, {0, 0}, {8, 2});
  const auto result = query.Attend();
  EXPECT_THAT(result.out, ElementsAre(4, 1));  // the sink has half of the weight
  EXPECT_NEAR(result.lse[0], std::log(2.0), 1e-12);
}

TEST(ReferenceTest, QueryWithoutVisibleKeysYieldsZeroAndMinusInfinityDespiteSinks) {
  OneQuery query(2);  // the keys are NaN
  const std::array<float, 1> sinks = {3.0f};
  const std::array<int32_t, 1> positions = {-1};
  query.layer.sinks = sinks.data();
  query.batch.query_positions = positions.data();
  const auto result = query.Attend();
  EXPECT_THAT(result.out, ElementsAre(0, 0));
  EXPECT_THAT(result.lse, ElementsAre(-kInf));
}

TEST(ReferenceTest, ScoresBeyondTheRangeOfExpDoNotOverflow) {
  OneQuery query(2);
  query.SetKey(0, {5000, 0}, {1, 2});
  query.SetKey(1, {-5000, 0}, {3, 4});
  const auto result = query.Attend();
  EXPECT_THAT(result.out, ElementsAre(1, 2));
  EXPECT_THAT(result.lse, ElementsAre(5000));
}

TEST(ReferenceTest, RotatesQueryAndKeyByTheirPositions) {
  OneQuery query(2);  // frequency 1: rotates the query at position 1 by 1 rad, the key at 0 by 0
  query.layer.rotary = RotaryParams{};
  query.layer.window_right = 0;
  query.SetKey(0, {1, 0}, {1, 0});
  query.SetKey(1, {1, 0}, {0, 1});
  const auto result = query.Attend();  // scores cos(1) and 1
  const double weight = std::exp(std::cos(1.0)) / (std::exp(std::cos(1.0)) + std::exp(1.0));
  EXPECT_THAT(result.out, Pointwise(DoubleNear(1e-12), {weight, 1 - weight}));

  query.layer.rotary->rope_scale = 4.0f;  // a quarter of the angle
  EXPECT_NEAR(query.Attend().lse[0], std::log(std::exp(std::cos(0.25)) + std::exp(1.0)), 1e-12);
}

TEST(ReferenceTest, DoesNotRotateDimsBeyondRotaryDim) {
  const std::array<int32_t, 2> loc = {0, 1};
  std::array<float, 4> q = {0, 0, 1, 1};
  std::array<float, 4> k = {5, 5, 2, 3};
  std::array<float, 4> v = {1, 1, 1, 1};
  const std::array<int32_t, 1> far = {1000};
  const RaggedBatch batch = {.query_start_loc = loc.data(),
                             .key_start_loc = loc.data(),
                             .query_positions = far.data(),
                             .num_rows = 1,
                             .num_tokens = 1,
                             .num_keys = 1};
  const AttentionParams layer = {.num_q_heads = 1,
                                 .num_kv_heads = 1,
                                 .head_dim_qk = 4,
                                 .head_dim_v = 4,
                                 .scale = 1.0f,
                                 .rotary = RotaryParams{.rotary_dim = 2}};
  const auto result = ReferenceRaggedAttention<double>(layer, batch, {.data = q.data()},
                                                       {.data = k.data()}, {.data = v.data()});
  EXPECT_NEAR(result.lse[0], 5, 1e-12);  // 1 * 2 + 1 * 3, not rotated
}

// Compares the results of the same rows as a paged batch and as a ragged batch.
TEST(ReferenceTest, PagedMatchesRaggedOnTheSameKeys) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RaggedFixture fixture = MakeRaggedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const RaggedBatch ragged = fixture.Batch(OnHost);
    const AttentionParams layer = fixture.Layer(OnHost);
    // Skips layers whose parameters depend on the table row or on positions, which differ in the
    // paged batch below.
    if (layer.q_scale.row_stride > 0 || layer.rotary || layer.sparse) continue;
    if (layer.alibi_row_stride > 0) continue;
    const TokenView k = fixture.k.View(OnHost);
    const TokenView v = fixture.v.View(OnHost);
    const auto expected =
        ReferenceRaggedAttention<double>(layer, ragged, fixture.q.View(OnHost), k, v);

    // k and v are a cache of one block. Row r starts at key_start_loc[r].
    std::vector<int32_t> seq_lens;
    const std::vector<int32_t> table_row(ragged.num_rows, 0);
    std::vector<int32_t> positions(ragged.num_tokens);
    for (int r = 0; r < ragged.num_rows; ++r) {
      const BatchRow row = RowOf(ragged, r);
      seq_lens.push_back(row.seq_len);
      for (int i = 0; i < row.query_len; ++i) {
        positions[row.first_token + i] =
            static_cast<int32_t>(QueryPosition(row, i) + row.first_key);
      }
    }
    const int32_t block = 0;
    const PagedBatch paged = {.query_start_loc = ragged.query_start_loc,
                              .seq_lens = seq_lens.data(),
                              .table_row = table_row.data(),
                              .key_start = ragged.key_start_loc,
                              .block_table = &block,
                              .block_table_stride = 1,
                              .query_positions = positions.data(),
                              .custom_mask = ragged.custom_mask,
                              .custom_mask_offset = ragged.custom_mask_offset,
                              .causal = ragged.causal,
                              .num_rows = ragged.num_rows,
                              .num_tokens = ragged.num_tokens};
    const auto view = [&](const TokenView& tokens, int head_dim) {
      return KvView{.data = tokens.data,
                    .token_stride = tokens.token_stride,
                    .head_stride = tokens.head_stride,
                    .dim_chunk = head_dim};
    };
    const KvLayer kv = {.k = view(k, layer.head_dim_qk),
                        .v = view(v, layer.head_dim_v),
                        .dtype = k.dtype,
                        .num_blocks = 1,
                        .block_size = ragged.num_keys + 1};
    const auto result = ReferencePagedAttention<double>(layer, paged, fixture.q.View(OnHost), kv);
    ASSERT_THAT(result.out, Pointwise(DoubleNear(1e-12), expected.out));
  }
}

TEST(ReferenceTest, FloatIsCloseToDouble) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    const PagedBatch batch = fixture.Batch(OnHost);
    const auto exact =
        ReferencePagedAttention<double>(layer, batch, fixture.Q(OnHost), fixture.Kv(OnHost));
    const auto rounded =
        ReferencePagedAttention<float>(layer, batch, fixture.Q(OnHost), fixture.Kv(OnHost));
    for (size_t i = 0; i < exact.out.size(); ++i) {
      ASSERT_NEAR(rounded.out[i], exact.out[i], 1e-3);
    }
    for (size_t i = 0; i < exact.lse.size(); ++i) {
      if (exact.lse[i] == -kInf) {
        ASSERT_EQ(rounded.lse[i], -kInf);
      } else {
        ASSERT_NEAR(rounded.lse[i], exact.lse[i], 1e-3);
      }
    }
  }
}

}  // namespace
}  // namespace reprise
