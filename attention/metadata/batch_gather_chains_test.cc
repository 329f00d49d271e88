#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Memory = BuilderMemory<BatchGatherArgs>;

std::vector<int32_t> Ints(const int32_t* data, int count) { return {data, data + count}; }

// Two sequences of 5 and 9 tokens, in tables {3, 1, 4} and {2, 6, 5}, with block_size 4 and
// max_seq_len 10.
class TwoChains : public ::testing::Test {
 protected:
  TwoChains() {
    args.table_row = slots;
    args.query_lens = num_drafts;
    args.num_verified = 1;
    args.table_seq_lens = seq_len;
    args.seq_len_form = SeqLenForm::kBeforeStep;
    args.first_token = first_token;
    args.tokens = tokens;
    args.token_stride = 3;
    args.table = {entries, 3, 2, 3, 4, 7};
    args.past_limit = PastLimit::kClip;
    args.null_blocks = NullBlocks::kByRetention;
    args.max_seq_len = 10;
    args.num_rows = 3;
    args.num_tokens = 8;
    args.max_query_len = 4;
    args.arrays = {token_ids, positions, slot_mapping, query_start_loc, seq_lens,
                   table_row, logits,    nullptr,      nullptr,         row_faults};
  }

  int32_t slots[3] = {0, 1, -1};
  int32_t seq_len[2] = {5, 9};
  int32_t num_drafts[3] = {3, 3, 99};
  int32_t first_token[2] = {70, 80};
  int32_t tokens[9] = {71, 72, 73, 81, 82, 83, -1, -1, -1};
  int32_t entries[6] = {3, 1, 4, 2, 6, 5};
  int32_t token_ids[8], positions[8], query_start_loc[4], seq_lens[3], table_row[3], logits[3],
      row_faults[3];
  int64_t slot_mapping[8];
  BatchGatherArgs args;
};

TEST_F(TwoChains, DraftsBeyondTheContextLimitAreClipped) {
  const absl::StatusOr<PagedBatch> batch = BuildBatchGather(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(Ints(query_start_loc, 4), ElementsAre(0, 4, 5, 5));
  EXPECT_THAT(Ints(positions, 8), ElementsAre(5, 6, 7, 8, 9, 0, 0, 0));
  EXPECT_THAT(Ints(token_ids, 8), ElementsAre(70, 71, 72, 73, 80, 0, 0, 0));
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(9, 10, 0));
  EXPECT_THAT(Ints(table_row, 3), ElementsAre(0, 1, 0));
  EXPECT_THAT(Ints(logits, 3), ElementsAre(3, 4, 0));
  EXPECT_THAT(Ints(row_faults, 3), ElementsAre(0, 0, 0));
  // Row 0: block 1, offsets 1 to 3; block 4, offset 0. Row 1: block 5, offset 1.
  EXPECT_THAT(std::vector<int64_t>(slot_mapping, slot_mapping + 8),
              ElementsAre(5, 6, 7, 16, 21, -1, -1, -1));
  EXPECT_TRUE(batch->causal);
  EXPECT_EQ(batch->query_positions, nullptr);
  EXPECT_EQ(batch->max_query_len, 4);
}

TEST_F(TwoChains, SequenceAtTheLimitBecomesAnEmptyRowWithoutFault) {
  seq_len[0] = 10;
  ASSERT_TRUE(BuildBatchGather(args).ok());
  EXPECT_THAT(Ints(query_start_loc, 4), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(0, 10, 0));
}

