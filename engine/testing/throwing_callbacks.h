// A StopMatcher and a TokenMasker that throw, for tests of exceptions in callbacks.
//
// Thread safety: none; one owner.

#ifndef REPRISE_ENGINE_TESTING_THROWING_CALLBACKS_H_
#define REPRISE_ENGINE_TESTING_THROWING_CALLBACKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>

#include "absl/types/span.h"
#include "reprise/engine/request.h"
#include "reprise/engine/testing/puppet_masker.h"

namespace reprise {

// Throws in one of its calls of Burn(), and in all later calls.
struct Fuse {
  int num_calls_before = 0;     // calls that return
  bool throws_integer = false;  // instead of a std::runtime_error("burnt")

  void Burn() {
    if (num_calls_before-- > 0) return;
    if (throws_integer) throw 5;
    throw std::runtime_error("burnt");
  }
};

class ThrowingMatcher : public StopMatcher {
 public:
  explicit ThrowingMatcher(const Fuse& fuse) : fuse_(fuse) {}

  bool Ends(int32_t) override {
    fuse_.Burn();
    return false;
  }

  static std::function<std::unique_ptr<StopMatcher>()> Factory(const Fuse& fuse) {
    return [=] { return std::make_unique<ThrowingMatcher>(fuse); };
  }

 private:
  Fuse fuse_;
};

// A PuppetMasker that throws in Fill() or in Accept().
class ThrowingMasker : public PuppetMasker {
 public:
  enum class In { kFill, kAccept };

  ThrowingMasker(uint64_t seed, int num_tokens, In in, const Fuse& fuse)
      : PuppetMasker(seed, num_tokens), in_(in), fuse_(fuse) {}

  void Fill(absl::Span<int32_t> mask) override {
    if (in_ == In::kFill) fuse_.Burn();
    PuppetMasker::Fill(mask);
  }

  bool Accept(int32_t token) override {
    if (in_ == In::kAccept) fuse_.Burn();
    return PuppetMasker::Accept(token);
  }

  static std::function<std::unique_ptr<TokenMasker>()> Factory(uint64_t seed, int num_tokens, In in,
                                                               const Fuse& fuse) {
    return [=] { return std::make_unique<ThrowingMasker>(seed, num_tokens, in, fuse); };
  }

 private:
  In in_;
  Fuse fuse_;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_THROWING_CALLBACKS_H_
