// Checks of plain arguments, without LibTorch. For tensors see base/shape_check.h.
//
//   REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
//   REPRISE_RETURN_IF_ERROR(CheckBetween("num_nodes", args.num_nodes, 1, 64));
//   REPRISE_RETURN_IF_ERROR(CheckGiven("seq_lens", args.seq_lens));
//
//   "num_rows: expected at least 0, got -1"
//   "num_nodes: expected 1 to 64, got 65"
//   "seq_lens: expected an array, got none"
//
// Errors are InvalidArgument. Thread safety: pure functions. Cost: does not allocate unless a check
// fails.

#ifndef REPRISE_BASE_CHECK_H_
#define REPRISE_BASE_CHECK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace reprise {

absl::Status CheckAtLeast(std::string_view name, int64_t got, int64_t least);
absl::Status CheckAtMost(std::string_view name, int64_t got, int64_t most);
absl::Status CheckBetween(std::string_view name, int64_t got, int64_t least, int64_t most);

// Message: "ranges.size: expected 3, got 2".
absl::Status CheckEqual(std::string_view name, int64_t got, int64_t expected);

// Message: "scale: expected a positive, finite number, got nan".
absl::Status CheckPositive(std::string_view name, float got);

absl::Status CheckGiven(std::string_view name, const void* array);

}  // namespace reprise

#endif  // REPRISE_BASE_CHECK_H_
