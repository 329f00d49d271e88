// The builder of a work map: one piece of code for host and device, over a team that scans.
//
// Three passes: query ranges of each row; keys and cost of each range; items, partials and merges
// of each range. A range of n steps of keys costs 1 + n (the one for its queries, table and
// result); in balanced mode column c of C takes the costs [floor(c * total / C), floor((c + 1) *
// total / C)).
//
// A Team runs the passes: the host's in order, the device's with the threads of one CTA.
//
//   team.ForEach(n, f)          f(i) for i in [0, n)
//   team.Scan(n, count, use)    use(i, sum of count(j) for j < i, count(i)); returns the whole sum
//
// What a call writes is seen by every thread of the team after it.

#ifndef ATTENTION_WORK_MAP_CUT_H_
#define ATTENTION_WORK_MAP_CUT_H_

#include <cstdint>

#include "attention/host_device.h"
#include "attention/work_map.h"
#include "attention/work_map_key_range.h"
#include "attention/work_map_rows.h"
#include "attention/work_map_scratch.h"

namespace reprise {

// Where the pieces of a range begin and end, in steps of its keys, and their columns.
class TileCut {
 public:
  // `cost_begin`: of all ranges before; `total`: of all ranges.
  REPRISE_HOST_DEVICE static TileCut Balanced(const WorkTile& tile, int64_t total,
                                              int num_columns) {
    TileCut cut(tile, total, total < num_columns ? total : num_columns);
    if (cut.num_steps_ == 0) return cut;
    // Borders strictly inside the steps: the first step stands at cost_begin + 1.
    cut.first_border_ = cut.BorderAtOrAfter(tile.cost_begin + 2);
    const int64_t last_border = cut.ColumnOf(tile.cost_begin + cut.num_steps_);
    if (last_border >= cut.first_border_) {
      cut.num_pieces_ = static_cast<int>(last_border - cut.first_border_) + 2;
    }
    return cut;
  }

  // `row_tiles`: ranges of the row. Piece p costs 1 and its steps, so ranges cost their pieces and
  // their steps.
  REPRISE_HOST_DEVICE static TileCut Deterministic(const WorkTile& tile, int row_tiles,
                                                   int64_t total, int num_columns) {
    TileCut cut(tile, total, total < num_columns ? total : num_columns);
    int pieces = kMaxDeterministicSplits / row_tiles;
    const int longest = (cut.num_steps_ + kMinDeterministicSteps - 1) / kMinDeterministicSteps;
    if (pieces > longest) pieces = longest;
    if (pieces <= 1) return cut;
    cut.chunk_ = (cut.num_steps_ + pieces - 1) / pieces;
    cut.num_pieces_ = (cut.num_steps_ + cut.chunk_ - 1) / cut.chunk_;
    return cut;
  }

  REPRISE_HOST_DEVICE static int NumSteps(int key_begin, int key_end) {
    if (key_begin >= key_end) return 0;
    return (key_end + kWorkStepKeys - 1) / kWorkStepKeys - key_begin / kWorkStepKeys;
  }

  REPRISE_HOST_DEVICE int num_pieces() const { return num_pieces_; }
  REPRISE_HOST_DEVICE int64_t cost() const {
    return chunk_ > 0 ? num_pieces_ + num_steps_ : 1 + num_steps_;
  }

  // The local key at which piece p begins; that of num_pieces() is the end of the last.
  REPRISE_HOST_DEVICE int KeyAt(int p) const {
    if (p == 0) return tile_.key_begin;
    if (p == num_pieces_) return tile_.key_end;
    const int64_t step = chunk_ > 0 ? static_cast<int64_t>(p) * chunk_
                                    : Border(first_border_ + p - 1) - tile_.cost_begin - 1;
    return static_cast<int>((tile_.key_begin / kWorkStepKeys + step) * kWorkStepKeys);
  }

