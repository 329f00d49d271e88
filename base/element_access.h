// Access to single elements of raw memory by DType, for references and tests.
//
//   double x = LoadElement<double>(memory, DType::kBFloat16, 7);
//   StoreElement(memory, DType::kFp8E4M3, 8, x);   // rounds to nearest, ties to even
//
// Thread safety: same as the memory. Cost: a switch and a few instructions per load; stores are
// slow.

#ifndef REPRISE_BASE_ELEMENT_ACCESS_H_
#define REPRISE_BASE_ELEMENT_ACCESS_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "reprise/base/dtype.h"

namespace reprise {

// Converts IEEE half precision exactly.
inline float HalfBitsToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t magnitude = bits & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | (magnitude << 13));
  // The multiplication changes the exponent bias from 15 to 127, also for subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

inline float BFloat16BitsToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// An E5M2 value is the upper byte of a half.
inline float Fp8E5M2BitsToFloat(uint8_t bits) {
  return HalfBitsToFloat(static_cast<uint16_t>(bits << 8));
}

// 1 sign, 4 exponent and 3 mantissa bits, bias 7, no infinities. All seven lower bits set: NaN.
inline float Fp8E4M3BitsToFloat(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80) << 24;
  const uint32_t magnitude = bits & 0x7f;
  if (magnitude == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  const float scaled = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(scaled));
}

// Returns element `index` of `base`, an array of `dtype`. T is float or double. The value is exact
// unless T is float and dtype is kFloat64.
template <typename T>
T LoadElement(const void* base, DType dtype, int64_t index) {
  const auto at = [base, index]<typename U>(U value) {
    std::memcpy(&value, static_cast<const char*>(base) + index * sizeof(U), sizeof(U));
    return value;
  };
  switch (dtype) {
    case DType::kFloat64:
      return static_cast<T>(at(double{}));
    case DType::kFloat32:
      return at(float{});
    case DType::kFloat16:
      return HalfBitsToFloat(at(uint16_t{}));
    case DType::kBFloat16:
      return BFloat16BitsToFloat(at(uint16_t{}));
    case DType::kFp8E4M3:
      return Fp8E4M3BitsToFloat(at(uint8_t{}));
    case DType::kFp8E5M2:
      return Fp8E5M2BitsToFloat(at(uint8_t{}));
  }
  return std::numeric_limits<T>::quiet_NaN();
}

// Stores `value` rounded to `dtype`, to nearest, ties to even. Overflow gives infinity; in the fp8
// types it gives the largest finite value, like CUDA's saturating conversion. NaN stays NaN.
void StoreElement(void* base, DType dtype, int64_t index, double value);

// Returns the value that a load after StoreElement() returns.
double RoundTo(DType dtype, double value);

}  // namespace reprise

#endif  // REPRISE_BASE_ELEMENT_ACCESS_H_
