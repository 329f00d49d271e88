#include "reprise/attention/testing/batch_generator.h"

#include <cmath>
#include <cstring>
#include <map>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

TEST(BatchGeneratorTest, EqualSeedsGiveEqualFixtures) {
  const PagedFixture a = MakePagedFixture({.seed = 7});
  const PagedFixture b = MakePagedFixture({.seed = 7});
  EXPECT_EQ(a.description, b.description);
  EXPECT_EQ(a.block_table, b.block_table);
  EXPECT_EQ(a.q.bytes, b.q.bytes);
}

TEST(BatchGeneratorTest, DrawsEveryAllowedFeature) {
  std::map<int, int> counts;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PagedFixture fixture =
        MakePagedFixture({.seed = seed, .allowed = FeatureSet::All().Without({Feature::kWindow})});
    for (int i = 0; i < static_cast<int>(Feature::kNumFeatures); ++i) {
      counts[i] += fixture.features.Has(static_cast<Feature>(i));
    }
    EXPECT_FALSE(fixture.layer.params.window_left.has_value());
  }
  for (int i = 0; i < static_cast<int>(Feature::kNumFeatures); ++i) {
    if (i == static_cast<int>(Feature::kWindow)) continue;
    EXPECT_GT(counts[i], 0) << "feature " << i;
  }
}

TEST(BatchGeneratorTest, FixturesHaveRequiredFeaturesAndSizes) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed,
                                                   .allowed = {},
                                                   .required = {Feature::kContextParallel},
                                                   .kv_dtype = DType::kFp8E5M2,
                                                   .layout = KvMemoryLayout::kKPacked,
                                                   .k_chunk = seed % 2 == 0 ? 0 : 8,
                                                   .block_size = 3,
                                                   .num_kv_heads = 2,
                                                   .group_size = 5,
                                                   .head_dim_qk = 32});
    EXPECT_GT(fixture.capacities.key_positions.world, 1);
    EXPECT_EQ(fixture.layer.params.num_q_heads, 10);
    const KvLayer kv = fixture.Kv(OnHost);
    EXPECT_EQ(kv.dtype, DType::kFp8E5M2);
    EXPECT_EQ(kv.block_size, 3);
    EXPECT_EQ(kv.k.dim_chunk, seed % 2 == 0 ? 16 : 8);
    EXPECT_FALSE(fixture.layer.params.softcap.has_value());
  }
}

TEST(BatchGeneratorTest, VisibleKeysAreNeverNaN) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const auto result = ReferencePagedAttention<double>(
        fixture.Layer(OnHost), fixture.Batch(OnHost), fixture.Q(OnHost), fixture.Kv(OnHost));
    for (double x : result.out) ASSERT_TRUE(std::isfinite(x));
    for (double x : result.lse) ASSERT_TRUE(std::isfinite(x) || x == -INFINITY);
  }
}

TEST(BatchGeneratorTest, RowsReferOnlyToBlocksOfTheCache) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const PagedBatch batch = fixture.Batch(OnHost);
    const KvLayer kv = fixture.Kv(OnHost);
    for (int r = 0; r < batch.num_rows; ++r) {
      const BatchRow row = RowOf(batch, r);
      ASSERT_LE(row.query_len, batch.max_query_len);
      ASSERT_LE(row.seq_len, batch.max_seq_len);
      if (row.seq_len == 0) continue;
      ASSERT_LT(row.table_row, batch.num_tables);
      for (int i = 0; i < row.query_len; ++i) {
        for (const VisibleKey& key : VisibleKeys(fixture.Layer(OnHost), row, i, 0)) {
          const int64_t column = (row.key_start + key.local) / kv.block_size;
          ASSERT_LT(column, batch.max_blocks);
          const int32_t block =
              batch.block_table[row.table_row * batch.block_table_stride + column];
          ASSERT_GT(block, 0);
          ASSERT_LT(block, kv.num_blocks);
        }
      }
    }
  }
}

