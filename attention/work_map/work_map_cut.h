// How a work map is cut: the builder's scratch memory (attention/work_map/work_map_builder.h), the ways
// to cut query ranges into pieces, and their costs. Arithmetic for host and device.
// attention/work_map/work_map.h has a worked example.
//
// Cost. A range of n steps of keys costs n * kStepCost + t. CutCosts::tile is t: the cost of the
// range's queries, table and result.
//
// Two ways to cut. The map takes the way that ends first by the estimates below.
//
//   filled  Columns are w whole steps wide. Column c takes the costs [c * w, (c + 1) * w) * kStepCost. A
//           range is cut at the first step that begins at a border or after it. So no column has more
//           than w steps of keys, and no more columns are used than that takes: a batch of 8 x 16 steps
//           is dealt to columns of 3 steps, if there are 49, and not to some of 3 and some of 2.
//   even    Each range is cut into pieces of one size, and each column has as many pieces. EvenCut says
//           how. Ranges of similar length have fewer pieces to merge than filled columns.
//
// Estimates. An estimate is the cost at which the last CTA ends. EndOfFilled() is the estimate of filled
// columns. The even cuts are:
//
//   clusters  one piece for each CTA of a range's cluster, where the kernel runs in clusters. They merge
//             in shared memory, which saves CutCosts::merge.
//   whole     one piece for each range, and a column for each or for as many. A CTA that is alone on its
//             multiprocessor takes CutCosts::lone_percent of the time for a step.
//   pieces    as many pieces for each range as there are columns for it, and a merge through memory
//   dealt     whole ranges, but in the order of their lengths: EndOfDealt(). Saves CutCosts::merge.
//
// Whole ranges save a merge as well, but some CTAs then have no work and do not read. So the comparison with
// filled columns leaves the merge out. Measured on an H200, columns of two whole ranges that were 3 % wider
// than filled ones took 0.97 to 0.98 of their time. Columns of four took 0.98 to 1.02.

#ifndef REPRISE_ATTENTION_WORK_MAP_WORK_MAP_CUT_H_
#define REPRISE_ATTENTION_WORK_MAP_WORK_MAP_CUT_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/host_device.h"

