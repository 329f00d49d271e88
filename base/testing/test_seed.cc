#include "reprise/base/testing/test_seed.h"

#include <glog/logging.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>

#include "absl/strings/numbers.h"

namespace reprise {
namespace {

std::optional<unsigned> SeedOfEnvironment() {
  const char* const value = std::getenv("REPRISE_SEED");
  if (value == nullptr) return std::nullopt;
  uint32_t seed = 0;
  CHECK(absl::SimpleAtoi(value, &seed))
      << "REPRISE_SEED must be a number: expected 0 to " << std::numeric_limits<uint32_t>::max()
      << ", got \"" << value << "\"";
  return seed;
}

}  // namespace

unsigned TestSeed() {
  const std::optional<unsigned> seed = SeedOfEnvironment();
  return seed.has_value() ? *seed : std::random_device()();
}

std::vector<unsigned> TestSeeds(std::initializer_list<unsigned> otherwise) {
  const std::optional<unsigned> seed = SeedOfEnvironment();
  return seed.has_value() ? std::vector<unsigned>{*seed} : std::vector<unsigned>(otherwise);
}

}  // namespace reprise
