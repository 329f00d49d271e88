#include "tests/benchmarks/device/length_list.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace reprise {
namespace {

constexpr int kMaxLength = 1 << 30;
constexpr int kMaxCount = 1 << 20;

}  // namespace

absl::StatusOr<std::vector<int>> ParseLengths(absl::string_view text) {
  std::vector<int> lengths;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('x', 1));
    int length = 0;
    int count = 1;
    if (!absl::SimpleAtoi(pair.first, &length) || length < 0 || length >= kMaxLength ||
        (absl::StrContains(part, 'x') && !absl::SimpleAtoi(pair.second, &count)) || count < 1 ||
        count >= kMaxCount) {
      return absl::InvalidArgumentError(
          absl::StrCat("lengths must be like 4096x31,131072: got '", part, "'"));
    }
    lengths.insert(lengths.end(), count, length);
  }
  return lengths;
}

std::string LengthsToString(absl::Span<const int> lengths) {
  std::string text;
  for (size_t begin = 0; begin < lengths.size();) {
    size_t end = begin + 1;
    while (end < lengths.size() && lengths[end] == lengths[begin]) ++end;
    absl::StrAppend(&text, begin ? "," : "", lengths[begin]);
    if (end - begin > 1) absl::StrAppend(&text, "x", end - begin);
    begin = end;
  }
  return text;
}

}  // namespace reprise