namespace reprise {

// A row with the batch's absent arrays resolved.
struct alignas(16) WorkMapRow {
  int32_t first_token;
  int32_t query_len;
  int32_t seq_len;
  int32_t tail_len;
  int32_t key_start;
  int32_t first_key;  // where local key 0 is: in the table row, or in ragged k and v
  int32_t table_row;
  int32_t first_tile;  // the row's first query range, set by the builder
};

// A query range of a row, the keys that its queries may see, and how they are cut.
struct alignas(16) WorkTile {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t merge;
  int32_t key_begin, key_end;
  int64_t cost_begin;  // of all tiles before it
  // Balanced: the column of the first piece; each further piece is in the next column. If each
  // piece has a column of its own, the steps of a piece; if ranges are dealt, the range's place in
  // that order. Deterministic: the steps of a piece.
  int32_t cut;
  int32_t first_item;
  int32_t num_pieces;  // 0: the row has no query, or belongs to another map
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

// The numbers in which the builder adds up costs and counts: 32 bits if that is enough for any
// content of the batch's arrays, because scans then take half as long. Items, partials and merges
// share a number, with merges in the low bits.
struct WorkMapSums {
  int partial_shift = 19;
  int item_shift = 42;
};

struct WorkMapSumsOf {
  WorkMapSums sums;
  bool is_narrow = false;  // int32_t suffices
};

// Follows from the map's shape.
inline WorkMapSumsOf SumsOf(const TileMap& map) {
  const int64_t tiles = map.max_tiles;
  const int64_t steps = map.max_seq_len / kWorkStepKeys + 1;
  const bool is_balanced = map.mode == WorkMapMode::kBalanced;
  // Pieces beyond the first of each range.
  const int64_t cuts = is_balanced ? map.num_columns : tiles * (kMaxDeterministicSplits - 1);
  const int64_t most_cost =
      tiles * (steps * kStepCost + map.costs.tile) + (cuts + map.num_columns) * map.costs.tile;
  // Where prefixes are shared, every range leaves partials.
  const int64_t merges = is_balanced && map.max_shared_tiles == 0 ? cuts : tiles;
  const int64_t partials = (cuts + merges) * map.tile_queries;
  const auto bits = [](int64_t most) { return std::bit_width(static_cast<uint64_t>(most)); };
  const int partial_shift = bits(merges);
  const int item_shift = partial_shift + bits(partials);
  if (most_cost >= int64_t{1} << 30 || item_shift + bits(tiles + cuts) > 31) return {};
  return {.sums = {.partial_shift = partial_shift, .item_shift = item_shift}, .is_narrow = true};
}

// Whether all CTAs that have pieces of a range merge it (attention/cuda/decode/joint_merge.h). Decided
// here, and not in the kernel, which would do so between a piece's last key and its arrival.
// REQUIRES: the range has partials, and none of shared items.
REPRISE_HOST_DEVICE inline bool MergesJointly(const TileMap& map, int num_queries, int num_pieces,
                                              int num_keys) {
  if (map.least_joint_queries == 0 || num_pieces > kMostJointPieces) return false;
  return num_queries >= map.least_joint_queries || num_pieces > kMostPiecesAtOnce ||
         (num_pieces >= map.costs.joint_pieces && num_keys >= num_pieces * map.costs.joint_keys);
}

// Costs are of type `Sum`, int32_t where a plan's cannot be larger. They are not negative.
template <typename Sum>
REPRISE_HOST_DEVICE Sum DivideBy(Sum a, Sum b) {
  using Unsigned = std::make_unsigned_t<Sum>;
  return static_cast<Sum>(static_cast<Unsigned>(a) / static_cast<Unsigned>(b));
}

// Approximates the root; the error differs between host and device.
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

// The steps that a column should have at least, apart from its tile, for ranges that cost
// `total_cost` together. A range of n steps in p pieces takes about n / p steps and then p partials
// to merge, m of them in the time of a step. The sum is least for p = sqrt(m n), that is pieces of
// sqrt(n / m) steps. `merges`: m * kStepCost.
template <typename Sum>
REPRISE_HOST_DEVICE int LeastSteps(Sum total_cost, int num_tiles, int merges) {
  const int64_t unit = int64_t{merges} * (num_tiles > 0 ? num_tiles : 1);
  const float ratio = RoughRatio(static_cast<float>(total_cost), static_cast<float>(unit));
  int steps = static_cast<int>(RoughRoot(ratio));
  // Corrects the approximation: steps^2 <= total_cost / unit < (steps + 1)^2.
  if (int64_t{steps} * steps * unit > total_cost) --steps;
  if (int64_t{steps + 1} * (steps + 1) * unit <= total_cost) ++steps;
  return steps > 1 ? steps : 1;
}

REPRISE_HOST_DEVICE inline int CeilOf(int a, int b) {
  return static_cast<int>(static_cast<uint32_t>(a + b - 1) / static_cast<uint32_t>(b));
}

// The steps that a column should have at least: LeastSteps() and the time of its tile. Or a few
// more, with which a range of mean length has so few pieces that they are merged in one level.
template <typename Sum>
REPRISE_HOST_DEVICE int LeastWidth(Sum total_cost, int num_tiles, const CutCosts& costs) {
  const int least =
      LeastSteps<Sum>(total_cost, num_tiles, costs.merges_per_step) + CeilOf(costs.tile, kStepCost);
  if (num_tiles == 0) return least;
  const Sum of_steps = total_cost - static_cast<Sum>(num_tiles) * costs.tile;
  const int mean =
      of_steps > 0 ? static_cast<int>(DivideBy<Sum>(of_steps, Sum{num_tiles} * kStepCost)) : 0;
  const int of_one_level = CeilOf(mean, kMostPiecesAtOnce);
  const bool pays = of_one_level > least && of_one_level <= least + costs.merge_level_steps;
  return pays ? of_one_level : least;
}

// A cut of all ranges into even pieces.
struct EvenCut {
  int piece_steps = 0;       // a piece has at most this many steps; 0: columns are filled
  int pieces_of_column = 1;  // a column has this many adjacent pieces, in the order of items
  int cluster = 1;           // above 1: range t has the columns [t * cluster, (t + 1) * cluster)
};

// The columns to which the costs of all ranges are dealt.
template <typename Sum>
class Columns {
 public:
  // Columns are at least `least_steps` wide, so some may stay empty.
  REPRISE_HOST_DEVICE Columns(Sum total_cost, int least_steps, int num_columns, int tile_cost)
      : tile_cost_(tile_cost), last_(num_columns - 1) {
    const Sum unit = static_cast<Sum>(num_columns) * kStepCost;
    Sum steps = DivideBy<Sum>(total_cost + unit - 1, unit);
    if (steps < least_steps) steps = least_steps;
    width_ = steps * kStepCost;
    inverse_width_ = RoughRatio(1.0f, static_cast<float>(width_));
  }

  REPRISE_HOST_DEVICE int steps() const { return static_cast<int>(width_ / kStepCost); }

  REPRISE_HOST_DEVICE bool are_filled() const { return even_.piece_steps == 0; }
  REPRISE_HOST_DEVICE const EvenCut& even() const { return even_; }
  REPRISE_HOST_DEVICE void CutEvenly(const EvenCut& even) { even_ = even; }

