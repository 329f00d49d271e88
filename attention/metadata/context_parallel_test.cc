#include "reprise/attention/metadata/context_parallel.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/metadata/rank_rows.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/visibility.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr KeyPositions kSecondOfTwo = {.rank = 1, .world = 2, .interleave = 2};
static_assert(LocalLen(9, {.rank = 0, .world = 2, .interleave = 2}) == 5);
static_assert(LocalLen(9, kSecondOfTwo) == 4);
static_assert(GlobalPosition(2, kSecondOfTwo) == 6);
static_assert(OwnerOf(6, kSecondOfTwo) == 1 && LocalIndex(6, kSecondOfTwo) == 2);
static_assert(!IsValid({.rank = 2, .world = 2}) && !IsValid({.interleave = 0}));
static_assert(!IsValid({.world = 0}) && IsValid({}));

// The expected values come from assigning the tokens to ranks one by one.
TEST(ContextParallelTest, EveryTokenHasOneOwnerAndLocalIndex) {
  for (int world = 1; world <= 4; ++world) {
    for (int interleave : {1, 2, 3, 16}) {
      std::vector<int64_t> held(world, 0);
      for (int64_t position = 0; position < 300; ++position) {
        for (int rank = 0; rank < world; ++rank) {
          const KeyPositions ranks = {.rank = rank, .world = world, .interleave = interleave};
          ASSERT_EQ(LocalLen(position, ranks), held[rank])
              << position << " tokens, rank " << rank << " of " << world << ", " << interleave;
        }
        const KeyPositions any = {.rank = 0, .world = world, .interleave = interleave};
        const int owner = OwnerOf(position, any);
        ASSERT_EQ(LocalIndex(position, any), held[owner]);
        const KeyPositions ranks = {.rank = owner, .world = world, .interleave = interleave};
        ASSERT_EQ(GlobalPosition(held[owner], ranks), position);
        const BatchRow row = {.seq_len = 300, .key_positions = ranks};
        ASSERT_EQ(OrdinaryKeyPosition(row, held[owner]), position);
        ++held[owner];
      }
    }
  }
}

TEST(ContextParallelTest, GlobalCapacityFitsOnEveryRank) {
  for (int world = 1; world <= 4; ++world) {
    for (int interleave : {1, 2, 3, 16}) {
      for (int64_t capacity = 0; capacity < 70; ++capacity) {
        int64_t most = 0;
        for (int rank = 0; rank < world; ++rank) {
          const KeyPositions ranks = {.rank = rank, .world = world, .interleave = interleave};
          const int64_t longest = GlobalCapacity(capacity, ranks);
          ASSERT_LE(LocalLen(longest, ranks), capacity);
          if (rank == 0) most = longest;
          ASSERT_EQ(longest, most);  // all ranks agree
        }
        // One more token would exceed the capacity of the rank that holds the token.
        const KeyPositions owner = {.rank = static_cast<int>(most / interleave % world),
                                    .world = world,
                                    .interleave = interleave};
        ASSERT_EQ(LocalLen(most + 1, owner), capacity + 1);
      }
    }
  }
}

TEST(ContextParallelTest, SupportsLengthsBeyond32Bits) {
  constexpr KeyPositions kRanks = {.rank = 3, .world = 4, .interleave = 16};
  constexpr int64_t kLong = int64_t{1} << 40;
  static_assert(LocalLen(kLong, kRanks) == kLong / 4);
  static_assert(GlobalPosition(LocalIndex(kLong - 1, kRanks), kRanks) == kLong - 1);
}

static_assert(RankSlot(-1, 4, {.rank = 1, .world = 2}) == -1);
static_assert(RankSlot(3 * 4 + 3, 4, {.rank = 1, .world = 2}) == 3 * 2 + 1);
static_assert(RankSlot(3 * 4 + 3, 4, {.rank = 0, .world = 2}) == -1);
static_assert(RankSlot((int64_t{1} << 40) * 8, 8, {.world = 4}) == (int64_t{1} << 40) * 2);

// One rank keeps each token, in the slot that the rank's own table with smaller blocks gives.
TEST(RankRowsTest, SlotsMatchTheRanksTable) {
  Random random(/*seed=*/1);
  for (int world = 1; world <= 4; ++world) {
    for (const int interleave : {1, 2, 3, 8}) {
      for (const int cycles : {1, 2, 5}) {
        const int block_size = cycles * world * interleave;
        const int rank_block_size = block_size / world;
        std::vector<int64_t> blocks;  // the blocks of one sequence
        for (int i = 0; i < 6; ++i) blocks.push_back(random.Int(1, 1'000'000) * int64_t{3000});
        for (int64_t position = 0; position < int64_t{6} * block_size; ++position) {
          const int64_t slot = blocks[position / block_size] * block_size + position % block_size;
          int num_owners = 0;
          for (int rank = 0; rank < world; ++rank) {
            const KeyPositions ranks = {.rank = rank, .world = world, .interleave = interleave};
            const int64_t got = RankSlot(slot, block_size, ranks);
            if (!IsOwn(position, ranks)) {
              ASSERT_EQ(got, -1);
              continue;
            }
            ++num_owners;
            const int64_t local = LocalIndex(position, ranks);
            ASSERT_EQ(got,
                      blocks[local / rank_block_size] * rank_block_size + local % rank_block_size)
                << "position " << position << ", rank " << rank << " of " << world
                << ", interleave " << interleave << ", block_size " << block_size;
          }
          ASSERT_EQ(num_owners, 1);
        }
      }
    }
  }
}

