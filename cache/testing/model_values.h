// The values that the model stores instead of keys and values: hashes of all their inputs.

#ifndef REPRISE_CACHE_TESTING_MODEL_VALUES_H_
#define REPRISE_CACHE_TESTING_MODEL_VALUES_H_

#include <cstdint>

namespace reprise {

// Returns a hash of a pair. The tests assume that it has no collisions.
constexpr uint64_t Mix(uint64_t a, uint64_t b) {
  const uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
  return h ^ (h >> 29);
}

// Returns the content of a group of layers for a token, or for a position of the encoder's input,
// with this value.
constexpr uint64_t Cell(uint64_t value, int group) { return Mix(value, 1000 + group); }

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_MODEL_VALUES_H_
