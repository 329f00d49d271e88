// Why a kernel that makes rows of metadata left one of them empty: what it reports in row_faults.
//
// A builder or a conversion inside a graph cannot refuse its input. A row that it cannot serve
// becomes an empty row, to which nothing attends and for which nothing is written. Its entry of
// row_faults gives the reason, and num_faults counts such rows; either array may be absent. All
// other rows are served. The host form turns the first fault into a Status with names and values.
// Padded rows have no fault.

#ifndef REPRISE_BASE_ROW_FAULT_H_
#define REPRISE_BASE_ROW_FAULT_H_

#include <cstdint>
#include <ostream>
#include <string_view>

namespace reprise {

enum class RowFault : int32_t {
  kNone = 0,
  kTableRow,  // its table row is not one of the table
  kLength,    // a length or a count is negative or too large
  kNoBlock,   // a token is in the null block where it may not be, outside the cache or the table
  kNoRoom,    // its tokens, after those of the rows before it, pass the capacity of the result
  kTree,      // a node does not follow its parent
  // 6 is not in use.
  kToken = 7,  // a token id is negative
  kNoRun,      // its tokens are not in runs of consecutive slots that make blocks
};

// "its table row is not one of the table", for messages.
std::string_view ToString(RowFault fault);

std::ostream& operator<<(std::ostream& out, RowFault fault);

}  // namespace reprise

#endif  // REPRISE_BASE_ROW_FAULT_H_
