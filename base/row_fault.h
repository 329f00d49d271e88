// The reason why a metadata kernel emptied a row, as reported in row_faults.
//
// A builder or a conversion inside a graph cannot reject its input. A row that it cannot serve
// becomes an empty row: it has no keys, and nothing is written for it. row_faults holds the reason
// for each such row, and num_faults is the number of such rows; either array may be absent. All
// other rows are served. The checked host form returns the first fault as a Status with names and
// values. Padded rows have no fault.

#ifndef REPRISE_BASE_ROW_FAULT_H_
#define REPRISE_BASE_ROW_FAULT_H_

#include <cstdint>
#include <ostream>
#include <string_view>

namespace reprise {

enum class RowFault : int32_t {
  kNone = 0,
  kTableRow,  // its table row is not a row of the table
  kLength,    // a length or a count is negative or too large
  kNoBlock,   // a token needs a block that is null, outside the cache or outside the table
  kNoRoom,    // the tokens up to and including this row exceed the capacity of the result
  kTree,      // a node does not follow its parent
  // 6 is unused.
  kToken = 7,  // a token id is negative or was not given
  kNoRun,      // its tokens do not form whole blocks of consecutive slots
};

// Returns the text for messages, such as "its table row is not one of the table".
std::string_view ToString(RowFault fault);

std::ostream& operator<<(std::ostream& out, RowFault fault);

}  // namespace reprise

#endif  // REPRISE_BASE_ROW_FAULT_H_
