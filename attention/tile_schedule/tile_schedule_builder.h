// The builder of a tile schedule for one kernel tile size. The same code runs on host and device.
//
// First, the keys that the queries of a Q tile may see: the contract of attention/paged_batch.h as
// interval arithmetic. Then three passes: the keys and cost of each Q tile (preceded by the Q tiles
// of each row, if a row can have several); the splits of each Q tile; the items.
// attention/tile_schedule/tile_schedule_cut.h decides where Q tiles are split.
//
// A Team runs the passes. The host's team runs them serially. The device's team is a few CTAs:
// every CTA runs the first two passes completely, and the CTAs divide the items of the third.
//
//   team.Fill(n, f)             Calls f(i) for i in [0, n), in every CTA. The thread of f(i) also
//                               calls Scan()'s count(i) and use(i).
//   team.Scan(n, count, use)    Calls use(i, sum of count(j) for j < i), in every CTA. Returns the
//                               sum of all count(i).
//   team.Spread(n, span, f)     Calls f(i, k) for k in [begin, begin + count) of span(i), in every
//                               CTA; usually on the thread of Fill()'s f(i).
//   team.Total(n, f)            Returns the sum of f(i) for i in [0, n), on Fill()'s threads.
//   team.Least(n, f)            Returns the minimum of f(i) for i in [0, n); INT32_MAX if n is 0.
//   team.TallyOf(n, f)          Returns the sum of f(i).total and the maxima of f(i).most and
//                               f(i).last, each at least 0, for i in [0, n), on Fill()'s threads.
//                               Makes earlier writes visible, like Sync().
//   team.RankByBucket(n, bucket_of, use)
//                               Calls use(i, rank), in every CTA, for each i in [0, n) whose
//                               bucket_of(i) is not negative. The rank is the number of such j with
//                               a smaller bucket, or with the same bucket and j < i. Buckets are
//                               below kNumRankBuckets; n is at most kMaxRanked. Does not use
//                               Fill()'s threads.
//   team.Sync()                 Makes the writes of the calls above visible to every thread of the
//                               CTA (a barrier).
//   team.ForEach(n, f)          Calls f(i) for i in [0, n), each on one thread of all CTAs. Its
//                               writes are visible to the next kernel.
//   team.ForEachAside(n, f)     Like ForEach(), on the threads that have the least other work.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILDER_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILDER_H_

#include <cstdint>
#include <limits>

#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"
#include "reprise/base/divisor.h"
#include "reprise/base/host_device.h"

namespace reprise {

// Loads a row. All loads are independent of each other.
REPRISE_HOST_DEVICE inline TileScheduleRow LoadRow(const TileScheduleRows& rows, int r) {
  const int32_t begin = rows.query_start_loc[r];
  const int32_t end = rows.query_start_loc[r + 1];
  const int32_t keys_begin = rows.key_start_loc ? rows.key_start_loc[r] : 0;
  const int32_t keys_end = rows.seq_lens ? rows.seq_lens[r] : rows.key_start_loc[r + 1];
  const int32_t key_start = rows.key_start ? rows.key_start[r] : 0;
  const int32_t table_row = rows.table_row ? rows.table_row[r] : r;
  const int32_t tail_len = rows.tail_len ? rows.tail_len[r] : 0;
  TileScheduleRow row;
  row.first_token = begin;
  row.query_len = end - begin;
  row.seq_len = rows.seq_lens ? keys_end : keys_end - keys_begin;
  row.tail_len = row.seq_len > 0 ? tail_len : 0;
  row.key_start = key_start;
  row.first_key = rows.key_start_loc ? keys_begin : key_start;
  row.table_row = table_row;
  row.first_tile = 0;
  return row;
}

// p() of the row's first query if the batch has no query_positions.
REPRISE_HOST_DEVICE inline int64_t FirstPosition(const TileScheduleRow& row) {
  return static_cast<int64_t>(row.key_start) + row.seq_len - row.query_len;
}

REPRISE_HOST_DEVICE inline int64_t Clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// The first local key at or after `position`, clamped to [0, num_keys].
REPRISE_HOST_DEVICE inline int FirstKeyAt(int64_t position, const KeyPositions& ranks,
                                          int64_t key_start, int num_keys) {
  int64_t key = position;
  if (ranks.world > 1) {
    if (position <= 0) return 0;
    const int64_t cycle = static_cast<int64_t>(ranks.world) * ranks.interleave;
    const int64_t run = static_cast<int64_t>(ranks.rank) * ranks.interleave;
    key = position / cycle * ranks.interleave + Clamp(position % cycle - run, 0, ranks.interleave);
  }
  return static_cast<int>(Clamp(key - key_start, 0, num_keys));
}

// The index of the n-th set bit, counted from 0. REQUIRES: the mask has more than n set bits.
REPRISE_HOST_DEVICE inline int NthBit(uint64_t mask, int n) {
  int bit = 0;
  while (true) {
    if (mask & 1) {
      if (n-- == 0) return bit;
    }
    mask >>= 1;
    ++bit;
  }
}

// The convex hull of the key ranges that were added.
struct KeyHull {
  int begin = 0;
  int end = 0;  // == begin: empty