struct Arrays {
  std::vector<int32_t> seq_lens = {5, 0, 8};
  std::vector<int32_t> context_lens = {4, 0, 5};
  // Groups 0 and 1 with block_size 4. One slot of group 1 is null, as in a window. The fourth token
  // is padded. 99 follows the tokens of each group.
  std::vector<int64_t> slots = {4 * 7, 4 * 2 + 1, 4 * 2 + 2, -1, 99, 4 * 5 + 3, -1, 4 * 9, -1, 99};
  std::vector<int32_t> rank_seq_lens = {77, 77, 77};
  std::vector<int32_t> rank_context_lens = {77, 77, 77};
  std::vector<int64_t> rank_slots = std::vector<int64_t>(10, 77);

  RankRowsArgs args(int rank) {
    return {.ranks = {.rank = rank, .world = 2},
            .block_size = 4,
            .num_rows = 3,
            .num_tokens = 4,
            .num_groups = 2,
            .group_stride = 5,
            .seq_lens = seq_lens.data(),
            .context_lens = context_lens.data(),
            .slot_mapping = slots.data(),
            .rank_seq_lens = rank_seq_lens.data(),
            .rank_context_lens = rank_context_lens.data(),
            .rank_slot_mapping = rank_slots.data()};
  }
};

TEST(RankRowsTest, WritesOnlyTheRanksLengthsAndSlots) {
  Arrays of[2];
  for (int rank = 0; rank < 2; ++rank) {
    const RankRowsArgs args = of[rank].args(rank);
    ASSERT_EQ(CheckRankRows(args), absl::OkStatus());
    RankRowsOnHost(args);
  }
  EXPECT_THAT(of[0].rank_seq_lens, ElementsAre(3, 0, 4));
  EXPECT_THAT(of[1].rank_seq_lens, ElementsAre(2, 0, 4));
  EXPECT_THAT(of[0].rank_context_lens, ElementsAre(2, 0, 3));
  EXPECT_THAT(of[1].rank_context_lens, ElementsAre(2, 0, 2));
  EXPECT_THAT(of[0].rank_slots, ElementsAre(14, -1, 5, -1, 77, -1, -1, 18, -1, 77));
  EXPECT_THAT(of[1].rank_slots, ElementsAre(-1, 4, -1, -1, 77, 11, -1, -1, -1, 77));
}

TEST(RankRowsTest, ContextLensMayBeAbsent) {
  Arrays arrays;
  RankRowsArgs args = arrays.args(1);
  args.context_lens = nullptr;
  args.rank_context_lens = nullptr;
  ASSERT_EQ(CheckRankRows(args), absl::OkStatus());
  RankRowsOnHost(args);
  EXPECT_THAT(arrays.rank_seq_lens, ElementsAre(2, 0, 4));
  EXPECT_THAT(arrays.rank_context_lens, ElementsAre(77, 77, 77));
}

TEST(RankRowsTest, RejectsInvalidArguments) {
  Arrays arrays;
  const auto refused = [&](auto change) {
    RankRowsArgs args = arrays.args(0);
    change(args);
    const absl::Status status = CheckRankRows(args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto& args) { args.ranks.rank = 2; }), HasSubstr("got rank 2 of 2"));
  EXPECT_THAT(refused([](auto& args) { args.ranks.interleave = 0; }), HasSubstr("interleave 0"));
  EXPECT_THAT(refused([](auto& args) { args.block_size = 5; }),
              HasSubstr("block_size: expected a multiple of world * interleave (2), got 5"));
  EXPECT_THAT(refused([](auto& args) { args.block_size = 0; }), HasSubstr("block_size"));
  EXPECT_THAT(refused([](auto& args) { args.num_rows = -1; }), HasSubstr("num_rows"));
  EXPECT_THAT(refused([](auto& args) { args.num_tokens = -1; }), HasSubstr("num_tokens"));
  EXPECT_THAT(refused([](auto& args) { args.group_stride = 3; }), HasSubstr("group_stride"));
  EXPECT_THAT(refused([](auto& args) { args.seq_lens = nullptr; }), HasSubstr("seq_lens"));
  EXPECT_THAT(refused([](auto& args) { args.rank_seq_lens = nullptr; }),
              HasSubstr("rank_seq_lens"));
  EXPECT_THAT(refused([](auto& args) { args.rank_context_lens = nullptr; }),
              HasSubstr("rank_context_lens"));
  EXPECT_THAT(refused([](auto& args) { args.slot_mapping = nullptr; }), HasSubstr("slot_mapping"));
  EXPECT_THAT(refused([](auto& args) { args.rank_slot_mapping = nullptr; }),
              HasSubstr("rank_slot_mapping"));
}

}  // namespace
}  // namespace reprise
