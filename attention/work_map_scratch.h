// What the builder of a work map remembers between its passes, in the map's workspace or, where it
// is small, in shared memory.

#ifndef ATTENTION_WORK_MAP_SCRATCH_H_
#define ATTENTION_WORK_MAP_SCRATCH_H_

#include <cstdint>

#include "attention/host_device.h"

namespace reprise {

// A query range of a row, the keys that its queries may see, and how they are cut.
struct WorkTile {
  int64_t cost_begin;  // of all tiles before it
  int32_t row;
  int32_t key_begin, key_end;
  int32_t num_pieces;    // 0: the row has no query
  int32_t first_border;  // the first column that begins inside it, if it is cut
  int32_t first_item;
  int32_t first_partial;
  int32_t merge;
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
