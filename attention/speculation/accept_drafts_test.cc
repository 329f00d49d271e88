#include "reprise/attention/speculation/accept_drafts.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Memory = BuilderMemory<AcceptDraftsArgs>;

// The example of the header: 10 tokens in blocks {7, 2, 9, 5} of 4, and a tree of 5 nodes; an inert
// row behind it.
class AcceptOneTree : public ::testing::Test {
 protected:
  AcceptOneTree() {
    args.query_start_loc = query_start_loc;
    args.seq_lens = seq_lens;
    args.table_row = table_row;
    args.token_ids = token_ids;
    args.tail_mask = tail_mask;
    args.num_accepted = num_accepted;
    args.accepted_nodes = accepted_nodes;
    args.accepted_stride = 4;
    args.next_token = next_token;
    args.table = {entries, 4, 1, 4, 4, 10};
    args.num_rows = 2;
    args.num_tokens = 5;
    args.max_accepted = 4;
    args.seq_len = seq_len;
    args.last_token = last_token;
    args.new_tokens = new_tokens;
    args.num_new_tokens = num_new_tokens;
    args.next_position = next_position;
    args.move_from = move_from;
    args.move_to = move_to;
    args.row_faults = row_faults;
  }

  int32_t query_start_loc[3] = {0, 5, 5};
  int32_t seq_lens[2] = {15, 0};
  int32_t table_row[2] = {0, 0};
  int32_t token_ids[5] = {70, 71, 72, 73, 74};
  uint64_t tail_mask[5] = {0b1, 0b11, 0b101, 0b1011, 0b10101};
  int32_t num_accepted[2] = {3, -7};
  int32_t accepted_nodes[8] = {0, 2, 4, -1, -1, -1, -1, -1};
  int32_t next_token[2] = {77, -1};
  int32_t entries[4] = {7, 2, 9, 5};
  int32_t seq_len[1] = {10};
  int32_t last_token[1] = {70};
  int32_t new_tokens[8], num_new_tokens[2], next_position[2], row_faults[2];
  int64_t move_from[8], move_to[8];
  AcceptDraftsArgs args;
};

TEST_F(AcceptOneTree, WhatStaysMovesTogetherBehindTheCache) {
  const absl::Status status = AcceptDrafts(args);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(seq_len[0], 13);
  EXPECT_EQ(last_token[0], 77);
  EXPECT_THAT(next_position, ElementsAre(13, 0));
  EXPECT_THAT(num_new_tokens, ElementsAre(3, 0));
  EXPECT_THAT(new_tokens, ElementsAre(72, 74, 77, -1, -1, -1, -1, -1));
  EXPECT_THAT(move_from, ElementsAre(-1, 20, 22, -1, -1, -1, -1, -1));
  EXPECT_THAT(move_to, ElementsAre(-1, 39, 20, -1, -1, -1, -1, -1));
}

// Both ends of a move, or neither: the table may have lost a block since the drafts were written.
TEST_F(AcceptOneTree, AMoveWithoutABlockAtEitherEndIsLeftOut) {
  for (const int32_t no_block : {0, -1, 10}) {
    entries[2] = no_block;  // of position 11, to which node 2 moves
    entries[3] = 5;
    ASSERT_TRUE(AcceptDrafts(args).ok());
    EXPECT_THAT(move_from, ElementsAre(-1, -1, 22, -1, -1, -1, -1, -1)) << no_block;
    EXPECT_THAT(move_to, ElementsAre(-1, -1, 20, -1, -1, -1, -1, -1)) << no_block;
    entries[2] = 9;
    entries[3] = no_block;  // of positions 12 and 14, from which nodes 2 and 4 move
    ASSERT_TRUE(AcceptDrafts(args).ok());
    EXPECT_THAT(move_from, Each(-1)) << no_block;
    EXPECT_THAT(move_to, Each(-1)) << no_block;
  }
}

TEST_F(AcceptOneTree, OfAChainNothingMoves) {
  args.tail_mask = nullptr;
  args.accepted_nodes = nullptr;
  args.move_from = args.move_to = nullptr;
  ASSERT_TRUE(AcceptDrafts(args).ok());
  EXPECT_THAT(new_tokens, ElementsAre(71, 72, 77, -1, -1, -1, -1, -1));
  EXPECT_EQ(seq_len[0], 13);
}

