#include "reprise/base/element_access.h"

#include <algorithm>
#include <array>

namespace reprise {
namespace {

// A binary floating-point format of at most 16 bits: sign, exponent, mantissa.
struct SmallFloat {
  int exponent_bits;
  int mantissa_bits;
  uint32_t largest;   // bits of the largest finite value, without sign
  uint32_t overflow;  // bits that replace a larger value
  uint32_t nan;
};

constexpr SmallFloat kHalf = {5, 10, 0x7bff, 0x7c00, 0x7e00};
constexpr SmallFloat kBrain = {8, 7, 0x7f7f, 0x7f80, 0x7fc0};
constexpr SmallFloat kE4M3 = {4, 3, 0x7e, 0x7e, 0x7f};
constexpr SmallFloat kE5M2 = {5, 2, 0x7b, 0x7b, 0x7e};

uint32_t Encode(const SmallFloat& format, double value) {
  const uint32_t sign =
      std::signbit(value) ? 1u << (format.exponent_bits + format.mantissa_bits) : 0;
  if (std::isnan(value)) return sign | format.nan;
  const double magnitude = std::abs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return sign | format.overflow;
  const int min_exponent = 2 - (1 << (format.exponent_bits - 1));  // for normal numbers
  const int exponent = std::max(std::ilogb(magnitude), min_exponent);
  if (exponent > -min_exponent + 1 + 1) return sign | format.overflow;
  // In units of the last place, with the hidden bit. A carry correctly increments the exponent.
  const auto units =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent)));
  const uint32_t bits =
      (static_cast<uint32_t>(exponent - min_exponent) << format.mantissa_bits) + units;
  return sign | (bits > format.largest ? format.overflow : bits);
}

template <typename U, typename V>
void StoreAs(void* base, int64_t index, V value) {
  const U stored = static_cast<U>(value);
  std::memcpy(static_cast<char*>(base) + index * sizeof(U), &stored, sizeof(U));
}

}  // namespace

void StoreElement(void* base, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kFloat64:
      return StoreAs<double>(base, index, value);
    case DType::kFloat32:
      return StoreAs<float>(base, index, value);
    case DType::kFloat16:
      return StoreAs<uint16_t>(base, index, Encode(kHalf, value));
    case DType::kBFloat16:
      return StoreAs<uint16_t>(base, index, Encode(kBrain, value));
    case DType::kFp8E4M3:
      return StoreAs<uint8_t>(base, index, Encode(kE4M3, value));
    case DType::kFp8E5M2:
      return StoreAs<uint8_t>(base, index, Encode(kE5M2, value));
  }
}

double RoundTo(DType dtype, double value) {
  std::array<char, 8> storage;
  StoreElement(storage.data(), dtype, 0, value);
  return LoadElement<double>(storage.data(), dtype, 0);
}

}  // namespace reprise
