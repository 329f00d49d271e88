// Lists of lengths in the form of the command line: "4096x31,131072" is 31 times 4096, then 131072.

#ifndef TESTS_BENCHMARKS_DEVICE_LENGTH_LIST_H_
#define TESTS_BENCHMARKS_DEVICE_LENGTH_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace reprise {

// Errors: InvalidArgument naming the part that is not N or NxCOUNT with 0 <= N, 1 <= COUNT, both
// below 2^20 (N below 2^30).
absl::StatusOr<std::vector<int>> ParseLengths(absl::string_view text);

// The shortest text that ParseLengths() takes for `lengths`.
std::string LengthsToString(absl::Span<const int> lengths);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_LENGTH_LIST_H_
