// Philox4x32-10: random numbers as a pure function of a counter and a key.
//
//   PhiloxBlock block = Philox4x32({token / 4, 0, 17, 0}, {seed_low, seed_high});
//   uint32_t bits = block.word[token % 4];
//
// Any element of any stream can be computed directly, with equal results on host and device. No
// state is kept between steps. Source: "Parallel Random Numbers: As Easy as 1, 2, 3" (Salmon,
// Moraes, Dror and Shaw, SC 2011). Passes BigCrush.
//
// constexpr, so that nvcc also compiles it for the device. Cost: 20 multiplications (32-bit).

#ifndef REPRISE_BASE_PHILOX_H_
#define REPRISE_BASE_PHILOX_H_

#include <cstdint>

namespace reprise {

struct PhiloxBlock {
  uint32_t word[4];

  friend constexpr bool operator==(const PhiloxBlock&, const PhiloxBlock&) = default;
};

struct PhiloxKey {
  uint32_t word[2];
};

constexpr PhiloxKey PhiloxKeyOf(uint64_t seed) {
  return {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
}

// Returns 128 uniform random bits.
constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, PhiloxKey key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53;
  constexpr uint32_t kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9;  // the golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85;  // sqrt(3) - 1
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(kMultiplier0) * counter.word[0];
    const uint64_t product1 = static_cast<uint64_t>(kMultiplier1) * counter.word[2];
    counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<uint32_t>(product1),
                static_cast<uint32_t>(product0 >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<uint32_t>(product0)}};
    key.word[0] += kWeyl0;
    key.word[1] += kWeyl1;
  }
  return counter;
}

}  // namespace reprise

#endif  // REPRISE_BASE_PHILOX_H_