TEST_F(TwoChains, GlobalPositionsAreClippedToInt32) {
  // 4096 blocks of 2^20 tokens: the table has room for more tokens than int32 can count.
  std::vector<int32_t> wide_table(2 * 4096, 1);
  args.table = {wide_table.data(), 4096, 2, 4096, 1 << 20, 2};
  args.max_seq_len = INT32_MAX;
  args.key_positions = {.rank = 1, .world = 2, .interleave = 1};
  seq_len[0] = INT32_MAX - 2;
  seq_len[1] = INT32_MAX;
  const absl::StatusOr<PagedBatch> batch = BuildBatchGather(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(Ints(query_start_loc, 4), ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(Ints(positions, 3), ElementsAre(INT32_MAX - 2, INT32_MAX - 1, 0));
  EXPECT_THAT(Ints(seq_lens, 3),
              ElementsAre(INT32_MAX / 2, 0, 0));  // odd positions belong to rank 1
}

TEST_F(TwoChains, ContextPartHasOnlyEarlierKeysAndIsNotCausal) {
  args.part = KeyPart::kContext;
  const absl::StatusOr<PagedBatch> batch = BuildBatchGather(args);
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(5, 9, 0));
  EXPECT_FALSE(batch->causal);
  EXPECT_EQ(batch->query_positions, positions);
}

TEST_F(TwoChains, RowWithoutABlockIsInertAndTheNextRowIsLive) {
  entries[1] = 0;  // row 0's first new tokens are in the null block
  BatchGatherOnHost(args);
  EXPECT_THAT(Ints(row_faults, 3), ElementsAre(static_cast<int>(RowFault::kNoBlock), 0, 0));
  EXPECT_THAT(Ints(query_start_loc, 4), ElementsAre(0, 4, 5, 5));
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(0, 10, 0));
  EXPECT_THAT(std::vector<int64_t>(slot_mapping, slot_mapping + 5),
              ElementsAre(-1, -1, -1, -1, 21));
}

TEST_F(TwoChains, TokensInAllowedNullBlocksAreNotWritten) {
  entries[1] = 0;
  args.null_blocks = NullBlocks::kAllowed;
  ASSERT_TRUE(BuildBatchGather(args).ok());
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(9, 10, 0));
  EXPECT_THAT(std::vector<int64_t>(slot_mapping, slot_mapping + 5),
              ElementsAre(-1, -1, -1, 16, 21));
}

TEST_F(TwoChains, TokensBeyondTheLimitCauseAFaultWithoutClipping) {
  args.past_limit = PastLimit::kFault;
  int32_t num_faults = -1;
  args.num_faults = &num_faults;
  BatchGatherOnHost(args);
  EXPECT_THAT(Ints(row_faults, 3), ElementsAre(0, static_cast<int>(RowFault::kLength), 0));
  EXPECT_THAT(Ints(query_start_loc, 4), ElementsAre(0, 4, 4, 4));
  EXPECT_EQ(num_faults, 1);
}

TEST_F(TwoChains, AcceptsLengthsByRowInAnyForm) {
  const int32_t with_step[] = {9, 13, 0};  // the drafts of row 1 exceed the limit
  args.table_seq_lens = nullptr;
  args.seq_lens = with_step;
  args.seq_len_form = SeqLenForm::kWithStep;
  ASSERT_TRUE(BuildBatchGather(args).ok());
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(9, 10, 0));
  const int32_t without_drafts[] = {6, 10, 0};
  args.seq_lens = without_drafts;
  args.seq_len_form = SeqLenForm::kWithoutDrafts;
  ASSERT_TRUE(BuildBatchGather(args).ok());
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(9, 10, 0));
  EXPECT_THAT(Ints(positions, 8), ElementsAre(5, 6, 7, 8, 9, 0, 0, 0));
}

TEST_F(TwoChains, TokensBeyondTheCapacityMakeTheirRowInert) {
  args.num_tokens = 3;
  BatchGatherOnHost(args);
  EXPECT_THAT(Ints(row_faults, 3),
              ElementsAre(static_cast<int>(RowFault::kNoRoom), static_cast<int>(RowFault::kNoRoom),
                          static_cast<int>(RowFault::kNone)));
  EXPECT_THAT(Ints(query_start_loc, 4), ElementsAre(0, 3, 3, 3));
  EXPECT_THAT(Ints(seq_lens, 3), ElementsAre(0, 0, 0));
}

