// How a work map is cut: the builder's scratch memory (attention/work_map/work_map_builder.h),
// costs, columns, and the ways to cut query ranges into pieces. Arithmetic for host and device.
// attention/work_map/work_map.h has a worked example.
//
// Cost. A range of n steps of keys costs n * kStepCost + t, where t is TileMap::tile_cost (for its
// queries, table and result).
//
// Columns. They are w whole steps wide; column c takes the costs [c * w, (c + 1) * w) * kStepCost.
// A range is cut at the first step that begins at a border or after it. So no column has more than
// w steps of keys, and no more columns are used than that takes: a batch of 8 x 16 steps is dealt
// to columns of 3 steps, if there are 49, and not to some of 3 and some of 2.
//
// Ways. Where ranges are fewer than columns, cuts at the columns' borders make pieces of many
// sizes, each of which must be merged. So other ways are tried first:
//
//   whole    each range is one piece, in a column of its own
//   alike    each range is cut into as many pieces of one size, each in a column of its own
//   filled   columns are filled one after the other, and cuts are at their borders
//
// The first two have fewer pieces to merge, and suit ranges that are few and similar in length. A
// way is tried if the mean length favours it, and dropped if the ranges turn out not to be similar.
// The last one always works. Before all of them, where the kernel runs in clusters:
//
//   clusters  each range has a cluster of columns, and is cut into even pieces, one in each
//
// and where ranges are more than columns (WorkMapCosts::whole_ranges_percent):
//
//   whole ranges  each column has as many adjacent ranges, uncut, if they are few

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
      tiles * (steps * kStepCost + map.tile_cost) + (cuts + map.num_columns) * map.tile_cost;
  // Where prefixes are shared, every range leaves partials.
  const int64_t merges = is_balanced && map.max_shared_tiles == 0 ? cuts : tiles;
  const int64_t partials = (cuts + merges) * map.tile_queries;
  const auto bits = [](int64_t most) { return std::bit_width(static_cast<uint64_t>(most)); };
  const int partial_shift = bits(merges);
  const int item_shift = partial_shift + bits(partials);
  if (most_cost >= int64_t{1} << 30 || item_shift + bits(tiles + cuts) > 31) return {};
  return {.sums = {.partial_shift = partial_shift, .item_shift = item_shift}, .is_narrow = true};
}

// From so many rows of q on, one CTA has too much to read. Measured on an H200.
inline constexpr int kLeastJointRows = 8;
// Fewer rows are merged jointly if they have so many pieces, of so many keys on average. Of fewer
// pieces one CTA has little to read, and behind shorter ones all CTAs fetch the instructions of what
// follows at the same time.
inline constexpr int kLeastJointPieces = 16;
inline constexpr int kLeastJointKeys = 6 * kWorkStepKeys;