  REPRISE_HOST_DEVICE void Add(int other_begin, int other_end) {
    if (other_begin >= other_end) return;
    if (begin >= end) {
      begin = other_begin;
      end = other_end;
      return;
    }
    if (other_begin < begin) begin = other_begin;
    if (other_end > end) end = other_end;
  }
};

// The keys that the queries see if the batch has no positions, tails or ranks: local keys are
// consecutive, and the last query is at the last key.
REPRISE_HOST_DEVICE inline KeyHull KeysInLine(const TileScheduleRows& rows,
                                              const TileScheduleRow& row, int query_begin,
                                              int query_end) {
  const int first = row.seq_len - row.query_len + query_begin;
  const int last = row.seq_len - row.query_len + query_end - 1;
  KeyHull hull;
  hull.end = row.seq_len;
  const int right = rows.causal ? 0 : rows.window_right;  // -1: none
  if (right >= 0 && row.seq_len - 1 - last > right) hull.end = last + right + 1;
  if (rows.window_left >= 0 && first > rows.window_left) hull.begin = first - rows.window_left;
  // Also reached by rows with more queries than keys.
  if (hull.begin >= hull.end) hull.begin = hull.end = 0;
  return hull;
}

// Adds the keys seen from positions first..last. REQUIRES: each position in the range belongs to a
// query.
REPRISE_HOST_DEVICE inline void AddPositions(const TileScheduleRows& rows,
                                             const TileScheduleRow& row, int64_t first,
                                             int64_t last, KeyHull& hull) {
  const int prefix_len = row.seq_len - row.tail_len;
  const bool causal = rows.causal && row.tail_len == 0;
  const int begin = rows.window_left < 0 ? 0
                                         : FirstKeyAt(first - rows.window_left, rows.key_positions,
                                                      row.key_start, prefix_len);
  int end = prefix_len;
  if (causal || rows.window_right >= 0) {
    const int64_t right = causal ? last : last + rows.window_right;
    end = FirstKeyAt(right + 1, rows.key_positions, row.key_start, prefix_len);
  }
  hull.Add(begin, end);
}

// Adds the tail keys that the query with `mask` at `position` sees.
REPRISE_HOST_DEVICE inline void AddTail(const TileScheduleRows& rows, const TileScheduleRow& row,
                                        int64_t position, uint64_t mask, KeyHull& hull) {
  if (row.tail_len < 64) mask &= (uint64_t{1} << row.tail_len) - 1;
  const int tail_begin = row.seq_len - row.tail_len;
  const int64_t path_begin =
      static_cast<int64_t>(row.key_start) + tail_begin;  // position of the first key of the path
  int64_t first = 0;
  int64_t last = NumBits(mask) - 1;
  if (rows.window_left >= 0) {
    const int64_t least = position - rows.window_left - path_begin;
    if (least > first) first = least;
  }
  if (rows.window_right >= 0) {
    const int64_t most = position + rows.window_right - path_begin;
    if (most < last) last = most;
  }
  if (first > last) return;
  hull.Add(tail_begin + NthBit(mask, static_cast<int>(first)),
           tail_begin + NthBit(mask, static_cast<int>(last)) + 1);
}

// The range from the first to the last local key that any query of [query_begin, query_end) may
// see.
REPRISE_HOST_DEVICE inline KeyHull KeysSeen(const TileScheduleRows& rows,
                                            const TileScheduleRow& row, int query_begin,
                                            int query_end) {
  KeyHull hull;
  if (row.seq_len <= 0) return hull;
  const bool has_tail = rows.tail_len != nullptr && row.tail_len > 0;
  const bool has_positions = rows.query_positions != nullptr;
  if (!has_positions && !has_tail && rows.key_positions.world <= 1) {
    return KeysInLine(rows, row, query_begin, query_end);
  }
  const int64_t first_position = FirstPosition(row);
  if (!has_positions && !has_tail) {
    AddPositions(rows, row, first_position + query_begin, first_position + query_end - 1, hull);
    return hull;
  }
  for (int i = query_begin; i < query_end; ++i) {
    const int token = row.first_token + i;
    const int64_t position =
        rows.query_positions ? rows.query_positions[token] : first_position + i;
    AddPositions(rows, row, position, position, hull);
    if (row.tail_len > 0) AddTail(rows, row, position, rows.tail_mask[token], hull);
  }
  return hull;
}

// The number of the row's first keys that may be shared with other rows: keys that all of its
// queries see, excluding its tail and its new tokens. REQUIRES: no left window, no ranks.
REPRISE_HOST_DEVICE inline int KeysToShare(const TileScheduleRows& rows,
                                           const TileScheduleRow& row) {
  const int own = row.query_len > row.tail_len ? row.query_len : row.tail_len;
  int64_t most = row.seq_len - own;
  const bool causal = rows.causal && row.tail_len == 0;
  if (rows.query_positions && (causal || rows.window_right >= 0)) {
    for (int i = 0; i < row.query_len; ++i) {
      const int64_t position = rows.query_positions[row.first_token + i];
      const int64_t last = causal ? position : position + rows.window_right;
      if (last + 1 - row.key_start < most) most = last + 1 - row.key_start;
    }
  }
  return most > 0 ? static_cast<int>(most) : 0;
}

// A sum and two maxima.
struct Tally {
  int total = 0;
  int most = 0;
  int last = 0;
};

struct WorkCounts {
  int items;
  int partials;
  int merges;
};

struct ItemSpan {
  int begin;
  int count;
};

// The last index in [0, count) whose value is at most `value`. REQUIRES: value_of(0) <= value.
template <typename ValueOf>
REPRISE_HOST_DEVICE int LastAtOrBefore(int value, int count, ValueOf value_of) {
  int low = 0;
  int high = count;
  // Reads three values at a time, because these reads are independent of each other.
  while (high - low > 1) {
    const int part = (high - low + 3) / 4;
    const int at[3] = {low + part, low + 2 * part, low + 3 * part};
    int end = high;
    bool is_before[3];
    for (int i = 0; i < 3; ++i) {
      is_before[i] = at[i] < high && value_of(at[i] < high ? at[i] : high - 1) <= value;
    }
    for (int i = 2; i >= 0; --i) {
      if (!is_before[i] && at[i] < end) end = at[i];
    }
    for (int i = 0; i < 3; ++i) {
      if (is_before[i]) low = at[i];
    }
    high = end;
  }
  return low;
}

// Sum: the type in which costs and counts are added, from SumsOf().
template <typename Team, typename Cutter, typename Sum>
class TileScheduleBuilder {
 public:
  // `lens` selects the rows of the schedule. REQUIRES: it selects all rows if prefixes are shared.
  REPRISE_HOST_DEVICE TileScheduleBuilder(Team& team, const TileScheduleRows& rows,
                                          const QueryLens& lens, const TileScheduleSums& sums,
                                          const KernelSchedule& schedule, const LaunchForm& form,
                                          const TileScheduleScratch& scratch)
      : team_(team),
        rows_(rows),
        lens_(lens),
        sums_(sums),
        schedule_(schedule),
        tiles_(scratch.tiles),
        row_(scratch.rows),
        tile_of_item_(scratch.tile_of_item),
        cluster_(form.cluster),
        num_queues_(QueuesOf(schedule, form)),
        rows_are_tiles_(schedule.max_query_len <= schedule.tile_queries &&
                        schedule.decode_query_len == 1) {}