TEST(BatchGeneratorTest, CommonPrefixHasTheSameBlocksInEveryRow) {
  int num_prefixes = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const PagedFixture fixture =
        MakePagedFixture({.seed = seed, .required = {Feature::kCommonPrefix}});
    SCOPED_TRACE(fixture.description);
    const PagedBatch batch = fixture.Batch(OnHost);
    const int block_size = fixture.Kv(OnHost).block_size;
    std::map<int64_t, int32_t> block_of;  // by local key
    for (int r = 0; r < batch.num_rows; ++r) {
      const BatchRow row = RowOf(batch, r);
      if (row.seq_len == 0 || row.query_len == 0) continue;
      ASSERT_LE(*batch.common_prefix_len, row.seq_len);
      // Entries left of this row's window are meaningless.
      for (int i = 0; i < row.query_len; ++i) {
        for (const VisibleKey& key : VisibleKeys(fixture.Layer(OnHost), row, i, 0)) {
          if (key.local >= *batch.common_prefix_len) continue;
          const int64_t column = (row.key_start + key.local) / block_size;
          const int32_t block =
              batch.block_table[row.table_row * batch.block_table_stride + column];
          ASSERT_EQ(block_of.emplace(key.local, block).first->second, block);
          ++num_prefixes;
        }
      }
    }
  }
  EXPECT_GT(num_prefixes, 1000);
}

// A device test copies every array. This test copies to other host memory and wipes the originals.
TEST(BatchGeneratorTest, FixtureWorksFromCopies) {
  PagedFixture fixture = MakePagedFixture({.seed = 11});
  const auto result = ReferencePagedAttention<double>(fixture.Layer(OnHost), fixture.Batch(OnHost),
                                                      fixture.Q(OnHost), fixture.Kv(OnHost));
  std::vector<std::vector<char>> copies;
  const Placement copy = [&](const void* host, size_t num_bytes) -> void* {
    copies.emplace_back(num_bytes);
    std::memcpy(copies.back().data(), host, num_bytes);
    return copies.back().data();
  };
  const AttentionParams layer = fixture.Layer(copy);
  const PagedBatch batch = fixture.Batch(copy);
  const TokenView q = fixture.Q(copy);
  const KvLayer kv = fixture.Kv(copy);
  fixture = {};
  EXPECT_EQ(ReferencePagedAttention<double>(layer, batch, q, kv).out, result.out);
}

TEST(BatchGeneratorTest, VisibleKeysOfRaggedFixturesAreFinite) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const RaggedFixture fixture = MakeRaggedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    const auto result = ReferenceRaggedAttention<double>(
        fixture.Layer(OnHost), fixture.Batch(OnHost), fixture.q.View(OnHost),
        fixture.k.View(OnHost), fixture.v.View(OnHost));
    for (double x : result.out) ASSERT_TRUE(std::isfinite(x));
  }
}

// Returns the sizes of all arrays that a fixture places.
template <typename Fixture>
std::vector<size_t> SizesOf(const Fixture& fixture) {
  std::vector<size_t> sizes;
  const Placement note = [&](const void* host, size_t num_bytes) {
    sizes.push_back(num_bytes);
    return OnHost(host, num_bytes);
  };
  fixture.Layer(note);
  fixture.Batch(note);
  if constexpr (std::is_same_v<Fixture, PagedFixture>) {
    fixture.Q(note);
    fixture.Kv(note);
    fixture.New(note);
  } else {
    for (const TokenArray* tokens : {&fixture.q, &fixture.k, &fixture.v}) tokens->View(note);
  }
  return sizes;
}

void ExpectFinite(const ReferenceResult<double>& result) {
  for (double x : result.out) ASSERT_TRUE(std::isfinite(x));
  for (double x : result.lse) ASSERT_TRUE(std::isfinite(x) || x == -INFINITY);
}

