// Integer arithmetic for the host and the device: division rounded up or down, fast division by a
// fixed divisor, and the number of set bits.
//
// Divisor divides by a number that is constant within a launch, using a multiplication and a shift.
// Kernels use it to map a thread index to a token, a head and a dim.
//
//   const Divisor heads(12);   // on the host, into the kernel's parameters
//   const uint32_t token = heads.Divide(index), head = index - token * heads.value();
//
// Source: "Division by Invariant Integers using Multiplication" (Granlund and Montgomery, PLDI
// 1994).
// constexpr, so that nvcc also compiles it for the device. Cost on the device: 3 instructions. A
// 32-bit division takes about 20 instructions, a 64-bit division about 100.

#ifndef REPRISE_BASE_DIVISOR_H_
#define REPRISE_BASE_DIVISOR_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "reprise/base/host_device.h"

namespace reprise {

// Returns a / b, rounded up. REQUIRES: a >= 0, b > 0.
template <typename A, typename B>
constexpr std::common_type_t<A, B> CeilDiv(A a, B b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

// Returns a / b, rounded down, also for negative a. REQUIRES: b > 0.
template <typename A, typename B>
constexpr std::common_type_t<A, B> FloorDiv(A a, B b) {
  const auto quotient = a / b;
  return quotient * b > a ? quotient - 1 : quotient;
}

// Returns the number of set bits in `mask`.
REPRISE_HOST_DEVICE constexpr int NumBits(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __popcll(mask);
#else
  return std::popcount(mask);
#endif
}

class Divisor {
 public:
  constexpr Divisor() = default;

  // REQUIRES: 1 <= value <= 2^31.
  constexpr explicit Divisor(uint32_t value) : value_(value) {
    while ((uint64_t{1} << shift_) < value) ++shift_;
    multiplier_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - value) << 32) / value + 1);
  }

  constexpr uint32_t value() const { return value_; }

  // Returns n / value. REQUIRES: n < 2^31.
  constexpr uint32_t Divide(uint32_t n) const {
    const auto high = static_cast<uint32_t>(uint64_t{n} * multiplier_ >> 32);
    return (high + n) >> shift_;
  }

 private:
  uint32_t value_ = 1;
  uint32_t multiplier_ = 1;
  uint32_t shift_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_DIVISOR_H_