  // Builds the schedule. Called by all threads of the team.
  REPRISE_HOST_DEVICE void Run() {
    if (!rows_are_tiles_ || schedule_.max_shared_tiles > 0) {
      team_.Fill(rows_.num_rows, [&](int r) { row_[r] = LoadRow(rows_, r); });
      rows_are_loaded_ = true;
    }
    FindSharedKeys();
    const int num_tiles = FindTiles();
    const Sum total_cost = FindKeys(num_tiles);
    const int least = MinWidth<Sum>(total_cost, num_tiles, schedule_.costs);
    Queues<Sum> queues(total_cost, least, num_queues_, schedule_.costs.tile);
    ChooseCut(total_cost, num_tiles, least, queues);
    const WorkCounts counts = CutTiles(num_tiles, queues);
    if (is_dealt_) RankTiles(num_tiles, queues.even().split_steps);
    NoteItems(num_tiles);
    WriteItems(counts, num_tiles, queues);
  }

 private:
  REPRISE_HOST_DEVICE static int AtMost(int value, int most) { return value < most ? value : most; }

  REPRISE_HOST_DEVICE bool IsShared(const WorkTile& tile) const {
    return shared_keys_ > 0 && tile.row == kSharedRow;
  }

  REPRISE_HOST_DEVICE bool IsOurs(const TileScheduleRow& row) const {
    return row.query_len >= lens_.least && row.query_len <= lens_.most;
  }

  // Whether each query of the row is split like a row of one query.
  REPRISE_HOST_DEVICE bool IsOfDecodes(const TileScheduleRow& row) const {
    return schedule_.decode_query_len > 1 && row.query_len <= schedule_.decode_query_len;
  }

  // Maximum number of queries per Q tile of the row.
  REPRISE_HOST_DEVICE int RangeQueries(const TileScheduleRow& row) const {
    return IsOfDecodes(row) ? 1 : schedule_.tile_queries;
  }

  // The number of Q tiles of a row. If prefixes are shared, a row's Q tiles also end at the ends of
  // the shared Q tiles (every tile_queries tokens), so that each is inside one shared Q tile.
  REPRISE_HOST_DEVICE int RowTiles(const TileScheduleRow& row) const {
    if (!IsOurs(row)) return 0;
    if (rows_are_tiles_) return 1;
    const int begin = row.first_token;
    const int end = begin + row.query_len;
    if (shared_keys_ > 0)
      return (end - 1) / schedule_.tile_queries - begin / schedule_.tile_queries + 1;
    const int size = RangeQueries(row);
    return (row.query_len + size - 1) / size;
  }