TEST_F(TwoChains, RejectsInvalidArguments) {
  const auto refusal = [&] {
    const absl::Status status = BuildBatchGather(args).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  slots[1] = 2;
  EXPECT_EQ(refusal(), "rows[1]: its table row is not one of the table: table row 2 of 2");
  slots[1] = 1;
  seq_len[1] = 11;
  EXPECT_EQ(refusal(),
            "rows[1]: a length or a count is negative or too large: table row 1, seq_len 11, "
            "query_len 4, max_query_len 4, limit 10, num_tokens 8");
  seq_len[1] = 9;
  num_drafts[0] = 4;
  EXPECT_THAT(refusal(), HasSubstr("query_len 5, max_query_len 4"));
  num_drafts[0] = -1;
  EXPECT_THAT(refusal(), StartsWith("rows[0]: a length"));
  num_drafts[0] = 3;
  args.table.block_size = 0;
  EXPECT_EQ(refusal(), "table.block_size: expected at least 1, got 0");
  args.table.block_size = 4;
  args.max_query_len = 0;
  EXPECT_EQ(refusal(), "max_query_len: expected at least 1, got 0");
  args.max_query_len = 4;
  args.max_seq_len = -1;
  EXPECT_EQ(refusal(), "max_seq_len: expected at least 0, got -1");
  args.max_seq_len = 10;
  args.key_positions = {.rank = 2, .world = 2, .interleave = 1};
  EXPECT_THAT(refusal(), HasSubstr("got rank 2, world 2, interleave 1"));
}

TEST(GatheredChainsTest, QueriesMatchTheDefinition) {
  int num_live = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    Memory memory([&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
    BatchGatherArgs& args = memory.args();
    DrawChainBatch(random, shape, 0, args);
    AttentionParams layer = PlainLayer();
    if (random.OneIn(3)) layer.window_left = random.Int(0, 20);
    const AllocationCounter allocations;
    const absl::StatusOr<PagedBatch> batch = BuildBatchGather(args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(batch.ok()) << "seed " << seed << ": " << batch.status();

    int token = 0;
    for (int r = 0; r < shape.num_rows; ++r) {
      for (int i = 0; args.arrays.query_start_loc[r] + i < args.arrays.query_start_loc[r + 1];
           ++i, ++token) {
        const int32_t slot = args.table_row[r];
        const int64_t position = int64_t{args.table_seq_lens[slot]} + i;
        ASSERT_EQ(args.arrays.slot_mapping[token], SlotByDefinition(args.table, slot, position));
        ASSERT_EQ(args.arrays.token_ids[token],
                  i == 0 ? args.first_token[slot] : args.tokens[r * args.token_stride + i - 1]);
      }
    }
    num_live += token;
    const VisiblePairs expected = PairsOf(ChainByDefinition(args, layer.window_left), args.table);
    ASSERT_EQ(DifferenceOf(VisibleSet(layer, *batch, shape.block_size), expected), "")
        << "seed " << seed << ": " << shape;
  }
  EXPECT_GT(num_live, 100000);
}

// Each rank has its own table with the tokens that the rank holds.
TEST(GatheredChainsTest, RanksMatchTheDefinition) {
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    const int world = random.Int(1, 4);
    const int interleave = random.Pick({1, 1, 2, 3, shape.block_size});
    AttentionParams layer = PlainLayer();
    if (random.OneIn(3)) layer.window_left = random.Int(0, 40);
    const KeyPart part = random.OneIn(3) ? KeyPart::kContext : KeyPart::kAll;
    // All ranks have the same global lengths. Each rank draws its own block table.
    Memory first([&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
    DrawChainBatch(random, shape, 0, first.args());
    using Key = std::pair<int, int64_t>;  // (token, position of the key)
    std::vector<Key> seen;                // keys that the queries of all ranks see
    for (int rank = 0; rank < world; ++rank) {
      Memory memory([&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
      std::copy_n(first.base(), first.num_bytes(), memory.base());
      BatchGatherArgs& args = memory.args();
      // Each rank gets its own blocks.
      auto* entries = const_cast<int32_t*>(args.table.entries);
      const int shift = random.Int(0, shape.num_blocks());
      for (int64_t at = 0; at < shape.num_tables * args.table.row_stride; ++at) {
        entries[at] = static_cast<int32_t>(1 + (at + shift) % (shape.num_blocks() - 1));
      }
      args.key_positions = {.rank = rank, .world = world, .interleave = interleave};
      args.part = part;
      args.max_seq_len = 1 << 20;
      // All ranks have the same limit, so the build succeeds on all ranks or fails on all ranks.
      const bool fits =
          std::all_of(args.table_row, args.table_row + shape.num_rows, [&](int32_t slot) {
            return slot < 0 ||
                   args.table_seq_lens[slot] <=
                       LimitByDefinition(args.table, args.max_seq_len, args.key_positions);
          });
      const absl::StatusOr<PagedBatch> batch = BuildBatchGather(args);
      ASSERT_EQ(batch.ok(), fits) << "seed " << seed << ": " << batch.status();
      if (!fits) break;
      // held[p] is the number of tokens before position p that the rank holds.
      std::vector<int64_t> held = {0};
      for (int64_t p = 0; p < 2000; ++p) {
        held.push_back(held.back() + (p / interleave % world == rank));
      }
      for (const VisiblePair& pair : VisibleSet(layer, *batch, shape.block_size)) {
        // The rank holds the key, at the index that `held` gives.
        ASSERT_EQ(pair.key_position / interleave % world, rank);
        const int64_t local = held[pair.key_position];
        int r = 0;
        while (args.arrays.query_start_loc[r + 1] <= pair.token) ++r;
        ASSERT_EQ(pair.slot, SlotByDefinition(args.table, args.table_row[r], local)) << seed;
        seen.emplace_back(pair.token, pair.key_position);
      }
      for (int r = 0; r < shape.num_rows; ++r) {
        for (int t = args.arrays.query_start_loc[r]; t < args.arrays.query_start_loc[r + 1]; ++t) {
          const int64_t position = args.arrays.positions[t];
          ASSERT_EQ(position,
                    args.table_seq_lens[args.table_row[r]] + t - args.arrays.query_start_loc[r]);
          ASSERT_EQ(args.arrays.slot_mapping[t] >= 0, position / interleave % world == rank);
        }
      }
      if (rank < world - 1) continue;
      std::vector<Key> expected;  // each key once, because one rank holds it
      for (int r = 0; r < shape.num_rows; ++r) {
        const int begin = args.arrays.query_start_loc[r];
        const int end = args.arrays.query_start_loc[r + 1];
        for (int t = begin; t < end; ++t) {
          const int64_t position = args.arrays.positions[t];
          const int64_t last = part == KeyPart::kAll
                                   ? position
                                   : args.table_seq_lens[args.table_row[r]] - int64_t{1};
          for (int64_t key = 0; key <= last; ++key) {
            if (layer.window_left && key < position - *layer.window_left) continue;
            expected.emplace_back(t, key);
          }
        }
      }
      std::ranges::sort(seen);
      ASSERT_EQ(seen, expected) << "seed " << seed << ": " << shape;
    }
  }
}

TEST(GatheredChainsTest, InvalidValuesMakeRowsInertWithoutOtherEffects) {
  int num_faults = 0;
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    Random random(seed);
    DraftShape shape = DrawDraftShape(random);
    if (random.OneIn(3)) shape.num_tokens = random.Int(0, shape.num_tokens);
    Memory memory([&](ArrayCarver& carver) { return CarveChainBatch(shape, carver); });
    BatchGatherArgs& args = memory.args();
    DrawChainBatch(random, shape, 0.1, args);
    BatchGatherOnHost(args);
    const int64_t num_slots = int64_t{shape.num_blocks()} * shape.block_size;
    for (int r = 0; r < shape.num_rows; ++r) {
      const int begin = args.arrays.query_start_loc[r];
      const int end = args.arrays.query_start_loc[r + 1];
      ASSERT_LE(begin, end);
      ASSERT_LE(end, shape.num_tokens);
      const bool is_bad = args.arrays.row_faults[r] != 0;
      num_faults += is_bad;
      ASSERT_TRUE(!is_bad || args.arrays.seq_lens[r] == 0);
      for (int t = begin; t < end; ++t) {
        ASSERT_EQ(args.arrays.slot_mapping[t] == -1, is_bad);
        ASSERT_LT(args.arrays.slot_mapping[t], num_slots);
      }
    }
    ASSERT_EQ(args.arrays.query_start_loc[0], 0);
  }
  EXPECT_GT(num_faults, 500);
}

}  // namespace
}  // namespace reprise