  REPRISE_HOST_DEVICE int ColumnAt(int p) const {
    if (chunk_ > 0) {
      return static_cast<int>(ColumnOf(tile_.cost_begin + static_cast<int64_t>(p) * (1 + chunk_)));
    }
    if (p > 0) return static_cast<int>(first_border_ + p - 1);
    return static_cast<int>(ColumnOf(tile_.cost_begin + (num_steps_ > 0 ? 1 : 0)));
  }

 private:
  REPRISE_HOST_DEVICE TileCut(const WorkTile& tile, int64_t total, int64_t columns)
      : tile_(tile),
        total_(total),
        columns_(columns),
        num_steps_(NumSteps(tile.key_begin, tile.key_end)) {}

  // The cost at which `column` begins.
  REPRISE_HOST_DEVICE int64_t Border(int64_t column) const { return column * total_ / columns_; }
  // The last column that begins at or before `cost`, and the first that begins at or after it.
  REPRISE_HOST_DEVICE int64_t ColumnOf(int64_t cost) const {
    return ((cost + 1) * columns_ - 1) / total_;
  }
  REPRISE_HOST_DEVICE int64_t BorderAtOrAfter(int64_t cost) const {
    return (cost * columns_ + total_ - 1) / total_;
  }

  WorkTile tile_;
  int64_t total_;
  int64_t columns_;
  int num_steps_;
  int num_pieces_ = 1;
  int chunk_ = 0;             // steps of a piece; 0: balanced, or uncut
  int64_t first_border_ = 0;  // the first column that begins inside the range
};

// The row of tile t: the last whose first tile is at or before t and that has any.
REPRISE_HOST_DEVICE inline int RowOfTile(const int32_t* first_tile, int num_rows, int t) {
  int low = 0;  // first_tile[low] <= t < first_tile[high]
  int high = num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_tile[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Items, partials and merges in one number, to be summed in one scan.
struct WorkCounts {
  int items;
  int partials;
  int merges;

  REPRISE_HOST_DEVICE int64_t Packed() const {
    return static_cast<int64_t>(items) << 40 | static_cast<int64_t>(partials) << 20 | merges;
  }
  REPRISE_HOST_DEVICE static WorkCounts From(int64_t packed) {
    return {static_cast<int>(packed >> 40), static_cast<int>(packed >> 20 & 0xfffff),
            static_cast<int>(packed & 0xfffff)};
  }
};

template <typename Team>
class WorkCutter {
 public:
  REPRISE_HOST_DEVICE WorkCutter(Team& team, const WorkMapRows& rows, const WorkMap& map,
                                 const WorkMapScratch& scratch)
      : team_(team), rows_(rows), map_(map), scratch_(scratch) {}

  REPRISE_HOST_DEVICE void Run() {
    FindTiles();
    FindKeys();
    WriteItems();
    WriteColumns();
  }

 private:
  REPRISE_HOST_DEVICE int RowTiles(int r) const {
    const int query_len = rows_.query_start_loc[r + 1] - rows_.query_start_loc[r];
    return query_len <= 0 ? 0 : (query_len + map_.tile_queries - 1) / map_.tile_queries;
  }

  REPRISE_HOST_DEVICE void FindTiles() {
    const int64_t tiles = team_.Scan(
        rows_.num_rows, [&](int r) -> int64_t { return RowTiles(r); },
        [&](int r, int64_t before, int64_t) {
          scratch_.first_tile[r] = static_cast<int32_t>(before);
        });
    num_tiles_ = static_cast<int>(tiles < map_.max_tiles ? tiles : map_.max_tiles);
  }

  REPRISE_HOST_DEVICE TileCut CutOf(const WorkTile& tile) const {
    return map_.mode == WorkMapMode::kDeterministic
               ? TileCut::Deterministic(tile, RowTiles(tile.row), total_cost_, map_.num_columns)
               : TileCut::Balanced(tile, total_cost_, map_.num_columns);
  }

  REPRISE_HOST_DEVICE int64_t FindKeysOf(int t) {
    WorkTile& tile = scratch_.tiles[t];
    tile.row = RowOfTile(scratch_.first_tile, rows_.num_rows, t);
    const WorkMapRow row = LoadRow(rows_, tile.row);
    tile.query_begin = (t - scratch_.first_tile[tile.row]) * map_.tile_queries;
    const KeyHull keys = KeysSeen(rows_, row, tile.query_begin, QueryEnd(tile, row.query_len));
    tile.key_begin = keys.begin;
    tile.key_end = keys.end;
    tile.cost_begin = 0;
    if (map_.mode == WorkMapMode::kDeterministic) {
      return TileCut::Deterministic(tile, RowTiles(tile.row), 1, 1).cost();
    }
    return 1 + TileCut::NumSteps(keys.begin, keys.end);
  }

  REPRISE_HOST_DEVICE void FindKeys() {
    total_cost_ = team_.Scan(
        num_tiles_, [&](int t) -> int64_t { return FindKeysOf(t); },
        [&](int t, int64_t before, int64_t) { scratch_.tiles[t].cost_begin = before; });
  }

  REPRISE_HOST_DEVICE int QueryEnd(const WorkTile& tile, int query_len) const {
    const int end = tile.query_begin + map_.tile_queries;
    return end < query_len ? end : query_len;
  }

  REPRISE_HOST_DEVICE void WriteTile(const WorkTile& tile, const WorkCounts& before) {
    const TileCut cut = CutOf(tile);
    const int query_len = rows_.query_start_loc[tile.row + 1] - rows_.query_start_loc[tile.row];
    const int query_end = QueryEnd(tile, query_len);
    const int pieces = cut.num_pieces();
    const bool merged = pieces > 1;
    if (merged) {
      map_.merges[before.merges] = {tile.row, tile.query_begin, query_end, before.partials, pieces};
    }
    int key = cut.KeyAt(0);
    for (int p = 0; p < pieces; ++p) {
      const int next_key = cut.KeyAt(p + 1);
      map_.items[before.items + p] = {.row = tile.row,
                                      .query_begin = tile.query_begin,
                                      .query_end = query_end,
                                      .key_begin = key,
                                      .key_end = next_key,
                                      .partial = merged ? before.partials + p : -1,
                                      .merge = merged ? before.merges : -1,
                                      .column = cut.ColumnAt(p)};
      key = next_key;
    }
  }

  REPRISE_HOST_DEVICE void WriteItems() {
    const int64_t packed = team_.Scan(
        num_tiles_,
        [&](int t) -> int64_t {
          const int pieces = CutOf(scratch_.tiles[t]).num_pieces();
          return WorkCounts{pieces, pieces > 1 ? pieces : 0, pieces > 1 ? 1 : 0}.Packed();
        },
        [&](int t, int64_t before, int64_t count) {
          // Holds for batches within the plan; others must not write beyond the workspace.
          const WorkCounts end = WorkCounts::From(before + count);
          if (end.items <= map_.max_items && end.partials <= map_.max_partials &&
              end.merges <= map_.max_merges) {
            WriteTile(scratch_.tiles[t], WorkCounts::From(before));
          }
        });
    const WorkCounts counts = WorkCounts::From(packed);
    num_items_ = counts.items < map_.max_items ? counts.items : map_.max_items;
    const int merges = counts.merges < map_.max_merges ? counts.merges : map_.max_merges;
    team_.ForEach(merges * map_.num_virtual_heads, [&](int i) { map_.arrivals[i] = 0; });
    team_.ForEach(2, [&](int i) { map_.counts[i] = i == 0 ? num_items_ : merges; });
  }

  REPRISE_HOST_DEVICE void WriteColumns() {
    team_.ForEach(num_items_ + 1, [&](int i) {
      const int column = i < num_items_ ? map_.items[i].column : map_.num_columns;
      const int before = i > 0 ? map_.items[i - 1].column : -1;
      for (int c = before + 1; c <= column; ++c) map_.column_items[c] = i;
    });
  }

  Team& team_;
  const WorkMapRows& rows_;
  const WorkMap& map_;
  const WorkMapScratch scratch_;
  int num_tiles_ = 0;
  int num_items_ = 0;
  int64_t total_cost_ = 0;
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_CUT_H_
