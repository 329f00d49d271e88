// What the builder of a work map remembers between its passes, in shared memory or, where it is
// large, in the map's workspace.

#ifndef ATTENTION_WORK_MAP_SCRATCH_H_
#define ATTENTION_WORK_MAP_SCRATCH_H_

#include <cstdint>

#include "attention/host_device.h"
#include "attention/work_map.h"
#include "attention/work_map_key_range.h"

namespace reprise {

// A query range of a row, the keys that its queries may see, and how they are cut.
struct alignas(16) WorkTile {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t merge;
  int32_t key_begin, key_end;
  int64_t cost_begin;  // of all tiles before it
  // Balanced: the column of the first piece; the others are in those behind it. Deterministic:
  // steps of a piece.
  int32_t cut;
  int32_t first_item;
  int32_t num_pieces;  // 0: the row has no query, or is another map's
  int32_t first_partial;
};

struct WorkMapScratch {
  WorkTile* tiles;        // [max_tiles]
  WorkMapRow* rows;       // [max_rows]
  int32_t* tile_of_item;  // [max_items]

  static constexpr int64_t Bytes(const TileMap& map) {
    return map.max_tiles * static_cast<int64_t>(sizeof(WorkTile)) +
           map.max_rows * static_cast<int64_t>(sizeof(WorkMapRow)) +
           map.max_items * static_cast<int64_t>(sizeof(int32_t));
  }

  REPRISE_HOST_DEVICE static WorkMapScratch At(void* memory, const TileMap& map) {
    WorkTile* tiles = static_cast<WorkTile*>(memory);
    WorkMapRow* rows = reinterpret_cast<WorkMapRow*>(tiles + map.max_tiles);
    return {tiles, rows, reinterpret_cast<int32_t*>(rows + map.max_rows)};
  }
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_SCRATCH_H_
