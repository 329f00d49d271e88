// Where query ranges are cut into pieces, for the builder of a work map
// (attention/work_map_builder.h): costs, columns, and the two ways to cut. Arithmetic for host and
// device.
//
// A range of n steps of keys costs t + n, t = WorkMap::tile_cost (for its queries, table and
// result). In balanced mode column c of C takes the costs [floor(c * total / C), floor((c + 1) *
// total / C)).

#ifndef ATTENTION_WORK_MAP_CUT_H_
#define ATTENTION_WORK_MAP_CUT_H_

#include <cstdint>

#include "attention/host_device.h"
#include "attention/work_map.h"
#include "attention/work_map_scratch.h"

namespace reprise {

// a / b of numbers that are not negative. Most are small, and then this is many times quicker.
REPRISE_HOST_DEVICE inline int64_t Divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

// Where the costs of all ranges are dealt to columns.
class Columns {
 public:
  // Not all columns are used if they would take less than `least_cost`, more than tile_cost, each.
  REPRISE_HOST_DEVICE Columns(int64_t total_cost, int64_t least_cost, int num_columns,
                              int tile_cost)
      : total_(total_cost), columns_(Divide(total_cost, least_cost)), tile_cost_(tile_cost) {
    if (columns_ > num_columns) columns_ = num_columns;
    if (columns_ < 1) columns_ = 1;
  }

  // What a range costs beside its steps.
  REPRISE_HOST_DEVICE int tile_cost() const { return tile_cost_; }

  // The cost at which `column` begins.
  REPRISE_HOST_DEVICE int64_t Border(int64_t column) const {
    return Divide(column * total_, columns_);
  }

  // The last column that begins at or before `cost`.
  REPRISE_HOST_DEVICE int At(int64_t cost) const {
    return static_cast<int>(Divide((cost + 1) * columns_ - 1, total_));
  }

  // The first column that begins at or after `cost`.
  REPRISE_HOST_DEVICE int64_t FirstFrom(int64_t cost) const {
    return Divide(cost * columns_ + total_ - 1, total_);
  }

 private:
  int64_t total_;
  int64_t columns_;
  int tile_cost_;
};

REPRISE_HOST_DEVICE inline int NumSteps(const WorkTile& tile) {
  if (tile.key_begin >= tile.key_end) return 0;
  return (tile.key_end + kWorkStepKeys - 1) / kWorkStepKeys - tile.key_begin / kWorkStepKeys;
}

// The two ways to cut a range. Each says how many pieces there are, what the range costs before
// that is known, where (in steps of the range) a piece begins, and which column it is in.

struct BalancedCut {
  REPRISE_HOST_DEVICE static int64_t CostOf(const WorkTile& tile, int, int tile_cost) {
    return tile_cost + NumSteps(tile);
  }

  REPRISE_HOST_DEVICE static void Cut(const Columns& columns, int, WorkTile& tile) {
    const int steps = NumSteps(tile);
    tile.num_pieces = 1;
    tile.first_border = 0;
    if (steps < 2) return;
    // Borders strictly inside the steps; the first step stands at cost_begin + tile_cost.
    const int64_t first = columns.FirstFrom(tile.cost_begin + columns.tile_cost() + 1);
    const int last = columns.At(tile.cost_begin + columns.tile_cost() + steps - 1);
    if (last < first) return;
    tile.first_border = static_cast<int32_t>(first);
    tile.num_pieces = static_cast<int32_t>(last - first + 2);
  }

  REPRISE_HOST_DEVICE static int64_t StepOf(const Columns& columns, const WorkTile& tile, int,
                                            int piece) {
    return columns.Border(tile.first_border + piece - 1) - tile.cost_begin - columns.tile_cost();
  }

  REPRISE_HOST_DEVICE static int ColumnOf(const Columns& columns, const WorkTile& tile, int,
                                          int piece) {
    if (tile.num_pieces > 1) return tile.first_border + piece - 1;
    return columns.At(tile.cost_begin + (tile.key_begin < tile.key_end ? columns.tile_cost() : 0));
  }
};

struct DeterministicCut {
  // Steps of a piece. `row_tiles`: ranges of the row.
  REPRISE_HOST_DEVICE static int ChunkOf(const WorkTile& tile, int row_tiles) {
    const int steps = NumSteps(tile);
    int pieces = kMaxDeterministicSplits / row_tiles;
    const int most = (steps + kMinDeterministicSteps - 1) / kMinDeterministicSteps;
    if (pieces > most) pieces = most;
    if (pieces <= 1) return steps > 0 ? steps : 1;
    return (steps + pieces - 1) / pieces;
  }

  REPRISE_HOST_DEVICE static int PiecesOf(const WorkTile& tile, int row_tiles) {
    const int steps = NumSteps(tile);
    const int chunk = ChunkOf(tile, row_tiles);
    return steps > 0 ? (steps + chunk - 1) / chunk : 1;
  }

  REPRISE_HOST_DEVICE static int64_t CostOf(const WorkTile& tile, int row_tiles, int tile_cost) {
    return static_cast<int64_t>(PiecesOf(tile, row_tiles)) * tile_cost + NumSteps(tile);
  }

  REPRISE_HOST_DEVICE static void Cut(const Columns&, int row_tiles, WorkTile& tile) {
    tile.num_pieces = PiecesOf(tile, row_tiles);
    tile.first_border = 0;
  }

  REPRISE_HOST_DEVICE static int64_t StepOf(const Columns&, const WorkTile& tile, int row_tiles,
                                            int piece) {
    return static_cast<int64_t>(piece) * ChunkOf(tile, row_tiles);
  }

  REPRISE_HOST_DEVICE static int ColumnOf(const Columns& columns, const WorkTile& tile,
                                          int row_tiles, int piece) {
    return columns.At(tile.cost_begin + static_cast<int64_t>(piece) *
                                            (columns.tile_cost() + ChunkOf(tile, row_tiles)));
  }
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_CUT_H_