  // The column of a piece of range t, which is the item `item` of the map. REQUIRES: !are_filled().
  REPRISE_HOST_DEVICE int EvenColumn(int t, int piece, int item) const {
    if (even_.cluster > 1) return t * even_.cluster + piece;
    const int column = even_.pieces_of_column > 1
                           ? static_cast<int>(static_cast<uint32_t>(item) /
                                              static_cast<uint32_t>(even_.pieces_of_column))
                           : item;
    return column < last_ ? column : last_;
  }

  // Of a filled column.
  REPRISE_HOST_DEVICE Sum width() const { return width_; }

  // The cost of a range apart from its steps.
  REPRISE_HOST_DEVICE int tile_cost() const { return tile_cost_; }

  // The cost at which `column` begins.
  REPRISE_HOST_DEVICE Sum Border(int column) const { return column * width_; }

  // The last column that begins at or before `cost`.
  REPRISE_HOST_DEVICE int At(Sum cost) const {
    // There are far fewer columns than a float can represent exactly, so this is off by one at
    // most.
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
  EvenCut even_;
};

REPRISE_HOST_DEVICE inline int AtLeastOne(int value) { return value > 1 ? value : 1; }

REPRISE_HOST_DEVICE inline int StepOfKey(int key) {
  return static_cast<int>(static_cast<uint32_t>(key) / kWorkStepKeys);
}

REPRISE_HOST_DEVICE inline int NumSteps(const WorkTile& tile) {
  if (tile.key_begin >= tile.key_end) return 0;
  return StepOfKey(tile.key_end + kWorkStepKeys - 1) - StepOfKey(tile.key_begin);
}

// The two ways to cut a range. CostOf() returns its cost, given the most pieces of a range; Cut()
// sets how many pieces there are, once all costs are known; StepOf() returns the step of the range
// at which a piece after the first begins, and ColumnOf() the column that a piece of range t is in.

struct BalancedCut {
  static constexpr bool kMayCutEvenly = true;

  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum CostOf(int, int tile_cost, WorkTile& tile) {
    return tile_cost + static_cast<Sum>(NumSteps(tile)) * kStepCost;
  }

  // The cost at which the range's steps begin.
  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum StepsBegin(const Columns<Sum>& columns, const WorkTile& tile) {
    return static_cast<Sum>(tile.cost_begin) + columns.tile_cost();
  }

