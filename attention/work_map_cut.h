// Where query ranges are cut into pieces, for the builder of a work map
// (attention/work_map_builder.h): costs, columns, and the two ways to cut. Arithmetic for host and
// device.
//
// A range of n steps of keys costs n * kStepCost + t, t = TileMap::tile_cost (for its queries,
// table and result). Columns are whole steps wide, w of them, and column c takes the costs [c * w,
// (c + 1) * w) * kStepCost; a cut stands at the first step that begins at a border or behind it. So
// no column has more than w steps of keys, and no more columns are used than that takes: a batch of
// 8 x 16 steps is dealt to columns of 3 steps, if there are 49, and not to some of 3 and some of 2.
//
// Where ranges are fewer than columns, cuts at the columns' borders make pieces of all sizes, each
// to be merged. If pieces of one size do with about as wide columns, ranges are cut into those, and
// each piece has a column of its own (attention/work_map_ways.h).

#ifndef ATTENTION_WORK_MAP_CUT_H_
#define ATTENTION_WORK_MAP_CUT_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "attention/host_device.h"
#include "attention/work_map.h"
#include "attention/work_map_scratch.h"

namespace reprise {

// Costs are sums of `Sum`s, int32_t where a plan's cannot be larger. They are not negative.
template <typename Sum>
REPRISE_HOST_DEVICE Sum DivideBy(Sum a, Sum b) {
  using Unsigned = std::make_unsigned_t<Sum>;
  return static_cast<Sum>(static_cast<Unsigned>(a) / static_cast<Unsigned>(b));
}

// Near the root; how near differs between host and device.
REPRISE_HOST_DEVICE inline float RoughRoot(float value) {
#if defined(__CUDA_ARCH__)
  return value * rsqrtf(fmaxf(value, 1e-6f));
#else
  return std::sqrt(value);
#endif
}

REPRISE_HOST_DEVICE inline float RoughRatio(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

// What a column should have at least, in steps beside its tile, for ranges that cost `total_cost`
// together. A range of n steps in p pieces takes about n / p steps and then p partials to merge,
// m of them in the time of a step: least for p = sqrt(m n), pieces of sqrt(n / m).
// `merges`: m * kStepCost.
template <typename Sum>
REPRISE_HOST_DEVICE int LeastSteps(Sum total_cost, int num_tiles, int merges) {
  const int64_t unit = int64_t{merges} * (num_tiles > 0 ? num_tiles : 1);
  const float ratio = RoughRatio(static_cast<float>(total_cost), static_cast<float>(unit));
  int steps = static_cast<int>(RoughRoot(ratio));
  // From near to right: steps^2 <= total_cost / unit < (steps + 1)^2.
  if (int64_t{steps} * steps * unit > total_cost) --steps;
  if (int64_t{steps + 1} * (steps + 1) * unit <= total_cost) ++steps;
  return steps > 1 ? steps : 1;
}

// Where the costs of all ranges are dealt to columns.
template <typename Sum>
class Columns {
 public:
  // The columns are at least `least_steps` wide, so that some may stay empty.
  REPRISE_HOST_DEVICE Columns(Sum total_cost, int least_steps, int num_columns, int tile_cost)
      : tile_cost_(tile_cost), last_(num_columns - 1) {
    const Sum unit = static_cast<Sum>(num_columns) * kStepCost;
    Sum steps = DivideBy<Sum>(total_cost + unit - 1, unit);
    if (steps < least_steps) steps = least_steps;
    width_ = steps * kStepCost;
    inverse_width_ = RoughRatio(1.0f, static_cast<float>(width_));
  }

  REPRISE_HOST_DEVICE int steps() const { return static_cast<int>(width_ / kStepCost); }

  // 0: columns are filled one after the other. Else every piece has a column of its own, and at
  // most so many steps; ranges without keys beyond the last column share that.
  REPRISE_HOST_DEVICE int own_steps() const { return own_steps_; }
  REPRISE_HOST_DEVICE void GiveEachPieceItsOwn(int own_steps) { own_steps_ = own_steps; }
  REPRISE_HOST_DEVICE int OwnColumn(int item) const { return item < last_ ? item : last_; }

  // What a range costs beside its steps.
  REPRISE_HOST_DEVICE int tile_cost() const { return tile_cost_; }

  // The cost at which `column` begins.
  REPRISE_HOST_DEVICE Sum Border(int column) const { return column * width_; }

  // The last column that begins at or before `cost`.
  REPRISE_HOST_DEVICE int At(Sum cost) const {
    // There are far fewer columns than a float has digits for: it is off by one at most.
    int column = static_cast<int>(static_cast<float>(cost) * inverse_width_);
    const Sum rest = cost - Border(column);
    if (rest < 0) --column;
    if (rest >= width_) ++column;
    return column;
  }

 private:
  Sum width_;
  float inverse_width_;
  int tile_cost_;
  int last_;
  int own_steps_ = 0;
};

REPRISE_HOST_DEVICE inline int CeilOf(int a, int b) {
  return static_cast<int>(static_cast<uint32_t>(a + b - 1) / static_cast<uint32_t>(b));
}
REPRISE_HOST_DEVICE inline int AtLeastOne(int value) { return value > 1 ? value : 1; }

REPRISE_HOST_DEVICE inline int StepOfKey(int key) {
  return static_cast<int>(static_cast<uint32_t>(key) / kWorkStepKeys);
}

REPRISE_HOST_DEVICE inline int NumSteps(const WorkTile& tile) {
  if (tile.key_begin >= tile.key_end) return 0;
  return StepOfKey(tile.key_end + kWorkStepKeys - 1) - StepOfKey(tile.key_begin);
}

// The two ways to cut a range. CostOf() says what it costs, and is told how many ranges the row
// has; Cut() how many pieces there are, once all costs are known; StepOf() at which step of the
// range a piece but the first begins, and ColumnOf() which column it is in.

struct BalancedCut {
  static constexpr bool kMayGiveColumns = true;

  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum CostOf(int, int tile_cost, WorkTile& tile) {
    return tile_cost + static_cast<Sum>(NumSteps(tile)) * kStepCost;
  }

  // The cost at which the range's steps begin.
  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum StepsBegin(const Columns<Sum>& columns, const WorkTile& tile) {
    return static_cast<Sum>(tile.cost_begin) + columns.tile_cost();
  }

  // At the borders behind the begin of the first step, up to that of the last.
  template <typename Sum>
  REPRISE_HOST_DEVICE static void Cut(const Columns<Sum>& columns, WorkTile& tile) {
    const int steps = NumSteps(tile);
    if (columns.own_steps() > 0) {
      // Pieces of a range as even as they get.
      tile.num_pieces = AtLeastOne(CeilOf(steps, columns.own_steps()));
      tile.cut = CeilOf(steps, tile.num_pieces);
      return;
    }
    const Sum begin = steps > 0 ? StepsBegin(columns, tile) : static_cast<Sum>(tile.cost_begin);
    const Sum last = begin + static_cast<Sum>(steps > 0 ? steps - 1 : 0) * kStepCost;
    tile.cut = columns.At(begin);
    tile.num_pieces = columns.At(last) - tile.cut + 1;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int StepOf(const Columns<Sum>& columns, const WorkTile& tile,
                                        int piece) {
    if (columns.own_steps() > 0) return piece * tile.cut;
    const Sum cost = columns.Border(tile.cut + piece) - StepsBegin(columns, tile);
    return static_cast<int>(DivideBy<Sum>(cost + kStepCost - 1, kStepCost));
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int ColumnOf(const Columns<Sum>& columns, const WorkTile& tile,
                                          int piece) {
    if (columns.own_steps() > 0) return columns.OwnColumn(tile.first_item + piece);
    return tile.cut + piece;
  }
};

struct DeterministicCut {
  static constexpr bool kMayGiveColumns = false;

  // Steps of a piece. `row_tiles`: ranges of the row.
  REPRISE_HOST_DEVICE static int ChunkOf(int steps, int row_tiles) {
    int pieces = kMaxDeterministicSplits / row_tiles;
    const int most = (steps + kMinDeterministicSteps - 1) / kMinDeterministicSteps;
    if (pieces > most) pieces = most;
    if (pieces <= 1) return steps > 0 ? steps : 1;
    return (steps + pieces - 1) / pieces;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum CostOf(int row_tiles, int tile_cost, WorkTile& tile) {
    const int steps = NumSteps(tile);
    tile.cut = ChunkOf(steps, row_tiles);
    tile.num_pieces = steps > 0 ? (steps + tile.cut - 1) / tile.cut : 1;
    return static_cast<Sum>(tile.num_pieces) * tile_cost + static_cast<Sum>(steps) * kStepCost;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static void Cut(const Columns<Sum>&, WorkTile&) {}

  template <typename Sum>
  REPRISE_HOST_DEVICE static int StepOf(const Columns<Sum>&, const WorkTile& tile, int piece) {
    return piece * tile.cut;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int ColumnOf(const Columns<Sum>& columns, const WorkTile& tile,
                                          int piece) {
    const Sum piece_cost = columns.tile_cost() + static_cast<Sum>(tile.cut) * kStepCost;
    return columns.At(static_cast<Sum>(tile.cost_begin) + piece * piece_cost);
  }
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_CUT_H_
