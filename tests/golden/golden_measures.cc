#include "tests/golden/golden_measures.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/algorithm/container.h"

namespace reprise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool AreComparable(absl::Span<const float> a, absl::Span<const float> b) {
  const auto is_finite = [](float x) { return std::isfinite(x); };
  return a.size() == b.size() && absl::c_all_of(a, is_finite) && absl::c_all_of(b, is_finite);
}

}  // namespace

double MaxError(absl::Span<const float> got, absl::Span<const float> expected) {
  if (!AreComparable(got, expected)) return kInfinity;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(double{got[i]} - double{expected[i]}));
  }
  return largest;
}

double RmsError(absl::Span<const float> got, absl::Span<const float> expected) {
  if (!AreComparable(got, expected)) return kInfinity;
  if (got.empty()) return 0;
  double sum = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = double{got[i]} - double{expected[i]};
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(got.size()));
}

int NumEqualTokens(absl::Span<const int32_t> got, const GoldenTrack& golden) {
  const size_t length = std::min(got.size(), golden.tokens.size());
  const auto ends = std::mismatch(got.begin(), got.begin() + length, golden.tokens.begin());
  return static_cast<int>(ends.first - got.begin());
}

int NumDecidedTokens(const GoldenPrompt& golden, float least) {
  const auto close = absl::c_find_if(golden.margins, [&](float margin) { return margin < least; });
  return static_cast<int>(close - golden.margins.begin());
}

}  // namespace reprise
