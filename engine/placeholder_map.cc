#include "reprise/engine/placeholder_map.h"

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckRanges(absl::Span<const PlaceholderRange> ranges, size_t num_sequences) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    const PlaceholderRange& range = ranges[i];
    if (range.sequence < 0 || static_cast<size_t>(range.sequence) >= num_sequences) {
      return absl::InvalidArgumentError(absl::StrCat("ranges[", i, "].sequence: expected 0 to ",
                                                     static_cast<int64_t>(num_sequences) - 1,
                                                     ", got ", range.sequence));
    }
    if (range.first_position < 0 || range.length < 0 || range.first_source < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ranges[", i, "]: expected first_position, length and first_source of at least 0, got ",
          range.first_position, ", ", range.length, ", ", range.first_source));
    }
    if (i == 0) continue;
    const PlaceholderRange& before = ranges[i - 1];
    const bool sorted = before.sequence < range.sequence ||
                        (before.sequence == range.sequence &&
                         int64_t{before.first_position} + before.length <= range.first_position);
    if (!sorted) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ranges[", i,
          "] must not precede the end of the previous range: expected at least position ",
          int64_t{before.first_position} + before.length, " of sequence ", before.sequence,
          ", got position ", range.first_position, " of sequence ", range.sequence));
    }
  }
  return absl::OkStatus();
}

// Returns the ranges of one sequence.
absl::Span<const PlaceholderRange> RangesOf(absl::Span<const PlaceholderRange> ranges,
                                            int sequence) {
  const auto begin = absl::c_lower_bound(
      ranges, sequence, [](const PlaceholderRange& range, int s) { return range.sequence < s; });
  const auto end = std::find_if(begin, ranges.end(), [sequence](const PlaceholderRange& range) {
    return range.sequence != sequence;
  });
  return ranges.subspan(begin - ranges.begin(), end - begin);
}

}  // namespace

absl::StatusOr<int> MapPlaceholders(absl::Span<const BatchSequence> sequences,
                                    absl::Span<const int32_t> order,
                                    absl::Span<const PlaceholderRange> ranges,
                                    absl::Span<PlaceholderCopy> copies) {
  REPRISE_RETURN_IF_ERROR(CheckRanges(ranges, sequences.size()));
  const size_t num_rows = order.empty() ? sequences.size() : order.size();
  size_t num_copies = 0;
  int64_t first_token = 0;
  for (size_t row = 0; row < num_rows; ++row) {
    const int index = order.empty() ? static_cast<int>(row) : order[row];
    if (index < 0 || static_cast<size_t>(index) >= sequences.size()) {
      return absl::InvalidArgumentError(absl::StrCat("order[", row, "]: expected 0 to ",
                                                     static_cast<int64_t>(sequences.size()) - 1,
                                                     ", got ", index));
    }
    const BatchSequence& sequence = sequences[index];
    for (const PlaceholderRange& range : RangesOf(ranges, index)) {
      const int64_t begin = std::max(range.first_position, sequence.num_computed);
      const int64_t end =
          std::min(int64_t{range.first_position} + range.length, sequence.seq_len());
      if (begin >= end) continue;
      if (num_copies == copies.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("copies must have room for the copies of the step: expected more, got ",
                         copies.size()));
      }
      copies[num_copies++] = {
          .first_token = static_cast<int>(first_token + begin - sequence.num_computed),
          .first_source = static_cast<int>(range.first_source + begin - range.first_position),
          .length = static_cast<int>(end - begin)};
    }
    first_token += sequence.query_len;
  }
  return static_cast<int>(num_copies);
}

}  // namespace reprise