TEST(BatchGeneratorTest, PairHasEqualShapesAndDifferentContents) {
  int num_differ = 0;
  int num_padded = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto [first, second] = MakePagedFixturePair({.seed = seed, .allowed = FeatureSet::All()});
    SCOPED_TRACE(second.description);
    EXPECT_EQ(SizesOf(first), SizesOf(second));
    const PagedBatch a = first.Batch(OnHost);
    const PagedBatch b = second.Batch(OnHost);
    EXPECT_EQ(a.num_rows, b.num_rows);
    EXPECT_EQ(a.num_tokens, b.num_tokens);
    EXPECT_EQ(a.block_table_stride, b.block_table_stride);
    EXPECT_EQ(a.key_positions.world, b.key_positions.world);
    EXPECT_EQ(a.key_positions.rank, b.key_positions.rank);
    EXPECT_EQ(a.causal, b.causal);
    const KvLayer a_kv = first.Kv(OnHost);
    const KvLayer b_kv = second.Kv(OnHost);
    EXPECT_EQ(a_kv.num_blocks, b_kv.num_blocks);
    EXPECT_EQ(a_kv.k.block_stride, b_kv.k.block_stride);
    EXPECT_EQ(a_kv.v.head_stride, b_kv.v.head_stride);
    EXPECT_EQ(first.layer.params.window_left, second.layer.params.window_left);
    EXPECT_EQ(first.layer.params.rotary.has_value(), second.layer.params.rotary.has_value());
    EXPECT_EQ(first.layer.q_scale.row_stride, second.layer.q_scale.row_stride);
    EXPECT_EQ(first.q.token_stride, second.q.token_stride);
    EXPECT_EQ(first.q.offset, second.q.offset);
    num_differ += first.seq_lens != second.seq_lens && first.q.bytes != second.q.bytes;
    const PagedFixture alone = MakePagedFixture({.seed = seed, .allowed = FeatureSet::All()});
    num_padded += alone.seq_lens.size() < first.seq_lens.size();
    for (const PagedFixture* fixture : {&first, &second}) {
      ASSERT_NO_FATAL_FAILURE(ExpectFinite(ReferencePagedAttention<double>(
          fixture->Layer(OnHost), fixture->Batch(OnHost), fixture->Q(OnHost), fixture->Kv(OnHost),
          DType::kFloat64, fixture->New(OnHost))));
    }
  }
  EXPECT_GT(num_differ, 250);
  EXPECT_GT(num_padded, 50);
}

TEST(BatchGeneratorTest, PaddingOfAPairDoesNotChangeResults) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const PagedFixture alone = MakePagedFixture({.seed = seed});
    const PagedFixture padded = MakePagedFixturePair({.seed = seed}).first;
    SCOPED_TRACE(alone.description);
    const auto result = [](const PagedFixture& fixture) {
      return ReferencePagedAttention<double>(fixture.Layer(OnHost), fixture.Batch(OnHost),
                                             fixture.Q(OnHost), fixture.Kv(OnHost))
          .out;
    };
    const std::vector<double> expected = result(alone);
    std::vector<double> got = result(padded);
    ASSERT_GE(got.size(), expected.size());
    for (size_t i = expected.size(); i < got.size(); ++i) ASSERT_EQ(got[i], 0);
    got.resize(expected.size());
    ASSERT_EQ(got, expected);
  }
}

TEST(BatchGeneratorTest, RaggedPairHasEqualShapesAndDifferentContents) {
  int num_differ = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const auto [first, second] = MakeRaggedFixturePair({.seed = seed});
    SCOPED_TRACE(second.description);
    EXPECT_EQ(SizesOf(first), SizesOf(second));
    EXPECT_EQ(first.capacities.num_keys, second.capacities.num_keys);
    EXPECT_EQ(first.k.head_stride, second.k.head_stride);
    num_differ += first.key_start_loc != second.key_start_loc && first.k.bytes != second.k.bytes;
    for (const RaggedFixture* fixture : {&first, &second}) {
      ASSERT_NO_FATAL_FAILURE(ExpectFinite(ReferenceRaggedAttention<double>(
          fixture->Layer(OnHost), fixture->Batch(OnHost), fixture->q.View(OnHost),
          fixture->k.View(OnHost), fixture->v.View(OnHost))));
    }
  }
  EXPECT_GT(num_differ, 250);
}

}  // namespace
}  // namespace reprise
