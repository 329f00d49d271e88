// Decodes arbitrary bytes into calls of the block manager and the swap store, and compares both
// with a plain model of their state (cache/testing/block_manager_model.h). The first byte selects
// the cache, the other bytes select the calls.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "reprise/cache/testing/block_manager_model.h"
#include "reprise/cache/testing/choices.h"
#include "reprise/cache/testing/model_setups.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  reprise::ByteChoices choices(data + 1, size - 1);
  reprise::BlockManagerModel model(
      reprise::ModelSetupOf(data[0] % reprise::NumModelSetups()).options, &choices);
  while (!choices.is_done()) model.Step();
  return 0;
}