TEST_F(AcceptOneTree, BadInputIsRefusedWithNamesAndValuesAndTheStateStays) {
  const auto refusal = [&] {
    const absl::Status status = AcceptDrafts(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(seq_len[0], 10);
    EXPECT_EQ(last_token[0], 70);
    EXPECT_EQ(num_new_tokens[0], 0);
    return std::string(status.message());
  };
  accepted_nodes[2] = 3;  // a child of 1, not of 2
  EXPECT_EQ(refusal(),
            "rows[0]: the nodes that stay are no path from the tree's root: table row 0 of 1, "
            "seq_len 15, query_len 5, num_accepted 3, max_accepted 4, accepted_nodes 0 2 3, "
            "next_token 77");
  EXPECT_THAT(move_from, ElementsAre(-1, -1, -1, -1, -1, -1, -1, -1));
  accepted_nodes[2] = 4;
  accepted_nodes[0] = 1;
  EXPECT_THAT(refusal(), HasSubstr("no path"));
  accepted_nodes[0] = 0;
  num_accepted[0] = 0;
  EXPECT_THAT(refusal(), HasSubstr("num_accepted 0"));
  num_accepted[0] = 6;
  EXPECT_THAT(refusal(), HasSubstr("num_accepted 6"));
  num_accepted[0] = 3;
  next_token[0] = -1;
  EXPECT_THAT(refusal(), HasSubstr("a token id is negative"));
  next_token[0] = 77;
  query_start_loc[1] = -1;  // descending
  EXPECT_THAT(refusal(), HasSubstr("query_len -1"));
  query_start_loc[1] = 5;
  args.max_accepted = 65;
  EXPECT_EQ(std::string(CheckAcceptDrafts(args).message()),
            "max_accepted: expected 1 to 64, got 65");
  args.max_accepted = 4;
  args.move_to = nullptr;
  EXPECT_THAT(std::string(AcceptDrafts(args).message()), HasSubstr("move_to"));
}

// Keys carry the token and the position for which they were computed; after the moves, what is in
// front are those of the accepted tokens, in order.
TEST(AcceptDraftsTest, AfterTheMovesTheCacheHoldsTheAcceptedTokensInOrder) {
  int num_moves = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    Memory memory([&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); });
    AcceptDraftsArgs& args = memory.args();
    DrawAcceptDrafts(random, shape, 0, args);
    std::map<int64_t, std::pair<int, int64_t>> cache;  // slot -> (table row, node or position)
    const std::vector<int32_t> before(args.seq_len, args.seq_len + shape.num_tables);
    for (int r = 0; r < shape.num_rows; ++r) {
      for (int64_t p = 0; p < args.seq_lens[r]; ++p) {
        cache[SlotByDefinition(args.table, args.table_row[r], p)] = {r, p};
      }
    }
    const AllocationCounter allocations;
    const absl::Status status = AcceptDrafts(args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_TRUE(status.ok()) << "seed " << seed << ": " << status;
    for (int64_t i = 0; i < int64_t{shape.num_rows} * args.max_accepted; ++i) {
      if (args.move_from[i] < 0) continue;
      ASSERT_EQ(cache.count(args.move_from[i]), 1u);
      cache[args.move_to[i]] = cache[args.move_from[i]];
      ++num_moves;
    }
    for (int r = 0; r < shape.num_rows; ++r) {
      if (args.seq_lens[r] == 0) {
        ASSERT_EQ(args.num_new_tokens[r], 0);
        continue;
      }
      const int32_t row = args.table_row[r];
      const int first = args.query_start_loc[r];
      const int64_t prefix = before[row];
      ASSERT_EQ(args.seq_len[row], prefix + args.num_accepted[r]) << "seed " << seed;
      ASSERT_EQ(args.last_token[row], args.next_token[r]);
      for (int64_t p = 0; p < args.seq_len[row]; ++p) {
        const int64_t j = p - prefix;
        const int64_t place =
            j < 0 ? p : prefix + args.accepted_nodes[r * args.accepted_stride + j];
        ASSERT_EQ(cache.at(SlotByDefinition(args.table, row, p)), std::make_pair(r, place))
            << "seed " << seed << ", row " << r << ", position " << p;
        if (j > 0) {
          ASSERT_EQ(args.new_tokens[r * args.max_accepted + j - 1],
                    args.token_ids[first + place - prefix]);
        }
      }
      ASSERT_EQ(args.new_tokens[r * args.max_accepted + args.num_accepted[r] - 1],
                args.next_token[r]);
    }
  }
  EXPECT_GT(num_moves, 5000);
}

TEST(AcceptDraftsTest, NonsenseMakesRowsInertAndNothingElse) {
  int num_faults = 0;
  for (uint64_t seed = 0; seed < 10000; ++seed) {
    Random random(seed);
    const DraftShape shape = DrawDraftShape(random);
    Memory memory([&](ArrayCarver& carver) { return CarveAcceptDrafts(shape, carver); });
    AcceptDraftsArgs& args = memory.args();
    DrawAcceptDrafts(random, shape, 0.1, args);
    const std::vector<int32_t> before(args.seq_len, args.seq_len + shape.num_tables);
    AcceptDraftsOnHost(args);
    const int64_t num_slots = int64_t{shape.num_blocks()} * shape.block_size;
    for (int r = 0; r < shape.num_rows; ++r) {
      num_faults += args.row_faults[r] != 0;
      const bool is_live = args.num_new_tokens[r] > 0;
      ASSERT_FALSE(is_live && args.row_faults[r] != 0);
      for (int j = 0; j < args.max_accepted; ++j) {
        ASSERT_LT(args.move_from[r * args.max_accepted + j], num_slots);
        ASSERT_LT(args.move_to[r * args.max_accepted + j], num_slots);
        ASSERT_EQ(args.move_from[r * args.max_accepted + j] < 0,
                  args.move_to[r * args.max_accepted + j] < 0);
        ASSERT_TRUE(is_live || args.move_to[r * args.max_accepted + j] == -1);
      }
    }
    for (int row = 0; row < shape.num_tables; ++row) {
      bool is_live = false;
      for (int r = 0; r < shape.num_rows; ++r) {
        is_live = is_live || (args.table_row[r] == row && args.num_new_tokens[r] > 0);
      }
      ASSERT_TRUE(is_live || args.seq_len[row] == before[row]);
    }
  }
  EXPECT_GT(num_faults, 500);
}

}  // namespace
}  // namespace reprise
