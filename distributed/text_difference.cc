#include "reprise/distributed/text_difference.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace reprise {

std::string TextDifference(const std::string& expected, const std::string& got) {
  const auto [at, unused] = std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  const size_t start = std::max<int64_t>(0, at - expected.begin() - 20);
  const auto part = [start](const std::string& text) {
    return absl::StrCat(start > 0 ? "..." : "", text.substr(std::min(start, text.size()), 120));
  };
  return absl::StrCat("expected \"", part(expected), "\", got \"", part(got), "\"");
}

}  // namespace reprise
