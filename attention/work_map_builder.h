// The builder of a work map: one piece of code for host and device, over a team that scans.
//
// Three passes: keys and cost of each query range (before it, ranges of each row, if a row can have
// several); pieces of each range; items. attention/work_map_cut.h says where the cuts are.
//
// A Team runs the passes: the host's in order, the device's with the threads of one CTA.
//
//   team.ForEach(n, f)          f(i) for i in [0, n)
//   team.Least(n, f)            the least of f(i) for i in [0, n); INT32_MAX if n is 0
//   team.Scan(n, count, use)    use(i, sum of count(j) for j < i, count(i)); returns the whole sum
//
// What Scan() writes is seen by every thread of the team after it; what ForEach() writes, by the
// next kernel.

#ifndef ATTENTION_WORK_MAP_BUILDER_H_
#define ATTENTION_WORK_MAP_BUILDER_H_

#include <cstdint>

#include "attention/host_device.h"
#include "attention/work_map.h"
#include "attention/work_map_cut.h"
#include "attention/work_map_key_range.h"
#include "attention/work_map_rows.h"
#include "attention/work_map_scratch.h"

namespace reprise {

// Items, partials and merges in one number, to be summed in one scan.
struct WorkCounts {
  int items;
  int partials;
  int merges;

  REPRISE_HOST_DEVICE int64_t Packed() const {
    return static_cast<int64_t>(items) << 42 | static_cast<int64_t>(partials) << 19 | merges;
  }
  REPRISE_HOST_DEVICE static WorkCounts From(int64_t packed) {
    return {static_cast<int>(packed >> 42), static_cast<int>(packed >> 19 & 0x7fffff),
            static_cast<int>(packed & 0x7ffff)};
  }
};

template <typename Team, typename Cutter>
class WorkMapBuilder {
 public:
  REPRISE_HOST_DEVICE WorkMapBuilder(Team& team, const WorkMapRows& rows, const WorkMap& map,
                                     const WorkMapScratch& scratch)
      : team_(team),
        rows_(rows),
        map_(map),
        tiles_(scratch.tiles),
        first_tile_(scratch.first_tile),
        rows_are_tiles_(map.max_query_len <= map.tile_queries) {}

  REPRISE_HOST_DEVICE void Run() {
    FindSharedKeys();
    const int num_tiles = FindTiles();
    const int64_t total_cost = FindKeys(num_tiles);
    const Columns columns(total_cost, LeastCost(total_cost, num_tiles), map_.num_columns,
                          map_.tile_cost);
    const WorkCounts counts = CutTiles(num_tiles, columns);
    WriteItems(counts, num_tiles, columns);
  }

 private:
  REPRISE_HOST_DEVICE static int AtMost(int value, int most) { return value < most ? value : most; }

  REPRISE_HOST_DEVICE bool IsShared(const WorkTile& tile) const { return tile.row == kSharedRow; }

  // The query ranges of a row. Beside shared ranges, which are tile_queries tokens each, they end
  // where those do, so that each lies in one of them.
  REPRISE_HOST_DEVICE int RowTiles(int r) const {
    const int begin = rows_.query_start_loc[r];
    const int end = rows_.query_start_loc[r + 1];
    if (end <= begin) return 0;
    if (shared_keys_ > 0) return (end - 1) / map_.tile_queries - begin / map_.tile_queries + 1;
    return (end - begin + map_.tile_queries - 1) / map_.tile_queries;
  }
  REPRISE_HOST_DEVICE int RowTiles(const WorkTile& tile) const {
    return IsShared(tile) ? 1 : RowTiles(tile.row);
  }

  // Whether and how many keys are shared, and by which row they are found.
  REPRISE_HOST_DEVICE void FindSharedKeys() {
    if (map_.max_shared_tiles == 0 || rows_.common_prefix_len == nullptr) return;
    if (rows_.window_left >= 0 || rows_.key_positions.world > 1) return;
    const int hint = *rows_.common_prefix_len;
    if (hint < kWorkStepKeys) return;
    const auto is_live = [&](int r) {
      return rows_.query_start_loc[r + 1] > rows_.query_start_loc[r] && rows_.seq_lens[r] > 0;
    };
    const int most = team_.Least(rows_.num_rows, [&](int r) -> int {
      return is_live(r) ? KeysToShare(rows_, LoadRow(rows_, r)) : hint;
    });
    const int steps = AtMost(most, hint) / kWorkStepKeys;
    shared_from_row_ =
        team_.Least(rows_.num_rows, [&](int r) -> int { return is_live(r) ? r : rows_.num_rows; });
    if (steps <= 0 || shared_from_row_ >= rows_.num_rows) return;
    const int num_tokens = rows_.query_start_loc[rows_.num_rows];
    const int tiles = (num_tokens + map_.tile_queries - 1) / map_.tile_queries;
    if (num_tokens < 2 || tiles > map_.max_shared_tiles) return;
    shared_keys_ = steps * kWorkStepKeys;
    num_shared_tiles_ = tiles;
    rows_are_tiles_ = map_.max_query_len == 1;
  }

