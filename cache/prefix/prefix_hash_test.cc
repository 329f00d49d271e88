#include "reprise/cache/prefix/prefix_hash.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/prefix/prime_field_128.h"

namespace reprise {
namespace {

constexpr PrefixSeed kSeed = {.low = 11, .high = 22};

std::vector<int32_t> TokensFrom(int32_t first, int num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// The definition: one coefficient per three tokens, added one after the other.
PrefixHash SlowHash(const PrefixHasher& hasher, PrefixHash parent,
                    absl::Span<const int32_t> tokens) {
  const PrefixHash root = hasher.Root();  // the point itself
  const PrimeField128 point = PrimeField128::FromHalves(root.low, root.high);
  PrimeField128 hash = PrimeField128::FromHalves(parent.low, parent.high);
  for (size_t i = 0; i < tokens.size(); i += 3) {
    const absl::Span<const int32_t> some = tokens.subspan(i, 3);
    std::array<uint64_t, 4> words = {0, 0, 0, some.size()};
    for (size_t k = 0; k < some.size(); ++k) words[k] = static_cast<uint32_t>(some[k]);
    hash =
        (hash + PrimeField128::FromHalves(words[0] | words[1] << 32, words[2] | words[3] << 32)) *
        point;
  }
  return {.low = hash.low(), .high = hash.high()};
}

TEST(PrefixHashTest, MatchesTheDocumentedPolynomial) {
  const PrefixHasher hasher(kSeed);
  for (int num_tokens = 0; num_tokens <= 40; ++num_tokens) {
    const std::vector<int32_t> tokens = TokensFrom(-7, num_tokens);
    EXPECT_EQ(hasher.Extend(hasher.Root(), tokens), SlowHash(hasher, hasher.Root(), tokens))
        << num_tokens;
  }
}

TEST(PrefixHashTest, ChainMatchesRepeatedExtend) {
  const PrefixHasher hasher(kSeed);
  const std::vector<int32_t> tokens = TokensFrom(0, 37);
  for (const int block_size : {1, 2, 3, 7, 16, 37}) {
    std::vector<PrefixHash> hashes(tokens.size() / block_size);
    hasher.Chain(hasher.Root(), tokens, block_size, absl::MakeSpan(hashes));
    PrefixHash parent = hasher.Root();
    for (size_t i = 0; i < hashes.size(); ++i) {
      parent =
          hasher.Extend(parent, absl::MakeConstSpan(tokens).subspan(i * block_size, block_size));
      EXPECT_EQ(hashes[i], parent);
    }
  }
}

TEST(PrefixHashTest, DifferentSeedsHaveDifferentHashes) {
  const std::vector<int32_t> tokens = TokensFrom(0, 16);
  const auto hash = [&](PrefixSeed seed) {
    const PrefixHasher hasher(seed);
    return hasher.Extend(hasher.Root(), tokens);
  };
  EXPECT_EQ(hash(kSeed), hash(kSeed));
  absl::flat_hash_set<PrefixHash> hashes;
  for (uint64_t i = 0; i < 64; ++i) {
    EXPECT_TRUE(hashes.insert(hash({.low = uint64_t{1} << i, .high = 0})).second);
    EXPECT_TRUE(hashes.insert(hash({.low = 0, .high = uint64_t{1} << i})).second);
  }
  EXPECT_TRUE(hashes.insert(hash({})).second);
  EXPECT_TRUE(hashes.insert(hash(PrefixSeed::Random())).second);
  EXPECT_TRUE(hashes.insert(hash(PrefixSeed::Random())).second);
}

// Hashes inputs that a weak hash could confuse.
TEST(PrefixHashTest, DifferentInputsHaveDifferentHashes) {
  const PrefixHasher hasher(kSeed);
  const PrefixHash root = hasher.Root();
  std::vector<PrefixHash> hashes;
  // Up to 20 zeros, extreme tokens, and a few tokens in several orders.
  for (int num_tokens = 0; num_tokens <= 20; ++num_tokens) {
    hashes.push_back(hasher.Extend(root, std::vector<int32_t>(num_tokens, 0)));
  }
  for (const std::vector<int32_t>& tokens : std::vector<std::vector<int32_t>>{{-1},
                                                                              {2147483647},
                                                                              {-2147483647 - 1},
                                                                              {1},
                                                                              {0, 1},
                                                                              {1, 0},
                                                                              {1, 2, 3},
                                                                              {3, 2, 1},
                                                                              {0, 0, 0, 1},
                                                                              {1, 0, 0, 0}}) {
    hashes.push_back(hasher.Extend(root, tokens));
  }
  // The same name with a different kind; the same bytes, split differently or with a different
  // length.
  const std::string zero(1, '\0'), zeros(2, '\0'), twelve(12, 'x'), thirteen(13, 'x');
  using Keys = std::vector<ExtraKey>;
  const std::vector<Keys> all_keys = {
      {{.kind = ExtraKeyKind::kAdapter, .value = "7"}},
      {{.kind = ExtraKeyKind::kImage, .value = "7"}},
      {{.kind = ExtraKeyKind::kSalt, .value = "7"}},
      {{.kind = ExtraKeyKind::kImage, .value = "7", .offset = 1}},
      {{.kind = ExtraKeyKind::kImage, .value = "7", .offset = -1}},
      {{.kind = ExtraKeyKind::kSalt, .value = ""}},
      {{.kind = ExtraKeyKind::kSalt, .value = zero}},
      {{.kind = ExtraKeyKind::kSalt, .value = zeros}},
      {{.kind = ExtraKeyKind::kSalt, .value = twelve}},
      {{.kind = ExtraKeyKind::kSalt, .value = thirteen}},
      {{.kind = ExtraKeyKind::kImage, .value = "ab"}, {.kind = ExtraKeyKind::kImage, .value = "c"}},
      {{.kind = ExtraKeyKind::kImage, .value = "a"}, {.kind = ExtraKeyKind::kImage, .value = "bc"}},
      {{.kind = ExtraKeyKind::kImage, .value = "bc"}, {.kind = ExtraKeyKind::kImage, .value = "a"}},
      {{.kind = ExtraKeyKind::kImage, .value = "abc"}},
      {{.kind = ExtraKeyKind::kAdapter, .value = "7"}, {.kind = ExtraKeyKind::kSalt, .value = "7"}},
  };
  for (const Keys& keys : all_keys) {
    hashes.push_back(hasher.Root(keys));
    hashes.push_back(hasher.Extend(root, TokensFrom(0, 16), keys));
    hashes.push_back(
        hasher.Extend(hasher.Extend(root, TokensFrom(0, 16)), TokensFrom(16, 16), keys));
  }
  const absl::flat_hash_set<PrefixHash> distinct(hashes.begin(), hashes.end());
  EXPECT_EQ(distinct.size(), hashes.size());
}

TEST(PrefixHashTest, ExtendWithExtraKeysMatchesExtendOfASaltedParent) {
  const PrefixHasher hasher(kSeed);
  const std::vector<ExtraKey> extra = {{.kind = ExtraKeyKind::kImage, .value = "cat", .offset = 3}};
  const std::vector<int32_t> tokens = TokensFrom(0, 16);
  EXPECT_EQ(hasher.Extend(hasher.Root(), tokens, extra),
            hasher.Extend(hasher.Salted(hasher.Root(), extra), tokens));
  EXPECT_EQ(hasher.Salted(hasher.Root(), {}), hasher.Root());
}

TEST(PrefixHashTest, PrintsAs32Digits) {
  EXPECT_EQ((PrefixHash{.low = 0xABC, .high = 1}).ToString(), "00000000000000010000000000000abc");
}

TEST(PrefixHashTest, HashingDoesNotAllocate) {
  const PrefixHasher hasher(kSeed);
  const std::vector<int32_t> tokens = TokensFrom(0, 160);
  std::array<PrefixHash, 10> hashes;
  const ExtraKey key = {.kind = ExtraKeyKind::kAdapter, .value = "an adapter with a long name"};
  const AllocationCounter allocations;
  hasher.Chain(hasher.Root({&key, 1}), tokens, 16, absl::MakeSpan(hashes));
  EXPECT_EQ(allocations.count(), 0);
}

// Hashes 260,000 similar prefixes: many differ only in one token or in length. All 128-bit hashes
// must differ. Six groups of 32 bits must collide about as often as random bits: n^2 / 2^33 = 7.9
// times. 40 collisions are more than ten standard deviations away.
TEST(PrefixHashTest, Any32BitsCollideNoMoreThanRandomBits) {
  const PrefixSeed seed = PrefixSeed::Random();
  SCOPED_TRACE(testing::Message() << "seed " << seed.low << ", " << seed.high);
  const PrefixHasher hasher(seed);
  std::vector<PrefixHash> hashes;
  const PrefixHash root = hasher.Root();
  for (int32_t first = 0; first < 200000; ++first) {
    hashes.push_back(
        hasher.Extend(root, {first, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
  }
  for (int i = 0; i < 16; ++i) {
    for (int32_t token = 0; token < 1000; ++token) {
      std::vector<int32_t> tokens(16, 500000);
      tokens[i] = token;
      hashes.push_back(hasher.Extend(root, tokens));
    }
  }
  PrefixHash parent = root;
  for (int i = 0; i < 44000; ++i) hashes.push_back(parent = hasher.Extend(parent, {0, 0, 0, 0}));

  EXPECT_EQ((absl::flat_hash_set<PrefixHash>(hashes.begin(), hashes.end()).size()), hashes.size());
  for (const int shift : {0, 16, 32}) {
    for (const bool high : {false, true}) {
      std::vector<uint32_t> words;
      for (const PrefixHash& hash : hashes) {
        words.push_back(static_cast<uint32_t>((high ? hash.high : hash.low) >> shift));
      }
      std::sort(words.begin(), words.end());
      const auto end = std::unique(words.begin(), words.end());
      EXPECT_LE(words.end() - end, 40) << "bits from " << shift << (high ? " of high" : " of low");
    }
  }
}

// Over random seeds, changing a bit of a token changes each bit of the hash in half of the cases:
// 4,000 cases, standard deviation 0.0079. Allows six standard deviations for each of the 128 bits.
TEST(PrefixHashTest, ChangedInputBitChangesHalfOfTheHashBits) {
  const unsigned random_seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << random_seed);
  std::mt19937_64 random(random_seed);
  constexpr int kNumCases = 4000;
  for (const int changed : {0, 7, 15}) {
    std::array<int, 128> num_changes = {};
    for (int i = 0; i < kNumCases; ++i) {
      const PrefixHasher hasher({.low = random(), .high = random()});
      std::vector<int32_t> tokens(16);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 128000);
      const PrefixHash before = hasher.Extend(hasher.Root(), tokens);
      tokens[changed] ^= 1 << (random() % 17);
      const PrefixHash after = hasher.Extend(hasher.Root(), tokens);
      for (int bit = 0; bit < 64; ++bit) {
        num_changes[bit] += (before.low ^ after.low) >> bit & 1;
        num_changes[64 + bit] += (before.high ^ after.high) >> bit & 1;
      }
    }
    for (int bit = 0; bit < 128; ++bit) {
      EXPECT_NEAR(num_changes[bit] / double{kNumCases}, 0.5, 6 * 0.0079)
          << "bit " << bit << ", token " << changed;
    }
  }
}

TEST(PrefixHashDeathTest, DiesOnAChainLongerThanItsTokens) {
  const PrefixHasher hasher(kSeed);
  std::vector<PrefixHash> hashes(3);
  EXPECT_DEATH(hasher.Chain(hasher.Root(), TokensFrom(0, 47), 16, absl::MakeSpan(hashes)),
               "too few tokens for blocks of 16 tokens");
  EXPECT_DEATH(hasher.Chain(hasher.Root(), TokensFrom(0, 47), 0, absl::MakeSpan(hashes)),
               "block_size > 0");
}

}  // namespace
}  // namespace reprise
