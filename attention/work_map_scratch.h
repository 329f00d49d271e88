// What the builder of a work map remembers between its passes, in the map's workspace or, where it
// is small, in shared memory.

#ifndef ATTENTION_WORK_MAP_SCRATCH_H_
#define ATTENTION_WORK_MAP_SCRATCH_H_

#include <cstdint>

#include "attention/host_device.h"

namespace reprise {

// A query range of a row and the keys that its queries may see.
struct WorkTile {
  int64_t cost_begin;  // of all tiles before it
  int32_t row;
  int32_t query_begin;
  int32_t key_begin, key_end;
};

struct WorkMapScratch {
  WorkTile* tiles;      // [max_tiles]
  int32_t* first_tile;  // [max_rows] of each row

  static constexpr int64_t Bytes(int max_tiles, int max_rows) {
    return max_tiles * static_cast<int64_t>(sizeof(WorkTile)) +
           max_rows * static_cast<int64_t>(sizeof(int32_t));
  }

  REPRISE_HOST_DEVICE static WorkMapScratch At(void* memory, int max_tiles) {
    WorkTile* tiles = static_cast<WorkTile*>(memory);
    return {tiles, reinterpret_cast<int32_t*>(tiles + max_tiles)};
  }
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_SCRATCH_H_