  // Cuts filled columns at the borders after the begin of the first step, up to the begin of the last.
  template <typename Sum>
  REPRISE_HOST_DEVICE static void Cut(const Columns<Sum>& columns, WorkTile& tile) {
    const int steps = NumSteps(tile);
    if (!columns.are_filled()) {
      tile.num_pieces = AtLeastOne(CeilOf(steps, columns.even().piece_steps));
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
    if (!columns.are_filled()) return piece * tile.cut;
    const Sum cost = columns.Border(tile.cut + piece) - StepsBegin(columns, tile);
    return static_cast<int>(DivideBy<Sum>(cost + kStepCost - 1, kStepCost));
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int ColumnOf(const Columns<Sum>& columns, const WorkTile& tile, int t,
                                          int piece) {
    if (!columns.are_filled()) return columns.EvenColumn(t, piece, tile.first_item + piece);
    return tile.cut + piece;
  }
};

struct DeterministicCut {
  static constexpr bool kMayCutEvenly = false;

  // Steps of a piece.
  REPRISE_HOST_DEVICE static int ChunkOf(int steps, int pieces) {
    const int most = (steps + kMinDeterministicSteps - 1) / kMinDeterministicSteps;
    if (pieces > most) pieces = most;
    if (pieces <= 1) return steps > 0 ? steps : 1;
    return (steps + pieces - 1) / pieces;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum CostOf(int most_pieces, int tile_cost, WorkTile& tile) {
    const int steps = NumSteps(tile);
    tile.cut = ChunkOf(steps, most_pieces);
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
  REPRISE_HOST_DEVICE static int ColumnOf(const Columns<Sum>& columns, const WorkTile& tile, int,
                                          int piece) {
    const Sum piece_cost = columns.tile_cost() + static_cast<Sum>(tile.cut) * kStepCost;
    return columns.At(static_cast<Sum>(tile.cost_begin) + piece * piece_cost);
  }
};

// The query ranges of a map.
struct RangeTotals {
  int with_keys = 0;
  int without_keys = 0;
  // Those that take a place in the columns. Ranges without keys take none if all of them are last, as
  // padded rows are.
  int to_place = 0;
  int longest_steps = 0;

  REPRISE_HOST_DEVICE int count() const { return with_keys + without_keys; }
  REPRISE_HOST_DEVICE int places_without_keys() const { return to_place - with_keys; }
};

// The end of filled columns of `width`, if there are up to `ranges_of_column` ranges for each column.
REPRISE_HOST_DEVICE inline int64_t EndOfFilled(int64_t width, int ranges_of_column,
                                               const CutCosts& costs) {
  const int64_t share = width * costs.border_percent / (int64_t{100} * ranges_of_column);
  return width + (share > costs.border ? share : costs.border);
}

// The end of columns that have one piece each. The longest piece has `steps` steps. As in EndOfFilled(),
// merges through memory are left out.
REPRISE_HOST_DEVICE inline int64_t EndOfPieces(int steps) { return int64_t{steps} * kStepCost; }

// The end of whole ranges with a column each.
REPRISE_HOST_DEVICE inline int64_t EndOfWholeRanges(const RangeTotals& ranges, int num_columns,
                                                    const CutCosts& costs) {
  const bool are_alone = ranges.to_place * costs.ctas_per_sm <= num_columns;
  return EndOfPieces(ranges.longest_steps) * (are_alone ? costs.lone_percent : 100) / 100;
}

// What the builder's teams can order (attention/work_map/work_map_builder.h).
inline constexpr int kNumRankBuckets = 256;
inline constexpr int kMostRanked = 0x7fff;

// The bucket of a dealt range of `steps` steps; longer ranges have smaller ones. Lengths are
// compared in steps, or in as many steps at a time (a power of two) as there are buckets for.
REPRISE_HOST_DEVICE inline int DealBucket(int steps, int longest_steps) {
  int shift = 0;
  while (longest_steps >> shift >= kNumRankBuckets) ++shift;
  return (longest_steps - steps) >> shift;
}

// Whether a range is a whole row of at most kDecodeRows rows of q: a decode, or drafts to verify.
// It takes about as long as its keys take to read, in a tile of any size.
template <typename Range>
REPRISE_HOST_DEVICE bool IsOfShortRow(const Range& range, int row_queries, const TileMap& map) {
  return range.query_begin == 0 && range.query_end == row_queries &&
         row_queries * map.num_q_heads <= kDecodeRows * map.num_kv_heads;
}

// Whether CTAs go through dealt units in both directions, given the most steps of a range of short
// rows and of the others; 0: there are none. Where short rows are much shorter they come last in
// either case: all CTAs read then, at any speed that leaves none of them behind.
REPRISE_HOST_DEVICE inline bool AreDealtBothWays(int short_steps, int other_steps,
                                                 const CutCosts& costs) {
  return other_steps > 0 && short_steps >= costs.both_ways_steps && 2 * short_steps >= other_steps;
}

// The ranges with more than half, and with more than 7/8, of the steps of the longest one.
struct LongRanges {
  int num_over_half = 0;
  int num_near_longest = 0;
};

// The end of whole ranges that are dealt, the longest first. It is the largest of three costs: the longest
// range; the long ranges of the CTA that has most of them; and the mean cost of a CTA, with the units of an
// incomplete last turn. To estimate those, costs are assumed to fall evenly from the longest range.
// `total_cost` is the cost of all ranges for one head. REQUIRES: ranges.count() > 0.
REPRISE_HOST_DEVICE inline int64_t EndOfDealt(int64_t total_cost, const RangeTotals& ranges,
                                              const LongRanges& long_ranges, const TileMap& map) {
  const int64_t ctas = map.num_ctas;
  const int64_t heads = map.num_virtual_heads;
  const int64_t longest = int64_t{ranges.longest_steps} * kStepCost + map.costs.tile;
  const int64_t half_turns = (long_ranges.num_over_half * heads + ctas - 1) / ctas;
  const int64_t long_turns = (long_ranges.num_near_longest * heads + ctas - 1) / ctas;
  int64_t end = longest;
  if (half_turns * longest / 2 > end) end = half_turns * longest / 2;
  if (long_turns > 1 && long_turns * longest * 7 / 8 > end) end = long_turns * longest * 7 / 8;
  const int64_t units = ranges.count() * heads;
  const int64_t turns = units / ctas;
  if (turns == 0) return end;
  // The last turn is not full: its units are extra for those that have them.
  const int64_t rest = units - turns * ctas;
  const int64_t above_mean = longest - total_cost / ranges.count();
  const int64_t last = longest - 2 * turns * ctas * above_mean / units;
  const int64_t extra = last > 0 && rest > 0 ? last * (ctas - rest) / ctas : 0;
  const int64_t all = total_cost * heads / ctas + extra;
  return all > end ? all : end;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_WORK_MAP_CUT_H_
