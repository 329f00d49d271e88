// The keys that the queries of a range may see: the contract of attention/paged_batch.h, as
// interval arithmetic for host and device.

#ifndef ATTENTION_WORK_MAP_KEY_RANGE_H_
#define ATTENTION_WORK_MAP_KEY_RANGE_H_

#include <cstdint>

#include "attention/host_device.h"
#include "attention/work_map_rows.h"

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
  int32_t first_tile;  // the builder's: the row's first query range
};

// Loads do not wait for one another.
REPRISE_HOST_DEVICE inline WorkMapRow LoadRow(const WorkMapRows& rows, int r) {
  const int32_t begin = rows.query_start_loc[r];
  const int32_t end = rows.query_start_loc[r + 1];
  const int32_t keys_begin = rows.key_start_loc ? rows.key_start_loc[r] : 0;
  const int32_t keys_end = rows.seq_lens ? rows.seq_lens[r] : rows.key_start_loc[r + 1];
  const int32_t key_start = rows.key_start ? rows.key_start[r] : 0;
  const int32_t table_row = rows.table_row ? rows.table_row[r] : r;
  const int32_t tail_len = rows.tail_len ? rows.tail_len[r] : 0;
  WorkMapRow row;
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

// p() of the row's first query where the batch gives no positions.
REPRISE_HOST_DEVICE inline int64_t FirstPosition(const WorkMapRow& row) {
  return static_cast<int64_t>(row.key_start) + row.seq_len - row.query_len;
}

REPRISE_HOST_DEVICE inline int64_t Clamp(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

// The first local key that stands at `position` or after it, clamped to [0, num_keys].
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

// The place of the n-th (from 0) set bit. REQUIRES: there is one.
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

REPRISE_HOST_DEVICE inline int CountBits(uint64_t mask) {
  int count = 0;
  for (; mask != 0; mask &= mask - 1) ++count;
  return count;
}

// A growing hull of key ranges.
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

// The keys that the queries see where there are neither positions nor a tail nor ranks: local keys
// stand in a line, the last query at the last of them.
REPRISE_HOST_DEVICE inline KeyHull KeysInLine(const WorkMapRows& rows, const WorkMapRow& row,
                                              int query_begin, int query_end) {
  const int first = row.seq_len - row.query_len + query_begin;
  const int last = row.seq_len - row.query_len + query_end - 1;
  KeyHull hull;
  hull.end = row.seq_len;
  const int right = rows.causal ? 0 : rows.window_right;  // -1: none
  if (right >= 0 && row.seq_len - 1 - last > right) hull.end = last + right + 1;
  if (rows.window_left >= 0 && first > rows.window_left) hull.begin = first - rows.window_left;
  // Also of rows with more queries than keys.
  if (hull.begin >= hull.end) hull.begin = hull.end = 0;
  return hull;
}

// Adds the keys seen from positions first..last, each of which is some query's or stands between
// two in a run without gaps.
REPRISE_HOST_DEVICE inline void AddPositions(const WorkMapRows& rows, const WorkMapRow& row,
                                             int64_t first, int64_t last, KeyHull& hull) {
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

// Adds the tail keys that the query of `mask` at `position` sees.
REPRISE_HOST_DEVICE inline void AddTail(const WorkMapRows& rows, const WorkMapRow& row,
                                        int64_t position, uint64_t mask, KeyHull& hull) {
  if (row.tail_len < 64) mask &= (uint64_t{1} << row.tail_len) - 1;
  const int tail_begin = row.seq_len - row.tail_len;
  const int64_t path_begin =
      static_cast<int64_t>(row.key_start) + tail_begin;  // position of the first key of the path
  int64_t first = 0;
  int64_t last = CountBits(mask) - 1;
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

// From the first to the last local key that a query of [query_begin, query_end) may see.
REPRISE_HOST_DEVICE inline KeyHull KeysSeen(const WorkMapRows& rows, const WorkMapRow& row,
                                            int query_begin, int query_end) {
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

// How many of the row's first keys may be shared with other rows: those that all of its queries
// see, without its tail and its own new tokens. REQUIRES: no window to the left, no ranks.
REPRISE_HOST_DEVICE inline int KeysToShare(const WorkMapRows& rows, const WorkMapRow& row) {
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

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_KEY_RANGE_H_