  // Where rows are of one range at most, row r is range r, and has no items if it has no queries.
  REPRISE_HOST_DEVICE int FindTiles() {
    const int most = map_.max_tiles;
    if (rows_are_tiles_) {
      return AtMost(num_shared_tiles_ + AtMost(rows_.num_rows, map_.max_rows), most);
    }
    const int64_t tiles = team_.Scan(
        rows_.num_rows, [&](int r) -> int64_t { return RowTiles(r); },
        [&](int r, int64_t before, int64_t) { first_tile_[r] = static_cast<int32_t>(before); });
    return tiles + num_shared_tiles_ < most ? static_cast<int>(tiles) + num_shared_tiles_ : most;
  }

  // What a column should take at least. A range of n steps in p pieces takes about n / p steps and
  // then p partials to merge, each some 10 times quicker than a step: least for p = sqrt(10 n).
  REPRISE_HOST_DEVICE int64_t LeastCost(int64_t total_cost, int num_tiles) const {
    if (num_tiles == 0) return 1;
    const int64_t steps = Divide(total_cost, num_tiles);
    int64_t piece = 1;
    while (10 * (piece + 1) * (piece + 1) <= steps) ++piece;
    return piece + map_.tile_cost;
  }

  // The last of `count` whose value is at or before `value`; that of the first is.
  template <typename ValueOf>
  REPRISE_HOST_DEVICE static int LastAtOrBefore(int value, int count, ValueOf value_of) {
    int low = 0;
    int high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (value_of(middle) <= value) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Of a range that is not shared.
  REPRISE_HOST_DEVICE int RowOfTile(int t) const {
    const int own = t - num_shared_tiles_;
    if (rows_are_tiles_) return own;
    return LastAtOrBefore(own, rows_.num_rows, [&](int r) { return first_tile_[r]; });
  }

  // The queries of range t, within the row.
  struct Queries {
    int begin;
    int end;

    REPRISE_HOST_DEVICE int count() const { return end - begin; }
  };
  REPRISE_HOST_DEVICE Queries QueriesOf(int t, int row) const {
    const int size = map_.tile_queries;
    if (row == kSharedRow) {
      return {0, AtMost(size, rows_.query_start_loc[rows_.num_rows] - t * size)};
    }
    const int first_token = rows_.query_start_loc[row];
    const int query_len = rows_.query_start_loc[row + 1] - first_token;
    const int n = rows_are_tiles_ ? 0 : t - num_shared_tiles_ - first_tile_[row];
    if (shared_keys_ == 0) return {n * size, AtMost((n + 1) * size, query_len)};
    const int shared = first_token / size + n;  // the shared range that it lies in
    return {n == 0 ? 0 : shared * size - first_token,
            AtMost((shared + 1) * size - first_token, query_len)};
  }

  // The first range of the rows that begins at `token` or after it, where a shared range begins.
  REPRISE_HOST_DEVICE int TileAtToken(int token, int num_tiles) const {
    if (token >= rows_.query_start_loc[rows_.num_rows]) return num_tiles;
    const int row =
        LastAtOrBefore(token, rows_.num_rows, [&](int r) { return rows_.query_start_loc[r]; });
    if (rows_are_tiles_) return num_shared_tiles_ + row;
    const int n = token / map_.tile_queries - rows_.query_start_loc[row] / map_.tile_queries;
    return num_shared_tiles_ + first_tile_[row] + n;
  }

  REPRISE_HOST_DEVICE int64_t FindKeysOf(int t) {
    WorkTile& tile = tiles_[t];
    tile.key_begin = tile.key_end = 0;
    if (t < num_shared_tiles_) {
      tile.row = kSharedRow;
      tile.key_end = shared_keys_;
      tile.num_pieces = 1;
      return Cutter::CostOf(tile, 1, map_.tile_cost);
    }
    tile.row = RowOfTile(t);
    tile.num_pieces = 0;
    const WorkMapRow row = LoadRow(rows_, tile.row);
    if (row.query_len <= 0) return 0;
    tile.num_pieces = 1;
    const Queries queries = QueriesOf(t, tile.row);
    const KeyHull keys = KeysSeen(rows_, row, queries.begin, queries.end);
    tile.key_begin = keys.begin > shared_keys_ ? keys.begin : shared_keys_;
    tile.key_end = keys.end > tile.key_begin ? keys.end : tile.key_begin;
    return Cutter::CostOf(tile, RowTiles(tile.row), map_.tile_cost);
  }

  // Returns the cost of all ranges.
  REPRISE_HOST_DEVICE int64_t FindKeys(int num_tiles) {
    return team_.Scan(
        num_tiles, [&](int t) -> int64_t { return FindKeysOf(t); },
        [&](int t, int64_t before, int64_t) { tiles_[t].cost_begin = before; });
  }

  // Whether the range leaves partials.
  REPRISE_HOST_DEVICE bool IsMerged(const WorkTile& tile) const {
    return tile.num_pieces > (shared_keys_ > 0 ? 0 : 1);
  }
  // From one partial of a query to the next.
  REPRISE_HOST_DEVICE int PartialStride(int t, const WorkTile& tile) const {
    return IsShared(tile) ? map_.tile_queries : QueriesOf(t, tile.row).count();
  }

  REPRISE_HOST_DEVICE WorkCounts CutTile(const Columns& columns, int t) {
    WorkTile& tile = tiles_[t];
    if (tile.num_pieces == 0) return {0, 0, 0};
    Cutter::Cut(columns, RowTiles(tile), tile);
    const int pieces = tile.num_pieces;
    if (!IsMerged(tile)) return {pieces, 0, 0};
    return {pieces, pieces * PartialStride(t, tile), IsShared(tile) ? 0 : 1};
  }

  REPRISE_HOST_DEVICE void Place(int t, const WorkCounts& before) {
    WorkTile& tile = tiles_[t];
    tile.first_item = before.items;
    tile.first_partial = before.partials;
    tile.merge = before.merges;
    // Holds for batches within the plan; others must not write beyond the workspace.
    if (IsShared(tile) || !IsMerged(tile) || before.merges >= map_.max_merges) return;
    const Queries queries = QueriesOf(t, tile.row);
    map_.merges[before.merges] = {tile.row, queries.begin, queries.end, before.partials,
                                  tile.num_pieces};
  }

  // Cuts the ranges, writes the merges and returns the counts.
  REPRISE_HOST_DEVICE WorkCounts CutTiles(int num_tiles, const Columns& columns) {
    WorkCounts counts = WorkCounts::From(team_.Scan(
        num_tiles, [&](int t) -> int64_t { return CutTile(columns, t).Packed(); },
        [&](int t, int64_t before, int64_t) { Place(t, WorkCounts::From(before)); }));
    counts.items = AtMost(counts.items, map_.max_items);
    counts.merges = AtMost(counts.merges, map_.max_merges);
    return counts;
  }

  // The column of the item before the first of tile t; -1 if there is none.
  REPRISE_HOST_DEVICE int ColumnBefore(const Columns& columns, int t) const {
    for (--t; t >= 0; --t) {
      const WorkTile& tile = tiles_[t];
      if (tile.num_pieces > 0) {
        return Cutter::ColumnOf(columns, tile, RowTiles(tile), tile.num_pieces - 1);
      }
    }
    return -1;
  }

  REPRISE_HOST_DEVICE int KeyAt(const Columns& columns, const WorkTile& tile, int row_tiles,
                                int piece) const {
    if (piece == 0) return tile.key_begin;
    if (piece == tile.num_pieces) return tile.key_end;
    const int64_t step = Cutter::StepOf(columns, tile, row_tiles, piece);
    return static_cast<int>((tile.key_begin / kWorkStepKeys + step) * kWorkStepKeys);
  }

  // What every item has: its queries, keys and partials.
  REPRISE_HOST_DEVICE WorkItem PieceOf(int t, const WorkTile& tile, int piece, int row_tiles,
                                       const Columns& columns) const {
    const Queries queries = QueriesOf(t, tile.row);
    const int stride = PartialStride(t, tile);
    WorkItem item = {};
    item.row = tile.row;
    item.query_begin = queries.begin;
    item.query_end = queries.end;
    item.key_begin = KeyAt(columns, tile, row_tiles, piece);
    item.key_end = KeyAt(columns, tile, row_tiles, piece + 1);
    // Holds for batches within the plan; others must not write beyond the workspace.
    const bool is_cut = IsMerged(tile) && (IsShared(tile) || tile.merge < map_.max_merges) &&
                        tile.first_partial + tile.num_pieces * stride <= map_.max_partials;
    item.partial = is_cut ? tile.first_partial + piece * stride : -1;
    item.merge = is_cut && !IsShared(tile) ? tile.merge : -1;
    item.first_partial = is_cut ? tile.first_partial : -1;
    item.num_partials = is_cut ? tile.num_pieces : 0;
    return item;
  }

  REPRISE_HOST_DEVICE WorkItem SharedItemOf(int t, const WorkTile& tile, int piece,
                                            const Columns& columns, int num_tiles,
                                            int num_items) const {
    const WorkMapRow row = LoadRow(rows_, shared_from_row_);
    WorkItem item = PieceOf(t, tile, piece, 1, columns);
    item.first_token = t * map_.tile_queries;
    item.key_start = static_cast<int32_t>(row.key_start);
    item.first_key = item.key_start;
    item.table_row = rows_.table_row ? rows_.table_row[shared_from_row_] : shared_from_row_;
    item.prefix_len = shared_keys_;
    const auto first_item = [&](int token) {
      const int own = TileAtToken(token, num_tiles);
      return own < num_tiles ? tiles_[own].first_item : num_items;
    };
    item.first_child = first_item(item.first_token);
    item.end_child = first_item(item.first_token + map_.tile_queries);
    return item;
  }

  REPRISE_HOST_DEVICE WorkItem ItemOf(int t, const WorkTile& tile, int piece, int row_tiles,
                                      const Columns& columns) const {
    const WorkMapRow row = LoadRow(rows_, tile.row);
    WorkItem item = PieceOf(t, tile, piece, row_tiles, columns);
    item.first_token = row.first_token + item.query_begin;
    item.query_len = row.query_len;
    if (shared_keys_ > 0) {
      const int shared = item.first_token / map_.tile_queries;
      item.first_shared_partial =
          tiles_[shared].first_partial + item.first_token - shared * map_.tile_queries;
      item.num_shared_partials = tiles_[shared].num_pieces;
    }
    // The rest of a padded row may be garbage.
    if (row.seq_len <= 0 || (item.key_begin == item.key_end && shared_keys_ == 0)) return item;
    item.first_position =
        static_cast<int32_t>(row.key_start + row.seq_len - row.query_len + item.query_begin);
    item.key_start = static_cast<int32_t>(row.key_start);
    item.first_key = rows_.key_start_loc ? rows_.key_start_loc[tile.row] : item.key_start;
    item.table_row = rows_.table_row ? rows_.table_row[tile.row] : tile.row;
    item.tail_len = row.tail_len;
    item.prefix_len = row.seq_len - row.tail_len;
    return item;
  }

  // Writes item i and where the columns that begin with it begin.
  REPRISE_HOST_DEVICE void WriteItem(int i, int num_tiles, int num_items, const Columns& columns) {
    const int t = LastAtOrBefore(i, num_tiles, [&](int at) { return tiles_[at].first_item; });
    const WorkTile tile = tiles_[t];
    const int piece = i - tile.first_item;
    const int row_tiles = RowTiles(tile);
    const WorkItem item = IsShared(tile)
                              ? SharedItemOf(t, tile, piece, columns, num_tiles, num_items)
                              : ItemOf(t, tile, piece, row_tiles, columns);
    map_.items[i] = item;
    const int column = Cutter::ColumnOf(columns, tile, row_tiles, piece);
    const int before = piece > 0 ? Cutter::ColumnOf(columns, tile, row_tiles, piece - 1)
                                 : ColumnBefore(columns, t);
    for (int c = before + 1; c <= column; ++c) map_.column_items[c] = i;
    if (before < column) map_.column_first[column] = item;
  }

  REPRISE_HOST_DEVICE void WriteItems(const WorkCounts& counts, int num_tiles,
                                      const Columns& columns) {
    const int num_arrivals = counts.merges * map_.num_virtual_heads;
    team_.ForEach(num_arrivals, [&](int i) { map_.arrivals[i] = 0; });
    team_.ForEach(counts.items, [&](int i) { WriteItem(i, num_tiles, counts.items, columns); });
    // Columns after the last item, and the counts.
    const int used = 1 + ColumnBefore(columns, num_tiles);
    team_.ForEach(map_.num_columns + 1 - used,
                  [&](int c) { map_.column_items[used + c] = counts.items; });
    team_.ForEach(2, [&](int i) { map_.counts[i] = i == 0 ? counts.items : counts.merges; });
  }

  Team& team_;
  const WorkMapRows& rows_;
  const WorkMap& map_;
  WorkTile* const tiles_;
  int32_t* const first_tile_;
  // Every row has one range at most, at a place of its own.
  bool rows_are_tiles_;
  int shared_keys_ = 0;  // 0: none
  int num_shared_tiles_ = 0;
  int shared_from_row_ = 0;
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_BUILDER_H_
