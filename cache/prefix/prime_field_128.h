// The field of integers modulo 2^128 - 159, the largest 128-bit prime. Multiplication needs no
// division, because 2^128 is congruent to 159.
//
//   PrimeField128 hash = (hash + coefficient) * point;  // one step of Horner's rule
//
// A value type. Thread safety: const. Cost of a multiplication: seven 64-bit multiplications.

#ifndef REPRISE_CACHE_PREFIX_PRIME_FIELD_128_H_
#define REPRISE_CACHE_PREFIX_PRIME_FIELD_128_H_

#include <cstdint>

namespace reprise {

class PrimeField128 {
 public:
  constexpr PrimeField128() = default;

  // Returns high * 2^64 + low, for any 128 bits.
  static constexpr PrimeField128 FromHalves(uint64_t low, uint64_t high) {
    return PrimeField128(static_cast<Uint128>(high) << 64 | low);
  }

  // The halves of the canonical representative, which is less than the prime.
  constexpr uint64_t low() const { return static_cast<uint64_t>(Canonical()); }
  constexpr uint64_t high() const { return static_cast<uint64_t>(Canonical() >> 64); }

  friend constexpr PrimeField128 operator+(PrimeField128 a, PrimeField128 b) {
    const Uint128 sum = a.value_ + b.value_;
    return PrimeField128(Folded(sum, sum < a.value_ ? 1 : 0));
  }

  friend constexpr PrimeField128 operator*(PrimeField128 a, PrimeField128 b) {
    // a * b = high * 2^128 + low.
    const uint64_t a_low = static_cast<uint64_t>(a.value_), b_low = static_cast<uint64_t>(b.value_);
    const uint64_t a_high = static_cast<uint64_t>(a.value_ >> 64);
    const uint64_t b_high = static_cast<uint64_t>(b.value_ >> 64);
    const Uint128 lowest = static_cast<Uint128>(a_low) * b_low;
    const Uint128 one_middle = static_cast<Uint128>(a_low) * b_high;
    const Uint128 middle = one_middle + static_cast<Uint128>(a_high) * b_low;
    const Uint128 middle_carry = middle < one_middle ? 1 : 0;
    const Uint128 low = lowest + (middle << 64);
    const Uint128 low_carry = low < lowest ? 1 : 0;
    const Uint128 high =
        static_cast<Uint128>(a_high) * b_high + (middle >> 64) + (middle_carry << 64) + low_carry;

    // high * 159 = top * 2^128 + (second << 64) + first: 136 bits.
    const Uint128 first = static_cast<Uint128>(static_cast<uint64_t>(high)) * kTwoTo128;
    const Uint128 second = static_cast<Uint128>(static_cast<uint64_t>(high >> 64)) * kTwoTo128;
    uint64_t top = static_cast<uint64_t>(second >> 64);
    Uint128 sum = low + first;
    top += sum < first ? 1 : 0;
    sum += second << 64;
    top += sum < (second << 64) ? 1 : 0;
    return PrimeField128(Folded(sum, top));
  }

  friend constexpr bool operator==(PrimeField128 a, PrimeField128 b) {
    return a.Canonical() == b.Canonical();
  }

 private:
  __extension__ using Uint128 = unsigned __int128;
  static constexpr uint64_t kTwoTo128 = 159;
  static constexpr Uint128 kPrime = ~Uint128{0} - (kTwoTo128 - 1);

  constexpr explicit PrimeField128(Uint128 value) : value_(value) {}

  // Reduces top * 2^128 + value, for a small `top`.
  static constexpr Uint128 Folded(Uint128 value, uint64_t top) {
    const Uint128 sum = value + top * kTwoTo128;
    // If the first addition overflows, the sum is small, so the second addition cannot overflow.
    return sum + (sum < value ? kTwoTo128 : 0);
  }

  constexpr Uint128 Canonical() const { return value_ >= kPrime ? value_ - kPrime : value_; }

  Uint128 value_ = 0;  // any 128-bit value; kPrime and above represent 0 .. 158
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PRIME_FIELD_128_H_
