#include "reprise/base/philox.h"

#include <bit>
#include <cstdint>

#include "gtest/gtest.h"

namespace reprise {
namespace {

// The known answers published by Random123 (kat_vectors, "philox4x32 10").
static_assert(Philox4x32({{0, 0, 0, 0}}, {{0, 0}}) ==
              PhiloxBlock{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
static_assert(Philox4x32({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
                         {{0xffffffff, 0xffffffff}}) ==
              PhiloxBlock{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
static_assert(Philox4x32({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
                         {{0xa4093822, 0x299f31d0}}) ==
              PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});

TEST(PhiloxTest, RunTimeMatchesCompileTime) {
  volatile uint32_t digit_of_pi = 0x243f6a88;
  EXPECT_EQ(Philox4x32({{digit_of_pi, 0x85a308d3, 0x13198a2e, 0x03707344}},
                       PhiloxKeyOf(0x299f31d0a4093822)),
            (PhiloxBlock{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(PhiloxTest, EveryBitOfCounterAndKeyChangesHalfOfTheResult) {
  const PhiloxBlock before = Philox4x32({{1, 2, 3, 4}}, {{5, 6}});
  for (int bit = 0; bit < 192; ++bit) {
    PhiloxBlock counter = {{1, 2, 3, 4}};
    PhiloxKey key = {{5, 6}};
    (bit < 128 ? counter.word[bit / 32] : key.word[bit / 32 - 4]) ^= 1u << (bit % 32);
    const PhiloxBlock after = Philox4x32(counter, key);
    int changed = 0;
    for (int i = 0; i < 4; ++i) changed += std::popcount(before.word[i] ^ after.word[i]);
    // 128 coins: 64 expected, standard deviation 5.7.
    EXPECT_GT(changed, 64 - 29) << bit;
    EXPECT_LT(changed, 64 + 29) << bit;
  }
}

}  // namespace
}  // namespace reprise
