// Hashes of prefixes: 128 bits for all tokens from the start of a sequence to the end of a block,
// and for everything else that the keys and values depend on.
//
//   const PrefixHasher hasher(PrefixSeed::Random());
//   PrefixHash parent = hasher.Root({{{.kind = ExtraKeyKind::kAdapter, .value = "lora-7"}}});
//   std::vector<PrefixHash> hashes(tokens.size() / 16);
//   hasher.Chain(parent, tokens, /*block_size=*/16, absl::MakeSpan(hashes));
//
// A block's hash is a function of its parent's hash, the block's extra keys and its tokens: the
// prefix, up to three tokens a coefficient, is a polynomial over the integers modulo 2^128 - 159,
// and the hash is its value at a secret point (polynomial hashing: Carter and Wegman, 1979;
// Poly1305, Bernstein, 2005). Two different polynomials of degree d agree in at most d points, so
// two different prefixes of at most n tokens have equal hashes for at most n + 1 in 2^128 of the
// seeds, whatever the prefixes are (an extra key counts as two tokens, and one more for each 12
// bytes of it). The hash is not secret: a reader of hashes can find the point, and then collisions.
// If hashes leave the process and the authors of prompts may read them, let PrefixIndex compare the
// tokens too.
//
// No LibTorch. Thread safety: const. Cost: a nanosecond or two a token, no allocation.

#ifndef REPRISE_CACHE_PREFIX_PREFIX_HASH_H_
#define REPRISE_CACHE_PREFIX_PREFIX_HASH_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

#include "absl/types/span.h"
#include "reprise/cache/prefix/prime_field_128.h"

namespace reprise {

struct PrefixHash {
  uint64_t low = 0;
  uint64_t high = 0;

  std::string ToString() const;  // 32 hexadecimal digits

  friend constexpr bool operator==(const PrefixHash&, const PrefixHash&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const PrefixHash& hash) {
    return H::combine(std::move(state), hash.low, hash.high);
  }
  friend std::ostream& operator<<(std::ostream& out, const PrefixHash& hash) {
    return out << hash.ToString();
  }
};

// The secret of the hash. Processes that compare hashes need the same seed.
struct PrefixSeed {
  uint64_t low = 0;
  uint64_t high = 0;

  // From the operating system.
  static PrefixSeed Random();
};

// Further inputs that the keys and values of a block depend on. The kind is part of the hash: an
// adapter and an image of the same name differ.
enum class ExtraKeyKind : uint8_t {
  kAdapter = 1,  // weights in addition to the model's
  kSalt = 2,     // limits sharing to a tenant or a trust domain
  kImage = 3,    // embeddings in place of tokens, by a hash of their content
  kAudio = 4,
  kVideo = 5,
  kEmbeddings = 6,
  kOther = 255,
};

struct ExtraKey {
  ExtraKeyKind kind = ExtraKeyKind::kOther;
  std::string_view value;  // any bytes
  // The first token of the input, from the start of the block; negative if in an earlier block.
  int64_t offset = 0;
};

class PrefixHasher {
 public:
  explicit PrefixHasher(PrefixSeed seed);

  // The parent of a sequence's first block. `extra`: the keys of the whole sequence, such as
  // adapter and salt, always in the same order.
  PrefixHash Root(absl::Span<const ExtraKey> extra = {}) const;

  // The hash of a block of `tokens`. `extra`: the keys of this block in addition to its parent's,
  // such as the images of its placeholders.
  PrefixHash Extend(PrefixHash parent, absl::Span<const int32_t> tokens,
                    absl::Span<const ExtraKey> extra = {}) const;

  // The hashes of the full blocks of `tokens`, which follow `parent`, for blocks without extra
  // keys. REQUIRES: block_size > 0 and hashes.size() <= tokens.size() / block_size.
  void Chain(PrefixHash parent, absl::Span<const int32_t> tokens, int block_size,
             absl::Span<PrefixHash> hashes) const;

  // `parent` together with a block's extra keys: Extend(parent, t, e) == Extend(Salted(parent, e),
  // t). Without extra keys `parent` itself.
  PrefixHash Salted(PrefixHash parent, absl::Span<const ExtraKey> extra) const;

 private:
  static constexpr int kNumPowers = 3;

  PrimeField128 powers_[kNumPowers];  // of the secret point: [i] is its (i + 1)-th
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_HASH_H_
