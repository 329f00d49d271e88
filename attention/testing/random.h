// Random draws for tests, from one seed.
//
// Thread safety: not thread-safe; one owner.

#ifndef REPRISE_ATTENTION_TESTING_RANDOM_H_
#define REPRISE_ATTENTION_TESTING_RANDOM_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <random>

namespace reprise {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  uint64_t Bits() { return engine_(); }

  // Almost uniform in [low, high], both included. REQUIRES: low <= high.
  int Int(int low, int high) {
    const auto width = static_cast<uint64_t>(static_cast<int64_t>(high) - low + 1);
    return static_cast<int>(low + static_cast<int64_t>(Bits() % width));
  }

  double Real(double low, double high) {
    return low + (high - low) * static_cast<double>(Bits() >> 11) * 0x1p-53;
  }

  // Returns true with probability 1 / n.
  bool OneIn(int n) { return Int(1, n) == 1; }

  // Mean 0, variance 1, in (-3.5, 3.5): the scaled sum of four uniform 16-bit draws.
  double NearNormal() {
    const uint64_t bits = Bits();
    const auto sum = static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                         (bits >> 32 & 0xffff) + (bits >> 48));
    return (sum * 0x1p-16 - 2.0) * 1.7320508;  // a uniform draw has variance 1 / 12
  }

  template <typename T>
  T Pick(std::initializer_list<T> choices) {
    return *(choices.begin() + Int(0, static_cast<int>(choices.size()) - 1));
  }

  template <typename Container>
  void Shuffle(Container& items) {
    std::shuffle(std::begin(items), std::end(items), engine_);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_RANDOM_H_