  // Decides whether and how many keys are shared, and which row's block table addresses them.
  REPRISE_HOST_DEVICE void FindSharedKeys() {
    if (schedule_.max_shared_tiles == 0 || rows_.common_prefix_len == nullptr) return;
    if (rows_.window_left >= 0 || rows_.key_positions.world > 1) return;
    const int hint = *rows_.common_prefix_len;
    if (hint < kWorkStepKeys) return;
    team_.Sync();
    const auto is_live = [&](int r) { return row_[r].query_len > 0 && row_[r].seq_len > 0; };
    const int most = team_.Least(rows_.num_rows, [&](int r) -> int {
      return is_live(r) ? KeysToShare(rows_, row_[r]) : hint;
    });
    const int steps = AtMost(most, hint) / kWorkStepKeys;
    shared_from_row_ =
        team_.Least(rows_.num_rows, [&](int r) -> int { return is_live(r) ? r : rows_.num_rows; });
    if (steps <= 0 || shared_from_row_ >= rows_.num_rows) return;
    const int num_tokens = rows_.query_start_loc[rows_.num_rows];
    const int tiles = (num_tokens + schedule_.tile_queries - 1) / schedule_.tile_queries;
    if (num_tokens < 2 || tiles > schedule_.max_shared_tiles) return;
    shared_keys_ = steps * kWorkStepKeys;
    num_shared_tiles_ = tiles;
    rows_are_tiles_ = schedule_.max_query_len == 1;
  }

  // If rows have at most one Q tile, row r has Q tile num_shared_tiles_ + r, and no items if it has
  // no queries.
  REPRISE_HOST_DEVICE int FindTiles() {
    const int most = schedule_.max_tiles;
    if (rows_are_tiles_) {
      if (num_shared_tiles_ > 0) team_.Sync();
      return AtMost(num_shared_tiles_ + AtMost(rows_.num_rows, schedule_.max_rows), most);
    }
    const Sum tiles = team_.Scan(
        rows_.num_rows, [&](int r) -> Sum { return RowTiles(row_[r]); },
        [&](int r, Sum before) { row_[r].first_tile = static_cast<int32_t>(before); });
    team_.Sync();
    return tiles + num_shared_tiles_ < most ? static_cast<int>(tiles) + num_shared_tiles_ : most;
  }

  // REQUIRES: the Q tile is not shared.
  REPRISE_HOST_DEVICE int RowOfTile(int t) const {
    const int own = t - num_shared_tiles_;
    if (rows_are_tiles_) return own;
    return LastAtOrBefore(own, rows_.num_rows, [&](int r) { return row_[r].first_tile; });
  }

  // Sets the queries of Q tile t, as indices within the row.
  REPRISE_HOST_DEVICE void FindQueries(int t, const TileScheduleRow& row, WorkTile& tile) const {
    const int size = RangeQueries(row);
    const int n = rows_are_tiles_ ? 0 : t - num_shared_tiles_ - row.first_tile;
    if (shared_keys_ == 0) {
      tile.query_begin = n * size;
      tile.query_end = AtMost((n + 1) * size, row.query_len);
      return;
    }
    const int shared = row.first_token / size + n;  // the shared Q tile that contains it
    tile.query_begin = n == 0 ? 0 : shared * size - row.first_token;
    tile.query_end = AtMost((shared + 1) * size - row.first_token, row.query_len);
  }

  // The first of the rows' Q tiles that begins at or after `token`. REQUIRES: a shared Q tile
  // begins at `token`.
  REPRISE_HOST_DEVICE int TileAtToken(int token, int num_tiles) const {
    if (token >= rows_.query_start_loc[rows_.num_rows]) return num_tiles;
    const int row =
        LastAtOrBefore(token, rows_.num_rows, [&](int r) { return row_[r].first_token; });
    if (rows_are_tiles_) return num_shared_tiles_ + row;
    const int n = token / schedule_.tile_queries - row_[row].first_token / schedule_.tile_queries;
    return num_shared_tiles_ + row_[row].first_tile + n;
  }

  REPRISE_HOST_DEVICE Sum FindKeysOf(int t) {
    WorkTile tile = {};
    Sum cost = 0;
    if (shared_keys_ > 0 && t < num_shared_tiles_) {
      tile.row = kSharedRow;
      tile.query_end = AtMost(schedule_.tile_queries,
                              rows_.query_start_loc[rows_.num_rows] - t * schedule_.tile_queries);
      tile.key_end = shared_keys_;
      tile.num_splits = 1;
      cost = Cutter::template CostOf<Sum>(schedule_.max_splits, schedule_.costs.tile, tile);
    } else {
      tile.row = RowOfTile(t);
      const TileScheduleRow row = rows_are_loaded_ ? row_[tile.row] : LoadRow(rows_, tile.row);
      if (!rows_are_loaded_) row_[tile.row] = row;
      if (IsOurs(row)) {
        FindQueries(t, row, tile);
        const KeyHull keys = KeysSeen(rows_, row, tile.query_begin, tile.query_end);
        tile.key_begin = keys.begin > shared_keys_ ? keys.begin : shared_keys_;
        // Lengths beyond the plan must not make sums overflow.
        tile.key_end = AtMost(keys.end, schedule_.max_seq_len);
        if (tile.key_end < tile.key_begin) tile.key_end = tile.key_begin;
        tile.num_splits = 1;
        const int max_splits = schedule_.max_splits / (IsOfDecodes(row) ? 1 : RowTiles(row));
        cost = Cutter::template CostOf<Sum>(max_splits, schedule_.costs.tile, tile);
      }
    }
    tiles_[t] = tile;
    return cost;
  }

