#include "reprise/attention/visibility.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Positions of the keys that a query sees.
std::vector<int64_t> Positions(const AttentionParams& layer, const BatchRow& row, int query,
                               int q_head = 0) {
  std::vector<int64_t> positions;
  for (const VisibleKey& key : VisibleKeys(layer, row, query, q_head)) {
    positions.push_back(key.position);
  }
  return positions;
}

AttentionParams OneHead() {
  return {.num_q_heads = 1, .num_kv_heads = 1, .head_dim_qk = 1, .head_dim_v = 1};
}

TEST(VisibilityTest, ADecodeQuerySeesTheWholeRow) {
  const BatchRow row = {.query_len = 1, .seq_len = 4};
  EXPECT_THAT(Positions(OneHead(), row, 0), ElementsAre(0, 1, 2, 3));
}

TEST(VisibilityTest, QueriesOfAChunkAreAlignedToTheLastKey) {
  const BatchRow row = {.query_len = 2, .seq_len = 4};  // positions 2 and 3
  EXPECT_THAT(Positions(OneHead(), row, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(Positions(OneHead(), row, 1), ElementsAre(0, 1, 2, 3));
}

TEST(VisibilityTest, VirtualRowPositionsBeginAtKeyStart) {
  const BatchRow row = {.query_len = 1, .seq_len = 3, .key_start = 8};
  EXPECT_EQ(QueryPosition(row, 0), 10);
  EXPECT_THAT(Positions(OneHead(), row, 0), ElementsAre(8, 9, 10));
}

TEST(VisibilityTest, CrossAttentionSeesAllKeysFromEveryQuery) {
  const BatchRow row = {.query_len = 5, .seq_len = 2, .causal = false};
  EXPECT_THAT(Positions(OneHead(), row, 0), ElementsAre(0, 1));
}

TEST(VisibilityTest, CausalQueriesBeforeTheFirstKeySeeNoKeys) {
  const BatchRow row = {.query_len = 3, .seq_len = 2};  // positions -1, 0, 1
  EXPECT_THAT(Positions(OneHead(), row, 0), IsEmpty());
  EXPECT_THAT(Positions(OneHead(), row, 1), ElementsAre(0));
}

TEST(VisibilityTest, WindowLeftOfTwoSpansThreeTokens) {
  AttentionParams layer = OneHead();
  layer.window_left = 2;
  const BatchRow row = {.query_len = 2, .seq_len = 8};
  EXPECT_THAT(Positions(layer, row, 0), ElementsAre(4, 5, 6));
  EXPECT_THAT(Positions(layer, row, 1), ElementsAre(5, 6, 7));
  layer.window_right = 1;
  const BatchRow encoder = {.query_len = 8, .seq_len = 8, .causal = false};
  EXPECT_THAT(Positions(layer, encoder, 3), ElementsAre(1, 2, 3, 4));
}

// Three drafts after a prefix of 2: tokens a and b (children of the root), and c (child of b).
TEST(VisibilityTest, ATreeQuerySeesThePrefixAndItsPath) {
  const std::array<uint64_t, 3> masks = {0b001, 0b010, 0b110};
  const std::array<int32_t, 3> depths = {2, 2, 3};
  const BatchRow row = {.query_len = 3,
                        .seq_len = 5,
                        .tail_len = 3,
                        .query_positions = depths.data(),
                        .tail_mask = masks.data()};
  using Keys = std::vector<VisibleKey>;
  EXPECT_EQ(VisibleKeys(OneHead(), row, 0, 0), (Keys{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(VisibleKeys(OneHead(), row, 1, 0), (Keys{{0, 0}, {1, 1}, {3, 2}}));
  EXPECT_EQ(VisibleKeys(OneHead(), row, 2, 0), (Keys{{0, 0}, {1, 1}, {3, 2}, {4, 3}}));
}

TEST(VisibilityTest, AWindowCountsDepthInATreeNotSlots) {
  AttentionParams layer = OneHead();
  layer.window_left = 1;
  const std::array<uint64_t, 1> masks = {0b110};
  const std::array<int32_t, 1> depths = {3};
  const BatchRow row = {.query_len = 1,
                        .seq_len = 5,
                        .tail_len = 3,
                        .query_positions = depths.data(),
                        .tail_mask = masks.data()};
  EXPECT_THAT(Positions(layer, row, 0), ElementsAre(2, 3));  // slots 3 and 4
}

// Bits of 2 queries and 5 keys, least significant bit first: query 1 begins at bit 5.
TEST(VisibilityTest, CustomMaskReplacesCausality) {
  const std::array<uint8_t, 2> mask = {0b10111001, 0b10};  // keys 0, 3, 4; then 0, 2, 4
  const BatchRow row = {.query_len = 2, .seq_len = 5, .custom_mask = mask.data()};
  EXPECT_THAT(Positions(OneHead(), row, 0), ElementsAre(0, 3, 4));
  EXPECT_THAT(Positions(OneHead(), row, 1), ElementsAre(0, 2, 4));
  EXPECT_FALSE(IsInterval(OneHead(), row));
  EXPECT_EQ(KeyInterval(OneHead(), row, 0), (KeyRange{0, 5}));
  AttentionParams layer = OneHead();
  layer.window_left = 2;  // the queries are at positions 3 and 4
  EXPECT_THAT(Positions(layer, row, 0), ElementsAre(3, 4));
  EXPECT_THAT(Positions(layer, row, 1), ElementsAre(2, 4));
}

TEST(VisibilityTest, EachRowHasItsOwnMaskOrNoMask) {
  const std::array<int32_t, 4> loc = {0, 1, 2, 3};
  const std::array<int32_t, 3> seq_lens = {5, 1, 0};
  const std::array<uint8_t, 4> mask = {};
  const std::array<int64_t, 3> offsets = {2, -1, -777};
  PagedBatch batch = {.query_start_loc = loc.data(),
                      .seq_lens = seq_lens.data(),
                      .custom_mask = mask.data(),
                      .custom_mask_offset = offsets.data(),
                      .num_rows = 3};
  EXPECT_EQ(RowOf(batch, 0).custom_mask, mask.data() + 2);
  EXPECT_EQ(RowOf(batch, 1).custom_mask, nullptr);
  EXPECT_EQ(RowOf(batch, 2).custom_mask, nullptr);
  const std::array<int32_t, 4> keys = {0, 5, 6, 6};
  const RaggedBatch ragged = {.query_start_loc = loc.data(),
                              .key_start_loc = keys.data(),
                              .custom_mask = mask.data(),
                              .custom_mask_offset = offsets.data(),
                              .num_rows = 3};
  EXPECT_EQ(RowOf(ragged, 0).custom_mask, mask.data() + 2);
  EXPECT_EQ(RowOf(ragged, 1).custom_mask, nullptr);
  EXPECT_EQ(RowOf(ragged, 2).custom_mask, nullptr);
}

TEST(VisibilityTest, RankOfTwoSeesEverySecondRunOfTokens) {
  const std::array<int32_t, 1> positions = {9};
  const BatchRow row = {.query_len = 1,
                        .seq_len = 6,
                        .query_positions = positions.data(),
                        .key_positions = {.rank = 1, .world = 2, .interleave = 2}};
  // Runs of rank 1: 2 3, 6 7, 10 11. The last run is after the query.
  EXPECT_THAT(Positions(OneHead(), row, 0), ElementsAre(2, 3, 6, 7));
}

TEST(VisibilityTest, SparseHeadSeesLocalAndStridedBlocks) {
  AttentionParams layer = OneHead();
  layer.num_q_heads = 2;
  layer.sparse = BlockSparseParams{
      .local_blocks = 1, .vertical_stride = 3, .block_size = 2, .head_sliding_step = 1};
  const BatchRow row = {.query_len = 1, .seq_len = 10};  // query block 4, a local block
  // Head 0, off 1: block 2. Head 1, off 2: blocks 1 and 4.
  EXPECT_THAT(Positions(layer, row, 0, 0), ElementsAre(4, 5, 8, 9));
  EXPECT_THAT(Positions(layer, row, 0, 1), ElementsAre(2, 3, 8, 9));
  layer.sparse->vertical_stride = 1;  // not sparse
  EXPECT_THAT(Positions(layer, row, 0, 0).size(), 10);
}

// A second implementation of the definition, with whole tables instead of formulas: the position of
// each local key, then one filter per rule.
struct BruteForce {
  const AttentionParams& layer;
  const BatchRow& row;

  // Positions of the rank's keys, found by walking over all positions of the sequence.
  std::vector<int64_t> RankPositions() const {
    std::vector<int64_t> held;
    for (int64_t p = 0; static_cast<int64_t>(held.size()) < row.key_start + row.seq_len; ++p) {
      if (p / row.key_positions.interleave % row.key_positions.world == row.key_positions.rank) {
        held.push_back(p);
      }
    }
    held.erase(held.begin(), held.begin() + row.key_start);
    return held;
  }

  std::map<int, int64_t> Seen(int query, int q_head) const {
    const int64_t p = row.query_positions ? row.query_positions[query]
                                          : row.key_start + row.seq_len - (row.query_len - query);
    std::map<int, int64_t> seen;
    const std::vector<int64_t> held = RankPositions();
    int64_t next_on_path = row.key_start + row.seq_len - row.tail_len;
    for (int l = 0; l < row.seq_len; ++l) {
      const int from_end = row.seq_len - l;  // 1 for the last key
      if (from_end <= row.tail_len) {
        if (row.tail_mask[query] & (uint64_t{1} << (row.tail_len - from_end))) {
          seen[l] = next_on_path++;
        }
      } else if (!row.causal || row.tail_len > 0 || held[l] <= p) {
        seen[l] = held[l];
      }
    }
    std::erase_if(seen, [&](const auto& key) {
      const int64_t distance = key.second - p;  // positive: to the right
      return (layer.window_left && -distance > *layer.window_left) ||
             (layer.window_right && distance > *layer.window_right) ||
             (layer.sparse && !SparseSees(p, key.second, q_head));
    });
    return seen;
  }

  bool SparseSees(int64_t p, int64_t key_position, int q_head) const {
    const BlockSparseParams& s = *layer.sparse;
    if (s.vertical_stride == 1) return true;
    const auto block_of = [&](int64_t position) {
      int64_t block = 0;
      while (position < 0) position += s.block_size, --block;
      while (position >= s.block_size) position -= s.block_size, ++block;
      return block;
    };
    const int step = s.head_sliding_step;
    const int off =
        step < 0
            ? (s.tp_rank * layer.num_kv_heads + q_head * layer.num_kv_heads / layer.num_q_heads) *
                      -step +
                  1
            : (s.tp_rank * layer.num_q_heads + q_head) * step + 1;
    return block_of(p) - block_of(key_position) < s.local_blocks ||
           (block_of(key_position) + off) % s.vertical_stride == 0;
  }
};

struct RandomRow {
  AttentionParams layer;
  std::vector<int32_t> query_positions;
  std::vector<uint64_t> tail_mask;
  BatchRow row;
};

RandomRow DrawRow(Random& random) {
  RandomRow drawn;
  drawn.layer = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 1, .head_dim_v = 1};
  BatchRow& row = drawn.row;
  row.seq_len = random.Int(0, 70);
  row.query_len = random.Int(1, 8);
  row.causal = !random.OneIn(4);
  if (random.OneIn(3)) row.key_start = random.Int(0, 40);
  if (random.OneIn(3)) drawn.layer.window_left = random.Int(0, 30);
  if (random.OneIn(4)) drawn.layer.window_right = random.Int(0, 30);
  if (random.OneIn(4)) {
    row.tail_len = random.Int(0, std::min(64, row.seq_len));
    for (int i = 0; i < row.query_len; ++i) drawn.tail_mask.push_back(random.Bits());
    row.tail_mask = drawn.tail_mask.data();
  } else if (random.OneIn(3)) {
    const int world = random.Int(1, 4);
    row.key_positions = {
        .rank = random.Int(0, world - 1), .world = world, .interleave = random.Int(1, 9)};
  }
  if (random.OneIn(2) || row.key_positions.world > 1) {
    for (int i = 0; i < row.query_len; ++i) {
      drawn.query_positions.push_back(random.Int(-3, 70 * row.key_positions.world));
    }
    row.query_positions = drawn.query_positions.data();
  }
  if (random.OneIn(4)) {
    drawn.layer.sparse = BlockSparseParams{.local_blocks = random.Int(0, 3),
                                           .vertical_stride = random.Int(1, 4),
                                           .block_size = random.Int(1, 16),
                                           .head_sliding_step = random.Int(-2, 2),
                                           .tp_rank = random.Int(0, 2)};
  }
  return drawn;
}

TEST(VisibilityTest, RandomRowsMatchBruteForceMasks) {
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const RandomRow drawn = DrawRow(random);
    const BruteForce brute_force{drawn.layer, drawn.row};
    for (int query = 0; query < drawn.row.query_len; ++query) {
      const int q_head = random.Int(0, 3);
      std::map<int, int64_t> seen;
      for (const VisibleKey& key : VisibleKeys(drawn.layer, drawn.row, query, q_head)) {
        seen[key.local] = key.position;
      }
      const std::map<int, int64_t> expected = brute_force.Seen(query, q_head);
      ASSERT_EQ(seen, expected) << "query " << query;

      const KeyRange range = KeyInterval(drawn.layer, drawn.row, query);
      ASSERT_GE(range.begin, 0);
      ASSERT_LE(range.end, drawn.row.seq_len);
      if (!expected.empty()) {
        ASSERT_LE(range.begin, expected.begin()->first);
        ASSERT_GE(range.end, expected.rbegin()->first + 1);
      }
      if (IsInterval(drawn.layer, drawn.row)) {
        ASSERT_EQ(range.end - range.begin, static_cast<int>(expected.size()));
      }
    }
  }
}

TEST(VisibilityTest, RowOfReplacesAbsentArraysWithDefaults) {
  const std::array<int32_t, 3> loc = {0, 2, 3};
  const std::array<int32_t, 2> seq_lens = {5, 1};
  PagedBatch batch;
  batch.query_start_loc = loc.data();
  batch.seq_lens = seq_lens.data();
  batch.num_rows = 2;
  const BatchRow plain = RowOf(batch, 1);
  EXPECT_EQ(plain.first_token, 2);
  EXPECT_EQ(plain.query_len, 1);
  EXPECT_EQ(plain.seq_len, 1);
  EXPECT_EQ(plain.key_start, 0);
  EXPECT_EQ(plain.table_row, 1);
  EXPECT_EQ(plain.tail_len, 0);

  const std::array<int32_t, 2> table_row = {7, 0};
  const std::array<int32_t, 2> key_start = {0, 64};
  const std::array<int32_t, 3> positions = {0, 1, 99};
  batch.table_row = table_row.data();
  batch.key_start = key_start.data();
  batch.query_positions = positions.data();
  const BatchRow given = RowOf(batch, 1);
  EXPECT_EQ(given.table_row, 0);
  EXPECT_EQ(given.key_start, 64);
  EXPECT_EQ(QueryPosition(given, 0), 99);
}

TEST(VisibilityTest, RowOfReadsOnlyQueriesOfRowsWithoutKeys) {
  const std::array<int32_t, 2> loc = {0, 1};
  const std::array<int32_t, 1> none = {0};
  const std::array<int32_t, 1> garbage = {-123456789};
  PagedBatch batch = {.query_start_loc = loc.data(),
                      .seq_lens = none.data(),
                      .table_row = garbage.data(),
                      .key_start = garbage.data(),
                      .query_positions = garbage.data(),
                      .tail_len = garbage.data(),
                      .num_rows = 1};
  const BatchRow row = RowOf(batch, 0);
  EXPECT_EQ(row.query_len, 1);
  EXPECT_EQ(row.table_row, 0);
  EXPECT_EQ(row.key_start, 0);
  EXPECT_EQ(row.tail_len, 0);
}

TEST(VisibilityTest, RowOfComputesSeqLenOfRaggedBatches) {
  const std::array<int32_t, 3> loc = {0, 3, 5};
  const RaggedBatch batch = {
      .query_start_loc = loc.data(), .key_start_loc = loc.data(), .causal = false, .num_rows = 2};
  const BatchRow row = RowOf(batch, 1);
  EXPECT_EQ(row.first_key, 3);
  EXPECT_EQ(row.seq_len, 2);
  EXPECT_EQ(row.table_row, 1);
  EXPECT_FALSE(row.causal);
}

}  // namespace
}  // namespace reprise
