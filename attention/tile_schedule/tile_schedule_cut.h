// How a tile schedule splits Q tiles: the builder's scratch memory
// (attention/tile_schedule/tile_schedule_builder.h), the ways to split, and their costs. Arithmetic
// for host and device. attention/tile_schedule/tile_schedule.h has the terms and a worked example.
//
// Cost. A Q tile with n KV tiles costs n * kStepCost + t; in deterministic mode, t for each split.
// CutCosts::tile is t: the cost of the Q tile's queries, block table and result.
//
// Two ways to split in balanced mode. The schedule takes the way that ends first by the estimates
// below.
//
//   Stream-K  Queues are w whole KV tiles wide. Queue c takes the costs [c * w, (c + 1) * w) *
//             kStepCost. A Q tile is split at the first KV tile that begins at or after a border. A
//             queue therefore has at most w KV tiles, and the first queues are filled completely:
//             8 rows of 16 KV tiles over 49 queues make queues of 3 KV tiles, not some of 3 and
//             some of 2. Identifiers call this way `filled`.
//   even      Each Q tile has splits of one size, and each queue has the same number of splits
//             (EvenCut) or, at the end, fewer. Q tiles of similar length have fewer splits to
//             combine than with Stream-K.
//
// Estimates. An estimate is the cost at which the last CTA ends. EndOfFilled() is the estimate for
// Stream-K. The even ways are:
//
//   clusters     One split per CTA of the Q tile's cluster, if the kernel runs in clusters. The
//                splits are combined through DSMEM, which saves CutCosts::merge.
//   unsplit      One split per Q tile, and the same number of Q tiles per queue. A CTA that is
//                alone on its SM takes CutCosts::lone_percent of the time for a KV tile.
//   splits       At most one split per queue, combined through global memory.
//   round-robin  Unsplit Q tiles, ordered by length: EndOfDealt(). Saves CutCosts::merge.
//
// Unsplit Q tiles save a combine as well, but some CTAs are then idle and do not read. The
// comparison with Stream-K therefore ignores the combine. Measured on an H200: queues of two
// unsplit Q tiles, 3 % wider than Stream-K queues, took 0.97 to 0.98 of the Stream-K time. Queues
// of four took 0.98 to 1.02.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_CUT_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_CUT_H_

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/host_device.h"

namespace reprise {

// A row. Absent arrays of the batch are replaced by their defaults.
struct alignas(16) TileScheduleRow {
  int32_t first_token;
  int32_t query_len;
  int32_t seq_len;
  int32_t tail_len;
  int32_t key_start;
  int32_t first_key;  // index of local key 0 in the table row, or in ragged k and v
  int32_t table_row;
  int32_t first_tile;  // the row's first Q tile, set by the builder
};

// A Q tile, the keys that its queries may see, and how it is split.
struct alignas(16) WorkTile {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t merge;
  int32_t key_begin, key_end;
  int64_t cost_begin;  // cost of all Q tiles before this one
  // Balanced mode, Stream-K: the queue of the first split; each further split is in the next queue.
  // Balanced mode, even splits, and deterministic mode: KV tiles per split. Round-robin: the Q
  // tile's rank in the order of lengths.
  int32_t cut;
  int32_t first_item;
  int32_t num_splits;  // 0: the row has no query, or belongs to the other schedule
  int32_t first_partial;
};

struct TileScheduleScratch {
  WorkTile* tiles;        // [max_tiles]
  TileScheduleRow* rows;  // [max_rows]
  int32_t* tile_of_item;  // [max_items]

  static constexpr int64_t Bytes(const KernelSchedule& schedule) {
    return schedule.max_tiles * static_cast<int64_t>(sizeof(WorkTile)) +
           schedule.max_rows * static_cast<int64_t>(sizeof(TileScheduleRow)) +
           schedule.max_items * static_cast<int64_t>(sizeof(int32_t));
  }