  // Returns the cost of all Q tiles.
  REPRISE_HOST_DEVICE Sum FindKeys(int num_tiles) {
    return team_.Scan(
        num_tiles, [&](int t) -> Sum { return FindKeysOf(t); },
        [&](int t, Sum before) { tiles_[t].cost_begin = before; });
  }

  // Whether the Q tile writes partials.
  REPRISE_HOST_DEVICE bool IsMerged(const WorkTile& tile) const {
    return tile.num_splits > (shared_keys_ > 0 ? 0 : 1);
  }
  // The distance from a query's partial to the query's next partial, in partials.
  REPRISE_HOST_DEVICE int PartialStride(const WorkTile& tile) const {
    return IsShared(tile) ? schedule_.tile_queries : tile.query_end - tile.query_begin;
  }

  // Items, partials and combines of the Q tile, packed so that one scan sums them.
  REPRISE_HOST_DEVICE Sum CutTile(const Queues<Sum>& queues, int t) {
    WorkTile tile = tiles_[t];
    if (tile.num_splits == 0) return 0;
    Cutter::Cut(queues, tile);
    tiles_[t].num_splits = tile.num_splits;
    tiles_[t].cut = tile.cut;
    const Sum splits = tile.num_splits;
    if (!IsMerged(tile)) return splits << sums_.item_shift;
    const Sum partials = schedule_.queue_partials > 0 ? 0 : splits * PartialStride(tile);
    return splits << sums_.item_shift | partials << sums_.partial_shift | (IsShared(tile) ? 0 : 1);
  }

  // The first partial of a Q tile whose partials are by queue.
  REPRISE_HOST_DEVICE int PartialOfQueue(const Queues<Sum>& queues, const WorkTile& tile,
                                         int t) const {
    const int begin = Cutter::QueueOf(queues, tile, t, 0);
    const bool goes_on = Cutter::QueueOf(queues, tile, t, tile.num_splits - 1) > begin;
    return (2 * begin + (goes_on ? 1 : 0)) * schedule_.queue_partials;
  }

  REPRISE_HOST_DEVICE WorkCounts Unpack(Sum packed) const {
    const Sum partials = (packed >> sums_.partial_shift) &
                         ((Sum{1} << (sums_.item_shift - sums_.partial_shift)) - 1);
    return {static_cast<int>(packed >> sums_.item_shift), static_cast<int>(partials),
            static_cast<int>(packed & ((Sum{1} << sums_.partial_shift) - 1))};
  }

  // Maximum number of Q tiles for TotalsOf().
  static constexpr int kCountBits = 15;
  static constexpr int kMaxCounted = (1 << kCountBits) - 1;
  static_assert(kMaxCounted <= kMaxRanked);

  // Also makes the costs of all Q tiles visible.
  REPRISE_HOST_DEVICE RangeTotals TotalsOf(int num_tiles) {
    const Tally tally = team_.TallyOf(num_tiles, [&](int t) -> Tally {
      const WorkTile& tile = tiles_[t];
      if (tile.num_splits == 0) return {};
      if (tile.key_begin >= tile.key_end) return {.total = 1 << kCountBits};
      return {.total = 1, .most = NumSteps(tile), .last = t + 1};
    });
    const int with_keys = tally.total & kMaxCounted;
    const int without_keys = tally.total >> kCountBits;
    return {.with_keys = with_keys,
            .without_keys = without_keys,
            .to_place = tally.last == with_keys ? with_keys : with_keys + without_keys,
            .longest_steps = tally.most};
  }

  // Whether round-robin unsplit Q tiles end before Stream-K queues.
  REPRISE_HOST_DEVICE bool DealtEndFirst(Sum total_cost, int num_tiles, const RangeTotals& ranges,
                                         int64_t filled_end) {
    if (!schedule_.may_be_dealt || num_tiles > schedule_.max_items) return false;
    const int64_t longest = ranges.longest_steps;
    const int both = team_.Total(num_tiles, [&](int t) -> int {
      const int64_t steps = NumSteps(tiles_[t]);
      return (steps * 2 > longest ? 1 : 0) + (steps * 8 > longest * 7 ? 1 << kCountBits : 0);
    });
    const LongRanges long_ranges = {.num_over_half = both & kMaxCounted,
                                    .num_near_longest = both >> kCountBits};
    // A queue's cost is for one head, and its CTAs have several heads if there are more heads than
    // CTAs.
    return EndOfDealt(total_cost, ranges, long_ranges, schedule_) * schedule_.heads_per_queue <=
           (filled_end + schedule_.costs.merge) * schedule_.num_head_tiles;
  }

