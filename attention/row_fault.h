// Why a builder made a row inert: what it reports in row_faults.
//
// A builder inside a graph cannot refuse its input. A row that it cannot serve gets seq_len 0 and
// slots -1, so that nobody attends to it and nothing is written for it, and its entry of row_faults
// says why; all other rows are served. The host form of a builder turns the first fault into a
// Status with names and values. Padded rows have no fault.

#ifndef ATTENTION_ROW_FAULT_H_
#define ATTENTION_ROW_FAULT_H_

#include <cstdint>
#include <ostream>
#include <string_view>

namespace reprise {

enum class RowFault : int32_t {
  kNone = 0,
  kTableRow,  // its table row is not one of the table
  kLength,    // a length or a count is negative or too large
  kNoBlock,   // a new token stands in the null block, outside the cache or beyond the table
  kNoRoom,    // its tokens, after those of the rows before it, pass the batch's capacity
  kTree,      // a node does not stand behind its parent
  kPath,      // the nodes that stay are no path from the tree's root
  kToken,     // a token id is negative
};

// "its table row is not one of the table", for messages.
std::string_view ToString(RowFault fault);

std::ostream& operator<<(std::ostream& out, RowFault fault);

}  // namespace reprise

#endif  // ATTENTION_ROW_FAULT_H_