  REPRISE_HOST_DEVICE static TileScheduleScratch At(void* memory, const KernelSchedule& schedule) {
    WorkTile* tiles = static_cast<WorkTile*>(memory);
    TileScheduleRow* rows = reinterpret_cast<TileScheduleRow*>(tiles + schedule.max_tiles);
    return {tiles, rows, reinterpret_cast<int32_t*>(rows + schedule.max_rows)};
  }
};

// How the builder packs and adds up costs and counts. int32_t is used if it suffices for any
// content of the batch's arrays, because scans then take half the time. The counts of items,
// partials and combines share one number, with combines in the low bits.
struct TileScheduleSums {
  int partial_shift = 19;
  int item_shift = 42;
};

struct TileScheduleSumsOf {
  TileScheduleSums sums;
  bool is_narrow = false;  // int32_t suffices
};

// Computed from the capacities of the schedule.
inline TileScheduleSumsOf SumsOf(const KernelSchedule& schedule) {
  const int64_t tiles = schedule.max_tiles;
  const int64_t steps = schedule.max_seq_len / kWorkStepKeys + 1;
  const bool is_balanced = schedule.mode == TileScheduleMode::kBalanced;
  // Splits beyond the first of each Q tile.
  const int64_t cuts = is_balanced ? schedule.num_queues : tiles * (kMaxDeterministicSplits - 1);
  const int64_t max_cost = tiles * (steps * kStepCost + schedule.costs.tile) +
                           (cuts + schedule.num_queues) * schedule.costs.tile;
  // If prefixes are shared, every Q tile writes partials.
  const int64_t merges = is_balanced && schedule.max_shared_tiles == 0 ? cuts : tiles;
  const int64_t partials = (cuts + merges) * schedule.tile_queries;
  const auto bits = [](int64_t most) { return std::bit_width(static_cast<uint64_t>(most)); };
  const int partial_shift = bits(merges);
  const int item_shift = partial_shift + bits(partials);
  if (max_cost >= int64_t{1} << 30 || item_shift + bits(tiles + cuts) > 31) return {};
  return {.sums = {.partial_shift = partial_shift, .item_shift = item_shift}, .is_narrow = true};
}

// Whether all CTAs that have splits of a Q tile combine them cooperatively
// (attention/cuda/decode/cooperative_combine.h). The builder decides, because a decision in the
// kernel would delay the arrival after a split's last key. `num_keys`: keys of the Q tile.
// REQUIRES: the Q tile has partials, and no shared item covers it.
REPRISE_HOST_DEVICE inline bool CombinesCooperatively(const KernelSchedule& schedule,
                                                      int num_queries, int num_splits,
                                                      int num_keys) {
  if (schedule.min_joint_queries == 0 || num_splits > kMaxJointSplits) return false;
  return num_queries >= schedule.min_joint_queries || num_splits > kMaxSplitsAtOnce ||
         (num_splits >= schedule.costs.joint_splits &&
          num_keys >= num_splits * schedule.costs.joint_keys);
}

// `Sum` is the type of costs: int32_t if the plan's costs fit. Costs are not negative.
template <typename Sum>
REPRISE_HOST_DEVICE Sum DivideBy(Sum a, Sum b) {
  using Unsigned = std::make_unsigned_t<Sum>;
  return static_cast<Sum>(static_cast<Unsigned>(a) / static_cast<Unsigned>(b));
}

// Approximates the square root. The error differs between host and device.
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

// The minimum number of KV tiles per queue, without the Q tile's own cost, for Q tiles that cost
// `total_cost` together. A Q tile with n KV tiles and p splits takes about n / p KV tiles, and then
// p partials to combine, m of them in the time of a KV tile. The sum is smallest for p = sqrt(m n),
// that is, for splits of sqrt(n / m) KV tiles. `merges`: m * kStepCost.
template <typename Sum>
REPRISE_HOST_DEVICE int MinSteps(Sum total_cost, int num_tiles, int merges) {
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

// The minimum number of KV tiles per queue: MinSteps() plus the time of the Q tile. Slightly
// larger if a Q tile of mean length can then be combined in one level.
template <typename Sum>
REPRISE_HOST_DEVICE int MinWidth(Sum total_cost, int num_tiles, const CutCosts& costs) {
  const int least =
      MinSteps<Sum>(total_cost, num_tiles, costs.combines_per_step) + CeilOf(costs.tile, kStepCost);
  if (num_tiles == 0) return least;
  const Sum of_steps = total_cost - static_cast<Sum>(num_tiles) * costs.tile;
  const int mean =
      of_steps > 0 ? static_cast<int>(DivideBy<Sum>(of_steps, Sum{num_tiles} * kStepCost)) : 0;
  const int of_one_level = CeilOf(mean, kMaxSplitsAtOnce);
  const bool pays = of_one_level > least && of_one_level <= least + costs.combine_level_steps;
  return pays ? of_one_level : least;
}

// How all Q tiles are split evenly.
struct EvenCut {
  int split_steps = 0;      // maximum number of KV tiles per split; 0: Stream-K
  int splits_of_queue = 1;  // number of adjacent splits per queue, in the order of items
  int cluster = 1;          // above 1: Q tile t has the queues [t * cluster, (t + 1) * cluster)
};

// The CTA queues over which the costs of all Q tiles are distributed.
template <typename Sum>
class Queues {
 public:
  // Queues are at least `min_steps` wide, so some may stay empty.
  REPRISE_HOST_DEVICE Queues(Sum total_cost, int min_steps, int num_queues, int tile_cost)
      : tile_cost_(tile_cost), last_(num_queues - 1) {
    const Sum unit = static_cast<Sum>(num_queues) * kStepCost;
    Sum steps = DivideBy<Sum>(total_cost + unit - 1, unit);
    if (steps < min_steps) steps = min_steps;
    width_ = steps * kStepCost;
    inverse_width_ = RoughRatio(1.0f, static_cast<float>(width_));
  }

  REPRISE_HOST_DEVICE int steps() const { return static_cast<int>(width_ / kStepCost); }

  REPRISE_HOST_DEVICE bool are_filled() const { return even_.split_steps == 0; }
  REPRISE_HOST_DEVICE const EvenCut& even() const { return even_; }
  REPRISE_HOST_DEVICE void CutEvenly(const EvenCut& even) { even_ = even; }

  // The queue of a split of Q tile t. The split is item `item`. REQUIRES: !are_filled().
  REPRISE_HOST_DEVICE int EvenQueue(int t, int split, int item) const {
    if (even_.cluster > 1) return t * even_.cluster + split;
    const int queue = even_.splits_of_queue > 1
                          ? static_cast<int>(static_cast<uint32_t>(item) /
                                             static_cast<uint32_t>(even_.splits_of_queue))
                          : item;
    return queue < last_ ? queue : last_;
  }

  // Width of a Stream-K queue.
  REPRISE_HOST_DEVICE Sum width() const { return width_; }

  // The cost of a Q tile without its KV tiles.
  REPRISE_HOST_DEVICE int tile_cost() const { return tile_cost_; }

  // The cost at which the queue begins.
  REPRISE_HOST_DEVICE Sum Border(int queue) const { return queue * width_; }

  // The last queue that begins at or before `cost`.
  REPRISE_HOST_DEVICE int At(Sum cost) const {
    // A float represents the number of queues exactly, so the result is off by one at most.
    int queue = static_cast<int>(static_cast<float>(cost) * inverse_width_);
    const Sum rest = cost - Border(queue);
    if (rest < 0) --queue;
    if (rest >= width_) ++queue;
    return queue;
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

// The two ways to split a Q tile. CostOf() returns its cost, given the maximum number of splits.
// Cut() sets the number of splits, once all costs are known. StepOf() returns the KV tile of the Q
// tile at which a split after the first begins. QueueOf() returns the queue of a split of Q tile
// t.

struct BalancedCut {
  static constexpr bool kMayCutEvenly = true;

  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum CostOf(int, int tile_cost, WorkTile& tile) {
    return tile_cost + static_cast<Sum>(NumSteps(tile)) * kStepCost;
  }

  // The cost at which the Q tile's first KV tile begins.
  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum StepsBegin(const Queues<Sum>& queues, const WorkTile& tile) {
    return static_cast<Sum>(tile.cost_begin) + queues.tile_cost();
  }

  // Stream-K: splits at the queue borders between the begin of the first and of the last KV tile.
  template <typename Sum>
  REPRISE_HOST_DEVICE static void Cut(const Queues<Sum>& queues, WorkTile& tile) {
    const int steps = NumSteps(tile);
    if (!queues.are_filled()) {
      tile.num_splits = AtLeastOne(CeilOf(steps, queues.even().split_steps));
      tile.cut = CeilOf(steps, tile.num_splits);
      return;
    }
    const Sum begin = steps > 0 ? StepsBegin(queues, tile) : static_cast<Sum>(tile.cost_begin);
    const Sum last = begin + static_cast<Sum>(steps > 0 ? steps - 1 : 0) * kStepCost;
    tile.cut = queues.At(begin);
    tile.num_splits = queues.At(last) - tile.cut + 1;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int StepOf(const Queues<Sum>& queues, const WorkTile& tile,
                                        int split) {
    if (!queues.are_filled()) return split * tile.cut;
    const Sum cost = queues.Border(tile.cut + split) - StepsBegin(queues, tile);
    return static_cast<int>(DivideBy<Sum>(cost + kStepCost - 1, kStepCost));
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int QueueOf(const Queues<Sum>& queues, const WorkTile& tile, int t,
                                         int split) {
    if (!queues.are_filled()) return queues.EvenQueue(t, split, tile.first_item + split);
    return tile.cut + split;
  }
};

struct DeterministicCut {
  static constexpr bool kMayCutEvenly = false;

  // KV tiles per split.
  REPRISE_HOST_DEVICE static int ChunkOf(int steps, int splits) {
    const int most = (steps + kMinDeterministicSteps - 1) / kMinDeterministicSteps;
    if (splits > most) splits = most;
    if (splits <= 1) return steps > 0 ? steps : 1;
    return (steps + splits - 1) / splits;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static Sum CostOf(int max_splits, int tile_cost, WorkTile& tile) {
    const int steps = NumSteps(tile);
    tile.cut = ChunkOf(steps, max_splits);
    tile.num_splits = steps > 0 ? (steps + tile.cut - 1) / tile.cut : 1;
    return static_cast<Sum>(tile.num_splits) * tile_cost + static_cast<Sum>(steps) * kStepCost;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static void Cut(const Queues<Sum>&, WorkTile&) {}

  template <typename Sum>
  REPRISE_HOST_DEVICE static int StepOf(const Queues<Sum>&, const WorkTile& tile, int split) {
    return split * tile.cut;
  }

  template <typename Sum>
  REPRISE_HOST_DEVICE static int QueueOf(const Queues<Sum>& queues, const WorkTile& tile, int,
                                         int split) {
    const Sum split_cost = queues.tile_cost() + static_cast<Sum>(tile.cut) * kStepCost;
    return queues.At(static_cast<Sum>(tile.cost_begin) + split * split_cost);
  }
};

// Totals over the Q tiles of a schedule.
struct RangeTotals {
  int with_keys = 0;
  int without_keys = 0;
  // Q tiles that occupy a place in the queues. Q tiles without keys occupy none if they all come
  // last, as padded rows do.
  int to_place = 0;
  int longest_steps = 0;

  REPRISE_HOST_DEVICE int count() const { return with_keys + without_keys; }
  REPRISE_HOST_DEVICE int places_without_keys() const { return to_place - with_keys; }
};

// The end of Stream-K queues of `width`, if a queue has up to `ranges_of_queue` Q tiles.
REPRISE_HOST_DEVICE inline int64_t EndOfFilled(int64_t width, int ranges_of_queue,
                                               const CutCosts& costs) {
  const int64_t share = width * costs.border_percent / (int64_t{100} * ranges_of_queue);
  return width + (share > costs.border ? share : costs.border);
}

// The end of queues with one split each. The longest split has `steps` KV tiles. As in
// EndOfFilled(), combines through global memory are ignored.
REPRISE_HOST_DEVICE inline int64_t EndOfSplits(int steps) { return int64_t{steps} * kStepCost; }

// The end of unsplit Q tiles with one queue each.
REPRISE_HOST_DEVICE inline int64_t EndOfWholeRanges(const RangeTotals& ranges, int num_queues,
                                                    const CutCosts& costs) {
  const bool are_alone = ranges.to_place * costs.ctas_per_sm <= num_queues;
  return EndOfSplits(ranges.longest_steps) * (are_alone ? costs.lone_percent : 100) / 100;
}

// Limits of Team::RankByBucket() (attention/tile_schedule/tile_schedule_builder.h).
inline constexpr int kNumRankBuckets = 256;
inline constexpr int kMaxRanked = 0x7fff;

// The bucket of a round-robin Q tile with `steps` KV tiles; longer Q tiles have smaller buckets. If
// there are fewer buckets than lengths, each bucket covers a power of two of lengths.
REPRISE_HOST_DEVICE inline int DealBucket(int steps, int longest_steps) {
  int shift = 0;
  while (longest_steps >> shift >= kNumRankBuckets) ++shift;
  return (longest_steps - steps) >> shift;
}

// Whether a Q tile is a whole row with at most kDecodeRows query rows: a decode, or drafts to
// verify. The time of such a Q tile is mostly that of reading its keys.
template <typename Range>
REPRISE_HOST_DEVICE bool IsOfShortRow(const Range& range, int row_queries,
                                      const KernelSchedule& schedule) {
  return range.query_begin == 0 && range.query_end == row_queries &&
         row_queries * schedule.num_q_heads <= kDecodeRows * schedule.num_kv_heads;
}

// Whether odd CTAs process their round-robin list of units in reverse, given the maximum number of
// KV tiles per Q tile of short rows and of other rows; 0: no such rows. If the short rows are much
// shorter, no CTA reverses its list, so they run last. All CTAs are then memory bound at the same
// time, and none of them falls behind.
REPRISE_HOST_DEVICE inline bool AreDealtBothWays(int short_steps, int other_steps,
                                                 const CutCosts& costs) {
  return other_steps > 0 && short_steps >= costs.both_ways_steps && 2 * short_steps >= other_steps;
}

// Number of Q tiles with more than half, and with more than 7/8, of the KV tiles of the longest
// one.
struct LongRanges {
  int num_over_half = 0;
  int num_near_longest = 0;
};

// The end of unsplit Q tiles that are assigned round-robin, longest first. It is the maximum of
// three costs: the longest Q tile; the long Q tiles of the CTA with the largest number of them; and
// the mean cost of a CTA plus the units of an incomplete last round. The third estimate assumes
// that costs fall linearly from the longest Q tile. `total_cost` is the cost of all Q tiles for one
// head. REQUIRES: ranges.count() > 0.
REPRISE_HOST_DEVICE inline int64_t EndOfDealt(int64_t total_cost, const RangeTotals& ranges,
                                              const LongRanges& long_ranges,
                                              const KernelSchedule& schedule) {
  const int64_t ctas = schedule.num_ctas;
  const int64_t heads = schedule.num_head_tiles;
  const int64_t longest = int64_t{ranges.longest_steps} * kStepCost + schedule.costs.tile;
  const int64_t half_turns = (long_ranges.num_over_half * heads + ctas - 1) / ctas;
  const int64_t long_turns = (long_ranges.num_near_longest * heads + ctas - 1) / ctas;
  int64_t end = longest;
  if (half_turns * longest / 2 > end) end = half_turns * longest / 2;
  if (long_turns > 1 && long_turns * longest * 7 / 8 > end) end = long_turns * longest * 7 / 8;
  const int64_t units = ranges.count() * heads;
  const int64_t turns = units / ctas;
  if (turns == 0) return end;
  // The last round is incomplete. Its units are extra for the CTAs that have them.
  const int64_t rest = units - turns * ctas;
  const int64_t above_mean = longest - total_cost / ranges.count();
  const int64_t last = longest - 2 * turns * ctas * above_mean / units;
  const int64_t extra = last > 0 && rest > 0 ? last * (ctas - rest) / ctas : 0;
  const int64_t all = total_cost * heads / ctas + extra;
  return all > end ? all : end;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_CUT_H_
