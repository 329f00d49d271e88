// Arguments of LocalVirtualBatch, and the functions that cut one row at chunk boundaries. Shared by
// the host and device forms (attention/metadata/local_virtual_batch.h).
//
//   // 10 queries over 17 keys have positions 7 .. 16. Chunks of 4 cut them into 4 virtual rows:
//   //   positions 7 | 8 .. 11 | 12 .. 15 | 16
//   LocalCut cut = CutAtChunks({.query_len = 10, .seq_len = 17}, 4);   // cut.num_rows == 4
//   LocalRow row = LocalRowOf(cut, 1, 4);   // first_token 1, query_len 4, seq_len 4, key_start 8
//
// All functions are constexpr. No LibTorch.

#ifndef REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_ARGS_H_
#define REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_ARGS_H_

#include <cstdint>

#include "reprise/attention/paged_batch.h"
#include "reprise/base/row_fault.h"

namespace reprise {

// Buffers for max_rows virtual rows. The caller owns the memory, on the device of the batch.
struct LocalBatchBuffers {
  int32_t* query_start_loc = nullptr;  // [max_rows + 1]
  int32_t* seq_lens = nullptr;         // [max_rows]
  int32_t* table_row = nullptr;        // [max_rows]
  int32_t* key_start = nullptr;        // [max_rows]
  int max_rows = 0;
};

struct LocalVirtualBatchArgs {
  PagedBatch batch = {};  // the rows to cut
  int chunk_size = 0;
  LocalBatchBuffers buffers = {};
  int32_t* row_faults = nullptr;  // [batch.num_rows] RowFault; or absent
  int32_t* num_faults = nullptr;  // [1] rows with a fault; or absent
};

// Returns the maximum number of virtual rows for these sizes. A row with q >= 1 queries touches at
// most 2 + floor((q - 2) / chunk_size) chunks, and at most q chunks. REQUIRES: chunk_size >= 1.
constexpr int MaxLocalRows(int num_rows, int num_tokens, int chunk_size) {
  const int64_t by_chunks = 2 * static_cast<int64_t>(num_rows) + num_tokens / chunk_size;
  return by_chunks < num_tokens ? static_cast<int>(by_chunks) : num_tokens;
}

constexpr int MaxLocalRows(const LocalVirtualBatchArgs& args) {
  return MaxLocalRows(args.batch.num_rows, args.batch.num_tokens, args.chunk_size);
}

// The lengths of a row. The row's keys are seq_len keys from key_start of its table row, and its
// queries are the last query_len keys.
struct LocalRowLens {
  int32_t query_len = 0;
  int32_t seq_len = 0;
  int32_t key_start = 0;
};

// Returns whether the row has keys, its queries are among the keys, and its positions fit in int32.
constexpr bool HasQueriesAmongKeys(const LocalRowLens& row) {
  return row.seq_len > 0 && row.query_len <= row.seq_len && row.key_start >= 0 &&
         static_cast<int64_t>(row.key_start) + row.seq_len <= INT32_MAX;
}

// The virtual rows of one row.
struct LocalCut {
  int32_t num_rows = 0;        // virtual rows; 0 if the row has no queries
  int32_t first_position = 0;  // position of the row's first query
  int32_t end_position = 0;    // position of the row's last query, plus 1
  int32_t key_start = 0;
  bool has_keys = false;  // if false, the queries see no key
};

// Cuts a row into virtual rows. If HasQueriesAmongKeys() is false, the virtual rows have no keys
// and at most chunk_size queries each. REQUIRES: query_len >= 0, chunk_size >= 1.
constexpr LocalCut CutAtChunks(const LocalRowLens& row, int32_t chunk_size) {
  LocalCut cut;
  if (row.query_len <= 0) return cut;
  cut.has_keys = HasQueriesAmongKeys(row);
  cut.key_start = cut.has_keys ? row.key_start : 0;
  cut.end_position = cut.has_keys ? row.key_start + row.seq_len : row.query_len;
  cut.first_position = cut.end_position - row.query_len;
  cut.num_rows = (cut.end_position - 1) / chunk_size - cut.first_position / chunk_size + 1;
  return cut;
}

// A virtual row.
struct LocalRow {
  int32_t first_token = 0;  // relative to the first token of the original row
  int32_t seq_len = 0;
  int32_t key_start = 0;
};

// Returns the i-th virtual row. REQUIRES: 0 <= i < cut.num_rows; chunk_size is the value that was
// passed to CutAtChunks().
constexpr LocalRow LocalRowOf(const LocalCut& cut, int32_t i, int32_t chunk_size) {
  const int64_t chunk_begin =
      (static_cast<int64_t>(cut.first_position / chunk_size) + i) * chunk_size;
  const int64_t chunk_end = chunk_begin + chunk_size;
  const int64_t begin = chunk_begin > cut.first_position ? chunk_begin : cut.first_position;
  const int64_t end = chunk_end < cut.end_position ? chunk_end : cut.end_position;
  LocalRow row;
  row.first_token = static_cast<int32_t>(begin - cut.first_position);
  if (!cut.has_keys) return row;
  row.key_start =
      static_cast<int32_t>(chunk_begin > cut.key_start ? chunk_begin : int64_t{cut.key_start});
  row.seq_len = static_cast<int32_t>(end) - row.key_start;
  return row;
}

// A row of the batch, cut into virtual rows.
struct CutRow {
  LocalCut cut;
  int32_t first_token = 0;
  int32_t table_row = 0;
  RowFault fault = RowFault::kNone;
};

constexpr CutRow CutRowOf(const LocalVirtualBatchArgs& args, int r) {
  const PagedBatch& batch = args.batch;
  LocalRowLens lens;
  lens.seq_len = batch.seq_lens[r];
  lens.key_start = batch.key_start ? batch.key_start[r] : 0;
  CutRow row;
  row.first_token = batch.query_start_loc[r];
  const int32_t end = batch.query_start_loc[r + 1];
  if (row.first_token < 0 || end < row.first_token || end > batch.num_tokens) {
    row.fault = RowFault::kLength;
    return row;
  }
  lens.query_len = end - row.first_token;
  row.cut = CutAtChunks(lens, args.chunk_size);
  if (row.cut.has_keys) row.table_row = batch.table_row ? batch.table_row[r] : r;
  const bool sees_none = lens.query_len == 0 || lens.seq_len == 0;
  if (lens.seq_len < 0 || (!sees_none && !row.cut.has_keys)) row.fault = RowFault::kLength;
  return row;
}

// If a row has more than `room` virtual rows, removes the row's keys and sets the fault kNoRoom.
// This happens only if query_start_loc decreases in some row.
constexpr void KeepToRoom(CutRow& row, int room) {
  if (row.cut.num_rows <= room) return;
  row.cut.has_keys = false;
  row.table_row = 0;
  row.fault = RowFault::kNoRoom;
}

constexpr void WriteLocalRow(const LocalBatchBuffers& buffers, int v, const CutRow& row,
                             const LocalRow& local) {
  buffers.query_start_loc[v] = row.first_token + local.first_token;
  buffers.seq_lens[v] = local.seq_len;
  buffers.table_row[v] = row.table_row;
  buffers.key_start[v] = local.key_start;
}

// Writes an unused virtual row.
constexpr void WriteUnusedLocalRow(const LocalVirtualBatchArgs& args, int v) {
  CutRow unused;
  unused.first_token = args.batch.query_start_loc[args.batch.num_rows];
  WriteLocalRow(args.buffers, v, unused, {});
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_ARGS_H_
