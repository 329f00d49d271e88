#include "reprise/base/row_fault.h"

namespace reprise {

std::string_view ToString(RowFault fault) {
  switch (fault) {
    case RowFault::kNone:
      return "no fault";
    case RowFault::kTableRow:
      return "its table row is not one of the table";
    case RowFault::kLength:
      return "a length or a count is negative or too large";
    case RowFault::kNoBlock:
      return "a token has no block of the cache";
    case RowFault::kNoRoom:
      return "its tokens pass the capacity of the result";
    case RowFault::kTree:
      return "a node does not follow its parent";
    case RowFault::kToken:
      return "a token id is negative or was not given";
    case RowFault::kNoRun:
      return "its tokens are not in runs of consecutive slots that make blocks";
  }
  return "unknown fault";
}

std::ostream& operator<<(std::ostream& out, RowFault fault) { return out << ToString(fault); }

}  // namespace reprise