  // Whether clusters, one per Q tile, end before Stream-K queues.
  REPRISE_HOST_DEVICE bool ClustersEndFirst(int num_tiles, const RangeTotals& ranges,
                                            int64_t filled_end) const {
    if (cluster_ == 1 || !rows_are_tiles_ || num_tiles * cluster_ > num_queues_) return false;
    const int longest = CeilOf(ranges.longest_steps, cluster_);
    return EndOfSplits(longest) <= filled_end + schedule_.costs.merge;
  }

  // Whether queues of `of_queue` unsplit Q tiles each end before Stream-K queues.
  REPRISE_HOST_DEVICE bool WholeRangesEndFirst(Sum total_cost, int num_tiles, int of_queue,
                                               int64_t filled_end) {
    const auto cost_before = [&](int queue) -> Sum {
      const int t = queue < num_queues_ ? AtMost(queue * of_queue, num_tiles) : num_tiles;
      return t < num_tiles ? static_cast<Sum>(tiles_[t].cost_begin) : total_cost;
    };
    return team_.Total(num_queues_, [&](int queue) -> int {
      return cost_before(queue + 1) - cost_before(queue) > filled_end;
    }) == 0;
  }

  // Whether there is a queue for each split, if a split has at most `steps` KV tiles.
  REPRISE_HOST_DEVICE bool FitQueues(int num_tiles, const RangeTotals& ranges, int steps) {
    const int max_splits = num_queues_ - ranges.places_without_keys();
    if (ranges.with_keys * CeilOf(ranges.longest_steps, steps) <= max_splits) return true;
    return team_.Total(num_tiles, [&](int t) -> int {
      return CeilOf(NumSteps(tiles_[t]), steps);
    }) <= max_splits;
  }

  // The even cut that ends first among the cuts with one queue per split, or EvenCut{} if Stream-K
  // queues end first. A queue should have at least `min_steps` KV tiles. REQUIRES: there is a
  // queue for each Q tile.
  REPRISE_HOST_DEVICE EvenCut ChooseSplits(Sum total_cost, int num_tiles, const RangeTotals& ranges,
                                           int min_steps, int64_t filled_end) {
    const Sum of_tiles = static_cast<Sum>(ranges.count()) * schedule_.costs.tile;
    const int queues_of_range = (num_queues_ - ranges.places_without_keys()) / ranges.with_keys;
    const int even = CeilOf(static_cast<int>(DivideBy<Sum>(total_cost - of_tiles, kStepCost)),
                            ranges.with_keys * queues_of_range);
    const int steps = even > min_steps ? even : min_steps;
    const int64_t whole_end = EndOfWholeRanges(ranges, num_queues_, schedule_.costs);
    const bool may_be_whole = whole_end <= filled_end;
    const bool may_be_cut =
        steps < ranges.longest_steps && EndOfSplits(steps) <= filled_end &&
        !(may_be_whole && whole_end <= EndOfSplits(steps) + schedule_.costs.merge) &&
        FitQueues(num_tiles, ranges, steps);
    if (may_be_cut) return {.split_steps = steps};
    return may_be_whole ? EvenCut{.split_steps = ranges.longest_steps} : EvenCut{};
  }

  // Decides how the Q tiles are split.
  REPRISE_HOST_DEVICE void ChooseCut(Sum total_cost, int num_tiles, int min_steps,
                                     Queues<Sum>& queues) {
    if (!Cutter::kMayCutEvenly || shared_keys_ > 0 || num_tiles > kMaxCounted) return;
    const RangeTotals ranges = TotalsOf(num_tiles);
    if (ranges.with_keys == 0) return;
    const int of_queue = CeilOf(ranges.to_place, num_queues_);
    const int64_t filled_end = EndOfFilled(queues.width(), of_queue, schedule_.costs);
    if (DealtEndFirst(total_cost, num_tiles, ranges, filled_end)) {
      is_dealt_ = true;
      queues.CutEvenly({.split_steps = ranges.longest_steps});
    } else if (ClustersEndFirst(num_tiles, ranges, filled_end)) {
      have_clusters_ = true;
      queues.CutEvenly(
          {.split_steps = CeilOf(ranges.longest_steps, cluster_), .cluster = cluster_});
    } else if (of_queue == 1) {
      queues.CutEvenly(ChooseSplits(total_cost, num_tiles, ranges, min_steps, filled_end));
    } else if (schedule_.costs.is_bound_by_reading &&
               WholeRangesEndFirst(total_cost, num_tiles, of_queue, filled_end)) {
      queues.CutEvenly({.split_steps = ranges.longest_steps, .splits_of_queue = of_queue});
    }
  }

