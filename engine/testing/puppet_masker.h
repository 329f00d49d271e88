// A TokenMasker over the vocabulary of a PuppetDevice. The allowed tokens depend on all accepted
// tokens. Fails the test if a token was not allowed.
//
// Thread safety: none; one owner.

#ifndef REPRISE_ENGINE_TESTING_PUPPET_MASKER_H_
#define REPRISE_ENGINE_TESTING_PUPPET_MASKER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "reprise/engine/request.h"
#include "reprise/engine/testing/puppet_device.h"

namespace reprise {

class PuppetMasker : public TokenMasker {
 public:
  // Allows about one token in three. Ends the sequence after `num_tokens` tokens.
  PuppetMasker(uint64_t seed, int num_tokens) : state_(seed), num_tokens_(num_tokens) {}

  void Fill(absl::Span<int32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (int token = 0; token < kPuppetVocab; ++token) {
      if (Allows(token)) mask[token / 32] |= static_cast<int32_t>(uint32_t{1} << (token % 32));
    }
  }

  bool Accept(int32_t token) override {
    EXPECT_TRUE(Allows(token)) << "token " << token << " was not allowed";
    state_ = (state_ ^ static_cast<uint64_t>(token + 1)) * 1099511628211u;
    return --num_tokens_ > 0;
  }

  static std::function<std::unique_ptr<TokenMasker>()> Factory(uint64_t seed, int num_tokens) {
    return [=] { return std::make_unique<PuppetMasker>(seed, num_tokens); };
  }

 private:
  bool Allows(int32_t token) const {
    const uint64_t hash = (state_ ^ static_cast<uint64_t>(token * 31)) * 0x9E3779B97F4A7C15u >> 40;
    return hash % 3 == 0 || token == static_cast<int32_t>(state_ % kPuppetVocab);
  }

  uint64_t state_;
  int num_tokens_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_PUPPET_MASKER_H_
