// A changed entry of a sequence's block table. A block manager or your own scheduler passes it to
// the runner, which owns the tables on the device.
//
//   const BlockTableUpdate updates[] = {
//       {.slot = SlotId(3), .column = 0, .block = BlockId(7)},   // tokens 0 to block_size - 1
//       {.slot = SlotId(3), .column = 1, .block = BlockId(9)},
//       {.slot = SlotId(5), .column = 0, .block = kNullBlock},   // left the window: cleared
//   };
//
// A list of updates is applied in order. This struct is used only on the host; kernels read a
// StepUpdate (runner/slots/step_delta.h).

#ifndef REPRISE_CACHE_TABLES_BLOCK_TABLE_UPDATE_H_
#define REPRISE_CACHE_TABLES_BLOCK_TABLE_UPDATE_H_

#include <cstdint>

#include "reprise/base/ids.h"

namespace reprise {

struct BlockTableUpdate {
  SlotId slot = {};    // the table's row
  int32_t column = 0;  // position / block_size
  BlockId block = {};  // kNullBlock clears the entry
  int32_t group = 0;   // KV group of the table: cache/kv_group.h

  friend bool operator==(const BlockTableUpdate&, const BlockTableUpdate&) = default;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_BLOCK_TABLE_UPDATE_H_