  REPRISE_HOST_DEVICE WorkCounts CutTiles(int num_tiles, const Queues<Sum>& queues) {
    WorkCounts counts = Unpack(team_.Scan(
        num_tiles, [&](int t) -> Sum { return CutTile(queues, t); },
        [&](int t, Sum packed) {
          const WorkCounts before = Unpack(packed);
          tiles_[t].first_item = before.items;
          tiles_[t].first_partial = schedule_.queue_partials > 0 && tiles_[t].num_splits > 0
                                        ? PartialOfQueue(queues, tiles_[t], t)
                                        : before.partials;
          tiles_[t].merge = before.merges;
        }));
    counts.items = AtMost(counts.items, schedule_.max_items);
    counts.merges = AtMost(counts.merges, schedule_.max_merges);
    return counts;
  }

  REPRISE_HOST_DEVICE bool IsOfShortRow(const WorkTile& tile) const {
    return reprise::IsOfShortRow(tile, row_[tile.row].query_len, schedule_);
  }

  // Orders the round-robin Q tiles, longest first.
  REPRISE_HOST_DEVICE void RankTiles(int num_tiles, int longest_steps) {
    // Maximum number of KV tiles per Q tile of short rows, or of other rows.
    const auto max_steps = [&](bool of_short_rows) {
      return -team_.Least(num_tiles, [&](int t) -> int {
        const WorkTile& tile = tiles_[t];
        const bool counts = tile.num_splits > 0 && IsOfShortRow(tile) == of_short_rows;
        return counts ? -NumSteps(tile) : 0;
      });
    };
    const int of_short_rows = max_steps(true);
    are_both_ways_ =
        of_short_rows > 0 && AreDealtBothWays(of_short_rows, max_steps(false), schedule_.costs);
    team_.RankByBucket(
        num_tiles,
        [&](int t) -> int {
          const WorkTile& tile = tiles_[t];
          return tile.num_splits == 0 ? -1 : DealBucket(NumSteps(tile), longest_steps);
        },
        [&](int t, int rank) { tiles_[t].cut = rank; });
  }

  // Records the Q tile of each item.
  REPRISE_HOST_DEVICE void NoteItems(int num_tiles) {
    team_.Spread(
        num_tiles,
        [&](int t) {
          return ItemSpan{tiles_[t].first_item, tiles_[t].num_splits};
        },
        [&](int t, int item) {
          if (item < schedule_.max_items) tile_of_item_[item] = t;
        });
    team_.Sync();
  }

  // The queue of item i; -1 if i < 0.
  REPRISE_HOST_DEVICE int QueueOfItem(const Queues<Sum>& queues, int i) const {
    if (i < 0) return -1;
    const int t = tile_of_item_[i];
    const WorkTile tile = tiles_[t];
    return Cutter::QueueOf(queues, tile, t, i - tile.first_item);
  }

  REPRISE_HOST_DEVICE int KeyAt(const Queues<Sum>& queues, const WorkTile& tile, int split) const {
    if (split == 0) return tile.key_begin;
    if (split == tile.num_splits) return tile.key_end;
    return (StepOfKey(tile.key_begin) + Cutter::StepOf(queues, tile, split)) * kWorkStepKeys;
  }

  // Sets the fields that every item has: its queries, keys and partials.
  REPRISE_HOST_DEVICE WorkItem SplitOf(const WorkTile& tile, int split,
                                       const Queues<Sum>& queues) const {
    const int stride = PartialStride(tile);
    WorkItem item = {};
    item.row = tile.row;
    item.query_begin = tile.query_begin;
    item.query_end = tile.query_end;
    item.key_begin = KeyAt(queues, tile, split);
    item.key_end = KeyAt(queues, tile, split + 1);
    // Always holds for batches within the plan. Larger batches must not write past the workspace.
    const bool is_cut = IsMerged(tile) && (IsShared(tile) || tile.merge < schedule_.max_merges) &&
                        tile.first_partial + tile.num_splits * stride <= schedule_.max_partials;
    item.partial = is_cut ? tile.first_partial + split * stride : -1;
    item.merge = is_cut && !IsShared(tile) ? tile.merge : -1;
    item.first_partial = is_cut ? tile.first_partial : -1;
    item.num_partials = is_cut ? tile.num_splits : 0;
    return item;
  }

  REPRISE_HOST_DEVICE WorkItem SharedItemOf(int t, const WorkTile& tile, int split,
                                            const Queues<Sum>& queues, int num_tiles,
                                            int num_items) const {
    const TileScheduleRow row = row_[shared_from_row_];
    WorkItem item = SplitOf(tile, split, queues);
    item.first_token = t * schedule_.tile_queries;
    item.key_start = row.key_start;
    item.first_key = row.key_start;
    item.table_row = row.table_row;
    item.prefix_len = shared_keys_;
    const auto first_item = [&](int token) {
      const int own = TileAtToken(token, num_tiles);
      return own < num_tiles ? tiles_[own].first_item : num_items;
    };
    item.first_child = first_item(item.first_token);
    item.end_child = first_item(item.first_token + schedule_.tile_queries);
    return item;
  }

