// This project's base/ids.h, and Reprise's, which headers of Reprise include. It is not included
// here, so that they alone have to find it.

#include "base/ids.h"
#include "reprise/cache/blocks/block_manager.h"

int main() {
  const reprise::SlotId slot(kOwnSlot);
  auto blocks = reprise::BlockManager::Create({.num_blocks = 4, .num_slots = 1, .max_blocks = 3});
  const bool has_blocks =
      blocks.ok() && blocks->Add(slot, 40).ok() && blocks->blocks(slot).size() == 3;
  return has_blocks ? 0 : 1;
}
