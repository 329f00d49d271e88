#include "tests/golden/golden_measures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"

namespace reprise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// got - expected where `expected` is kept; nothing if they cannot be compared.
std::optional<std::vector<double>> Differences(absl::Span<const float> got,
                                               const GoldenLogits& expected) {
  const auto is_finite = [](float x) { return std::isfinite(x); };
  const size_t num_columns = expected.tokens.size();
  const size_t num_rows = num_columns == 0 ? 0 : expected.values.size() / num_columns;
  if (expected.values.size() != num_rows * num_columns ||
      got.size() != num_rows * expected.vocab_size || !absl::c_all_of(got, is_finite) ||
      !absl::c_all_of(expected.values, is_finite)) {
    return std::nullopt;
  }
  std::vector<double> differences;
  differences.reserve(expected.values.size());
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t i = 0; i < num_columns; ++i) {
      differences.push_back(double{got[row * expected.vocab_size + expected.tokens[i]]} -
                            double{expected.values[row * num_columns + i]});
    }
  }
  return differences;
}

double Rms(absl::Span<const double> differences) {
  if (differences.empty()) return 0;
  double sum = 0;
  for (const double difference : differences) sum += difference * difference;
  return std::sqrt(sum / static_cast<double>(differences.size()));
}

}  // namespace

double MaxError(absl::Span<const float> got, const GoldenLogits& expected) {
  const auto differences = Differences(got, expected);
  if (!differences.has_value()) return kInfinity;
  double largest = 0;
  for (const double difference : *differences) largest = std::max(largest, std::abs(difference));
  return largest;
}

double RmsError(absl::Span<const float> got, const GoldenLogits& expected) {
  const auto differences = Differences(got, expected);
  return differences.has_value() ? Rms(*differences) : kInfinity;
}

double MedianError(absl::Span<const float> got, const GoldenLogits& expected) {
  const auto differences = Differences(got, expected);
  if (!differences.has_value()) return kInfinity;
  std::vector<double> rows;
  const size_t num_columns = expected.tokens.size();
  for (size_t begin = 0; begin < differences->size(); begin += num_columns) {
    rows.push_back(Rms(absl::MakeConstSpan(*differences).subspan(begin, num_columns)));
  }
  if (rows.empty()) return 0;
  absl::c_sort(rows);
  return (rows[(rows.size() - 1) / 2] + rows[rows.size() / 2]) / 2;
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