  REPRISE_HOST_DEVICE WorkItem ItemOf(const WorkTile& tile, int split,
                                      const Queues<Sum>& queues) const {
    const TileScheduleRow row = row_[tile.row];
    WorkItem item = SplitOf(tile, split, queues);
    item.first_token = row.first_token + item.query_begin;
    item.query_len = row.query_len;
    if (shared_keys_ > 0) {
      const int shared = item.first_token / schedule_.tile_queries;
      item.first_shared_partial =
          tiles_[shared].first_partial + item.first_token - shared * schedule_.tile_queries;
      item.num_shared_partials = tiles_[shared].num_splits;
    } else if (item.partial >= 0) {
      item.is_joint = CombinesCooperatively(schedule_, tile.query_end - tile.query_begin,
                                            tile.num_splits, tile.key_end - tile.key_begin);
    }
    // The other fields of a padded row may hold anything.
    if (row.seq_len <= 0 || (item.key_begin == item.key_end && shared_keys_ == 0)) return item;
    item.first_position = static_cast<int32_t>(FirstPosition(row) + item.query_begin);
    item.key_start = row.key_start;
    item.first_key = row.first_key;
    item.table_row = row.table_row;
    item.tail_len = row.tail_len;
    item.prefix_len = row.seq_len - row.tail_len;
    return item;
  }

  // Writes item i, its combine entry, and the beginnings of the queues that begin with it.
  REPRISE_HOST_DEVICE void WriteItem(int i, int num_tiles, int num_items,
                                     const Queues<Sum>& queues) {
    const int t = tile_of_item_[i];
    const WorkTile tile = tiles_[t];
    const int split = i - tile.first_item;
    const WorkItem item = IsShared(tile)
                              ? SharedItemOf(t, tile, split, queues, num_tiles, num_items)
                              : ItemOf(tile, split, queues);
    schedule_.items[i] = item;
    if (item.partial >= 0 && tile.num_splits > kMaxSplitsAtOnce && split % kCombineGroup == 0) {
      uint32_t* arrivals =
          schedule_.group_arrivals + static_cast<int64_t>(item.partial) * schedule_.num_head_tiles;
      for (int head = 0; head < schedule_.num_head_tiles; ++head) arrivals[head] = 0;
    }
    const int queue = Cutter::QueueOf(queues, tile, t, split);
    const int before = QueueOfItem(queues, i - 1);
    for (int c = before + 1; c <= queue; ++c) schedule_.queue_items[c] = i;
    if (is_dealt_) {
      schedule_.deal_order[tile.cut] = i;
      if (tile.cut <= schedule_.num_queues) schedule_.queue_first[tile.cut] = item;
    } else if (before < queue) {
      schedule_.queue_first[queue] = item;
    }
    if (split == 0 && item.merge >= 0) {
      schedule_.merges[item.merge] = {item.row, item.query_begin, item.query_end,
                                      item.first_partial, item.num_partials};
    }
  }

  REPRISE_HOST_DEVICE void WriteItems(const WorkCounts& counts, int num_tiles,
                                      const Queues<Sum>& queues) {
    team_.ForEach(counts.items, [&](int i) { WriteItem(i, num_tiles, counts.items, queues); });
    // Queues after the last item, the counts, and the arrival counters.
    const int num_queues = schedule_.num_queues;
    const int num_arrivals = counts.merges * schedule_.num_head_tiles;
    team_.ForEachAside(num_arrivals > num_queues ? num_arrivals : num_queues + 1, [&](int i) {
      if (i < num_arrivals) schedule_.arrivals[i] = 0;
      if (i > num_queues) return;
      if (i > QueueOfItem(queues, counts.items - 1)) schedule_.queue_items[i] = counts.items;
      if (i == 0) schedule_.counts[0] = counts.items;
      if (i == 1) schedule_.counts[1] = counts.merges;
      if (i == 1) schedule_.counts[2] = is_dealt_ ? counts.items : 0;
      if (i == 1) schedule_.counts[3] = are_both_ways_;
      if (i == 1) schedule_.counts[4] = have_clusters_;
    });
  }

  Team& team_;
  const TileScheduleRows& rows_;
  const QueryLens lens_;
  const TileScheduleSums sums_;
  const KernelSchedule& schedule_;
  WorkTile* const tiles_;
  TileScheduleRow* const row_;
  int32_t* const tile_of_item_;
  const int cluster_;             // queues per cluster
  const int num_queues_;          // queues in use
  bool rows_are_loaded_ = false;  // false: FindKeysOf() loads the only row of each Q tile
  // Every row has at most one Q tile, at a fixed index.
  bool rows_are_tiles_;
  bool have_clusters_ = false;  // Q tiles have clusters
  bool is_dealt_ = false;
  bool are_both_ways_ = false;  // odd CTAs process round-robin units in reverse: AreDealtBothWays()
  int shared_keys_ = 0;         // 0: none
  int num_shared_tiles_ = 0;
  int shared_from_row_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILDER_H_
