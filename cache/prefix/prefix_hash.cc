#include "reprise/cache/prefix/prefix_hash.h"

#include <glog/logging.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "reprise/cache/prefix/prime_field_128.h"

namespace reprise {
namespace {

// The kind of a coefficient, in bits 96 and above. Never 0, so that different inputs have different
// sequences of coefficients.
enum Tag : uint32_t {
  kOneToken = 1,  // kOneToken + n: n + 1 tokens
  kKindAndSize = 4,
  kOffset = 5,
  kBytes = 6,
};
constexpr int kTokensACoefficient = 3;
constexpr int kBytesACoefficient = 12;

PrimeField128 Coefficient(uint32_t tag, uint32_t high, uint64_t low) {
  return PrimeField128::FromHalves(low, uint64_t{tag} << 32 | high);
}

uint64_t Packed(int32_t low, int32_t high) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}

// The finaliser of MurmurHash3 (Appleby, 2011), a bijection. Seeds that differ in one bit yield
// unrelated points.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCD;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53;
  return x ^ (x >> 33);
}

// Returns a field element other than 0 and 1, at which the polynomial would distinguish few inputs.
PrimeField128 PointOf(PrefixSeed seed) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  const uint64_t low = Mix(seed.low + kGoldenRatio);
  const uint64_t high = Mix(seed.high + Mix(low));
  const PrimeField128 point = PrimeField128::FromHalves(low, high);
  return point.low() > 1 || point.high() > 0 ? point : PrimeField128::FromHalves(kGoldenRatio, 1);
}

PrimeField128 FieldOf(PrefixHash hash) { return PrimeField128::FromHalves(hash.low, hash.high); }
PrefixHash HashOf(PrimeField128 value) { return {.low = value.low(), .high = value.high()}; }

}  // namespace

std::string PrefixHash::ToString() const {
  return absl::StrCat(absl::Hex(high, absl::kZeroPad16), absl::Hex(low, absl::kZeroPad16));
}

PrefixSeed PrefixSeed::Random() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  return {.low = word(), .high = word()};
}

PrefixHasher::PrefixHasher(PrefixSeed seed) {
  const PrimeField128 point = PointOf(seed);
  powers_[0] = point;
  for (int i = 1; i < kNumPowers; ++i) powers_[i] = powers_[i - 1] * point;
}

PrefixHash PrefixHasher::Root(absl::Span<const ExtraKey> extra) const {
  return Salted(HashOf(powers_[0]), extra);
}

PrefixHash PrefixHasher::Salted(PrefixHash parent, absl::Span<const ExtraKey> extra) const {
  const PrimeField128 point = powers_[0];
  PrimeField128 hash = FieldOf(parent);
  const auto absorb = [&](PrimeField128 coefficient) { hash = (hash + coefficient) * point; };
  for (const ExtraKey& key : extra) {
    absorb(Coefficient(kKindAndSize, static_cast<uint32_t>(key.kind), key.value.size()));
    absorb(Coefficient(kOffset, 0, static_cast<uint64_t>(key.offset)));
    for (std::string_view rest = key.value; !rest.empty();) {
      uint8_t bytes[16] = {};
      const size_t num_bytes = std::min<size_t>(rest.size(), kBytesACoefficient);
      for (size_t i = 0; i < num_bytes; ++i) bytes[i] = static_cast<uint8_t>(rest[i]);
      uint64_t low = 0, high = 0;
      for (int i = 0; i < 8; ++i) low |= uint64_t{bytes[i]} << (8 * i);
      for (int i = 0; i < 4; ++i) high |= uint64_t{bytes[8 + i]} << (8 * i);
      absorb(Coefficient(kBytes, static_cast<uint32_t>(high), low));
      rest.remove_prefix(num_bytes);
    }
  }
  return HashOf(hash);
}

PrefixHash PrefixHasher::Extend(PrefixHash parent, absl::Span<const int32_t> tokens,
                                absl::Span<const ExtraKey> extra) const {
  PrimeField128 hash = FieldOf(extra.empty() ? parent : Salted(parent, extra));
  const int32_t* token = tokens.data();
  size_t num_left = tokens.size();
  const auto three = [&](int i) {
    return Coefficient(kOneToken + 2, static_cast<uint32_t>(token[3 * i + 2]),
                       Packed(token[3 * i], token[3 * i + 1]));
  };
  // Horner's rule for several coefficients at a time, so that their products are independent.
  constexpr int kTokensAStep = kNumPowers * kTokensACoefficient;
  for (; num_left >= kTokensAStep; num_left -= kTokensAStep, token += kTokensAStep) {
    PrimeField128 sum = (hash + three(0)) * powers_[kNumPowers - 1];
    for (int i = 1; i < kNumPowers; ++i) sum = sum + three(i) * powers_[kNumPowers - 1 - i];
    hash = sum;
  }
  for (; num_left >= kTokensACoefficient; num_left -= 3, token += 3) {
    hash = (hash + three(0)) * powers_[0];
  }
  if (num_left > 0) {
    const int32_t second = num_left == 2 ? token[1] : 0;
    const uint32_t tag = kOneToken + static_cast<uint32_t>(num_left) - 1;
    hash = (hash + Coefficient(tag, 0, Packed(token[0], second))) * powers_[0];
  }
  return HashOf(hash);
}

void PrefixHasher::Chain(PrefixHash parent, absl::Span<const int32_t> tokens, int block_size,
                         absl::Span<PrefixHash> hashes) const {
  CHECK_GT(block_size, 0);
  CHECK_LE(hashes.size(), tokens.size() / block_size)
      << "too few tokens for blocks of " << block_size << " tokens";
  for (size_t i = 0; i < hashes.size(); ++i) {
    parent = hashes[i] = Extend(parent, tokens.subspan(i * block_size, block_size));
  }
}

}  // namespace reprise
