#include "attention/metadata/context_parallel.h"

#include <vector>

#include "attention/reference/visibility.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr KeyPositions kSecondOfTwo = {.rank = 1, .world = 2, .interleave = 2};
static_assert(LocalLen(9, {.rank = 0, .world = 2, .interleave = 2}) == 5);
static_assert(LocalLen(9, kSecondOfTwo) == 4);
static_assert(GlobalPosition(2, kSecondOfTwo) == 6);
static_assert(OwnerOf(6, kSecondOfTwo) == 1 && LocalIndex(6, kSecondOfTwo) == 2);
static_assert(!IsValid({.rank = 2, .world = 2}) && !IsValid({.interleave = 0}));
static_assert(!IsValid({.world = 0}) && IsValid({}));

// Dealt out one by one.
TEST(ContextParallelTest, EveryTokenIsHeldOnceWhereCountingPutsIt) {
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

TEST(ContextParallelTest, NoRankNeedsMoreThanTheCapacityFromWhichTheLimitCame) {
  for (int world = 1; world <= 4; ++world) {
    for (int interleave : {1, 2, 3, 16}) {
      for (int64_t capacity = 0; capacity < 70; ++capacity) {
        int64_t most = 0;
        for (int rank = 0; rank < world; ++rank) {
          const KeyPositions ranks = {.rank = rank, .world = world, .interleave = interleave};
          const int64_t longest = GlobalCapacity(capacity, ranks);
          ASSERT_LE(LocalLen(longest, ranks), capacity);
          if (rank == 0) most = longest;
          ASSERT_EQ(longest, most);  // ranks agree
        }
        // One token more is too many for the rank that holds it.
        const KeyPositions owner = {.rank = static_cast<int>(most / interleave % world),
                                    .world = world,
                                    .interleave = interleave};
        ASSERT_EQ(LocalLen(most + 1, owner), capacity + 1);
      }
    }
  }
}

TEST(ContextParallelTest, LengthsBeyond32BitsAreCounted) {
  constexpr KeyPositions kRanks = {.rank = 3, .world = 4, .interleave = 16};
  constexpr int64_t kLong = int64_t{1} << 40;
  static_assert(LocalLen(kLong, kRanks) == kLong / 4);
  static_assert(GlobalPosition(LocalIndex(kLong - 1, kRanks), kRanks) == kLong - 1);
}

}  // namespace
}  // namespace reprise