// Whether all CTAs that have pieces of a range merge it (attention/cuda/decode/joint_merge.h). Decided
// here, and not in the kernel, which would do so between a piece's last key and its arrival.
// REQUIRES: the range has partials, and none of shared items.
REPRISE_HOST_DEVICE inline bool MergesJointly(const TileMap& map, int num_queries, int num_pieces,
                                              int num_keys) {
  if (map.least_joint_queries == 0 || num_pieces > kMostJointPieces) return false;
  return num_queries >= map.least_joint_queries || num_pieces > kMostPiecesAtOnce ||
         (num_pieces >= kLeastJointPieces && num_keys >= num_pieces * kLeastJointKeys);
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

// One more level of merging (kMostPiecesAtOnce) takes about as long as this many steps.
inline constexpr int kStepsOfMergeLevel = 2;

// The steps that a column should have at least: LeastSteps() and the time of its tile. Or a few
// more, with which a range of mean length has so few pieces that they are merged in one level.
// `merges`: as for LeastSteps().
template <typename Sum>
REPRISE_HOST_DEVICE int LeastWidth(Sum total_cost, int num_tiles, int tile_cost, int merges) {
  const int least = LeastSteps<Sum>(total_cost, num_tiles, merges) + CeilOf(tile_cost, kStepCost);
  if (num_tiles == 0) return least;
  const Sum of_steps = total_cost - static_cast<Sum>(num_tiles) * tile_cost;
  const int mean =
      of_steps > 0 ? static_cast<int>(DivideBy<Sum>(of_steps, Sum{num_tiles} * kStepCost)) : 0;
  const int of_one_level = CeilOf(mean, kMostPiecesAtOnce);
  const bool pays = of_one_level > least && of_one_level <= least + kStepsOfMergeLevel;
  return pays ? of_one_level : least;
}

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

  // 0: columns are filled one after the other. Else every piece has a column of its own and at most
  // this many steps; ranges without keys past the last column share that column.
  REPRISE_HOST_DEVICE int own_steps() const { return own_steps_; }
  REPRISE_HOST_DEVICE void GiveEachPieceItsOwn(int own_steps) { own_steps_ = own_steps; }
  REPRISE_HOST_DEVICE int OwnColumn(int item) const { return item < last_ ? item : last_; }

  // 0: columns do not have whole ranges. Else range t is in column WholeColumn(t), uncut.
  REPRISE_HOST_DEVICE int whole_ranges() const { return whole_ranges_; }
  REPRISE_HOST_DEVICE void GiveWholeRanges(int ranges_of_column) {
    whole_ranges_ = ranges_of_column;
  }
  REPRISE_HOST_DEVICE int WholeColumn(int t) const { return OwnColumn(t / whole_ranges_); }

  // 0: ranges have no clusters. Else range t has this many columns, from t times as many on.
  REPRISE_HOST_DEVICE int cluster() const { return cluster_; }
  REPRISE_HOST_DEVICE void GiveEachRangeACluster(int cluster) { cluster_ = cluster; }

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
  int own_steps_ = 0;
  int cluster_ = 0;
  int whole_ranges_ = 0;
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

  // Cuts at the borders after the begin of the first step, up to the begin of the last.
  template <typename Sum>
  REPRISE_HOST_DEVICE static void Cut(const Columns<Sum>& columns, WorkTile& tile) {
    const int steps = NumSteps(tile);
    if (columns.whole_ranges() > 0) {
      tile.cut = 0;
      tile.num_pieces = 1;
      return;
    }
    if (columns.cluster() > 0) {
      tile.cut = AtLeastOne(CeilOf(steps, columns.cluster()));
      tile.num_pieces = AtLeastOne(CeilOf(steps, tile.cut));
      return;
    }
    if (columns.own_steps() > 0) {
      // The range's pieces are as even as possible.
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
    if (columns.cluster() > 0 || columns.own_steps() > 0) return piece * tile.cut;
    const Sum cost = columns.Border(tile.cut + piece) - StepsBegin(columns, tile);
    return static_cast<int>(DivideBy<Sum>(cost + kStepCost - 1, kStepCost));
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int ColumnOf(const Columns<Sum>& columns, const WorkTile& tile, int t,
                                          int piece) {
    if (columns.whole_ranges() > 0) return columns.WholeColumn(t);
    if (columns.cluster() > 0) return t * columns.cluster() + piece;
    if (columns.own_steps() > 0) return columns.OwnColumn(tile.first_item + piece);
    return tile.cut + piece;
  }
};

struct DeterministicCut {
  static constexpr bool kMayGiveColumns = false;

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
struct TileCounts {
  int with_keys = 0;
  int without_keys = 0;
};

// A column with so many steps more than ranges of mean length have ends no later than a filled one,
// whose CTA has a unit and a merge more.
inline constexpr int kStepsOfUnevenness = 2;

// The most whole ranges of a column: of few steps, and of many. Idle columns cost more with more ranges,
// and what filled ones cut does not. Measured on an H200, times by those of filled columns: two ranges
// 0.97 to 0.98; four of 64 steps 0.98 to 1.00; four of 16 steps 1.00 alone, 1.02 within a model's step;
// eight 1.01.
inline constexpr int kMostWholeRanges = 3;
inline constexpr int kMostLongWholeRanges = 4;
inline constexpr int kStepsOfLongRange = 32;

// Whether columns of `ranges_of_column` whole ranges each end before filled ones of `filled_width`.
// `total_cost`: of all `num_tiles` ranges; `fullest`: the cost of the fullest column.
template <typename Sum>
REPRISE_HOST_DEVICE bool WholeRangesEndFirst(Sum total_cost, int num_tiles, int ranges_of_column,
                                             Sum fullest, Sum filled_width, int percent) {
  const bool are_long =
      static_cast<int64_t>(total_cost) >= int64_t{kStepsOfLongRange * kStepCost} * num_tiles;
  if (ranges_of_column > (are_long ? kMostLongWholeRanges : kMostWholeRanges)) return false;
  const int64_t most = static_cast<int64_t>(total_cost) * ranges_of_column +
                       int64_t{kStepsOfUnevenness * kStepCost} * num_tiles;
  return static_cast<int64_t>(fullest) * num_tiles <= most &&
         static_cast<int64_t>(fullest) * 100 <=
             static_cast<int64_t>(filled_width) * (100 + percent);
}

template <typename Sum>
class CutWays {
 public:
  // Ranges of at most this many steps are not cut in two, if each can have a multiprocessor to
  // itself. Measured on an H200, where one CTA per multiprocessor reads 12 % less per second than
  // two: at 24 steps the difference is the time of a merge.
  static constexpr int kWholeSteps = 24;

  // `columns`: as when filled. A column should not have fewer steps than `least_steps`.
  REPRISE_HOST_DEVICE CutWays(Sum total_cost, const TileCounts& tiles, int least_steps,
                              int num_columns, const Columns<Sum>& columns)
      : num_tiles_(tiles.with_keys), least_steps_(least_steps) {
    if (num_tiles_ == 0 || num_tiles_ > num_columns) return;
    const Sum all_tiles = static_cast<Sum>(num_tiles_ + tiles.without_keys) * columns.tile_cost();
    num_steps_ = static_cast<int>((total_cost - all_tiles) / kStepCost);
    pieces_ = num_columns / num_tiles_;
    if (pieces_ == 2 && num_steps_ <= kWholeSteps * num_tiles_) {
      way_ = Way::kWhole;
    } else {
      TryAlike(columns);
    }
  }

  // The most steps of a piece that has a column of its own; 0: columns are filled.
  REPRISE_HOST_DEVICE int own_steps() const {
    if (way_ == Way::kFilled) return 0;
    const int own = CeilOf(num_steps_, num_tiles_ * (way_ == Way::kWhole ? 1 : pieces_));
    return own > least_steps_ ? own : least_steps_;
  }

  // Whether the cut of this way is valid, with `num_merges` ranges in several pieces;
  // are_in_columns() returns whether each piece has a column. If false, the caller tries the next
  // way.
  template <typename AreInColumns>
  REPRISE_HOST_DEVICE bool IsDone(int num_merges, AreInColumns are_in_columns,
                                  const Columns<Sum>& columns) {
    if (way_ == Way::kFilled) return true;
    if (way_ == Way::kWhole) {
      if (num_merges == 0) return true;
      TryAlike(columns);
      return false;
    }
    if (are_in_columns()) return true;
    way_ = Way::kFilled;
    return false;
  }

 private:
  enum class Way { kWhole, kAlike, kFilled };

  REPRISE_HOST_DEVICE void TryAlike(const Columns<Sum>& columns) {
    way_ = Way::kAlike;
    if (own_steps() > columns.steps() + AtLeastOne(columns.steps() / 8)) way_ = Way::kFilled;
  }

  int num_tiles_;
  int least_steps_;
  int num_steps_ = 0;
  int pieces_ = 0;  // of each range
  Way way_ = Way::kFilled;
};

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

// Short rows of fewer steps gain less than a CTA that goes backwards loses by finding its first
// unit later.
inline constexpr int kLeastStepsBothWays = 8;

// Whether CTAs go through dealt units in both directions, given the most steps of a range of short
// rows and of the others; 0: there are none. Where short rows are much shorter they come last in
// either case: all CTAs read then, at any speed that leaves none of them behind.
REPRISE_HOST_DEVICE inline bool AreDealtBothWays(int short_steps, int other_steps) {
  return other_steps > 0 && short_steps >= kLeastStepsBothWays && 2 * short_steps >= other_steps;
}

// Query ranges that might be dealt (attention/work_map/cta_units.h).
struct RangesToDeal {
  int count = 0;
  int longest_steps = 0;
  // Those with more than half, and with more than 7/8, of the longest one's steps.
  int num_over_half = 0;
  int num_near_longest = 0;
};

// Whether whole ranges, dealt longest first, end before columns would. An estimate: the largest of
// the longest range's cost; the cost of all, where those of the last turn are taken from costs that
// fall evenly from the longest to twice the mean less the longest; and what the CTAs with most of
// the long ranges have. `total_cost`: of the ranges, for one head.
REPRISE_HOST_DEVICE inline bool DealEndsFirst(int64_t total_cost, const RangesToDeal& ranges,
                                              const TileMap& map) {
  if (ranges.count == 0 || ranges.longest_steps == 0) return false;
  const int64_t ctas = map.num_ctas;
  const int64_t heads = map.num_virtual_heads;
  const int64_t units = ranges.count * heads;
  const int64_t all_cost = total_cost * heads;
  const int64_t columns_end =
      all_cost / (int64_t{map.num_columns} * map.heads_per_column) + map.cut_cost;

  const int64_t longest = int64_t{ranges.longest_steps} * kStepCost + map.tile_cost;
  const int64_t half_turns = (ranges.num_over_half * heads + ctas - 1) / ctas;
  const int64_t long_turns = (ranges.num_near_longest * heads + ctas - 1) / ctas;
  if (longest > columns_end || half_turns * longest / 2 > columns_end ||
      (long_turns > 1 && long_turns * longest * 7 / 8 > columns_end)) {
    return false;
  }
  const int64_t turns = units / ctas;
  if (turns == 0) return true;
  // The last turn is not full: its units are extra for those that have them.
  const int64_t rest = units - turns * ctas;
  const int64_t above_mean = longest - total_cost / ranges.count;
  const int64_t last = longest - 2 * turns * ctas * above_mean / units;
  const int64_t extra = last > 0 && rest > 0 ? last * (ctas - rest) / ctas : 0;
  return all_cost / ctas + extra <= columns_end;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_WORK_MAP_CUT_H_
