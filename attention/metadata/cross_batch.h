// Cross attention as a paged batch: the decoder's rows of queries over the encoder's keys.
//
// The encoder's keys are cached once, either in a separate table (the cross group's) or before the
// decoder's keys in one shared table. Each sequence has one key per token of its encoder input. The
// batch is not causal. It has the decoder's query_start_loc and table_row, and its seq_lens are the
// encoder lengths. One batch, also in a captured graph, may mix decodes, prefill chunks and drafts
// of sequences with different encoder lengths, or without an encoder (length 0: out is 0).
//
//   // Slots 2 and 0 with encoder inputs of 7 and 3 tokens; encoder_lens by slot are {3, -, 7}:
//   CrossBatchArgs args{.rows = decoder_batch, .encoder_lens = lens, .table = encoder_table,
//                       .max_encoder_len = 1500, .seq_lens = buffer};
//   absl::StatusOr<PagedBatch> batch = BuildCrossBatch(args);     // seq_lens {7, 3}
//   // on a GPU: CrossBatch(args) once per shape, LaunchCrossBatch(args, stream) each step
//
// The encoder's keys are written to their own slots. Build a batch with one row per encoder input:
// BuildPagedBatch() over sequences {table_row, 0, encoder_len} of the encoder's table. Write the
// keys with the slot_mapping of that batch once, when the input arrives.
//
// One table may hold the encoder's keys followed by the decoder's keys (SGLang's token table). The
// decoder's sequences then have key_start = encoder_len (attention/metadata/batch_sequence.h), and
// the cross batch reads the same table from its start.
//
// A window of a cross layer is relative to query_positions. Set query_positions to values that are
// comparable to positions 0 .. encoder_len - 1, or do not use a window.
//
// An invalid row sees no key, and row_faults holds the reason: kTableRow for a table_row outside
// the table, kLength for an encoder length outside 0 .. max_encoder_len.
//
// Thread safety: pure functions. Cost: linear in rows; no allocation.

#ifndef REPRISE_ATTENTION_METADATA_CROSS_BATCH_H_
#define REPRISE_ATTENTION_METADATA_CROSS_BATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/tables/block_table_view.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Pointers are all on the host or all on the device.
struct CrossBatchArgs {
  // The decoder's batch. Only query_start_loc, table_row, the capacities and seq_lens are used. A
  // row with seq_len 0 stays a padded row. The batch may have virtual rows or masks; masks are
  // ignored.
  PagedBatch rows = {};
  const int32_t* encoder_lens = nullptr;  // [table.num_tables] encoder tokens of each table row
  BlockTableView table = {};              // encoder's keys; same rows as the decoder's table
  int max_encoder_len = 0;                // upper bound, constant under capture
  int32_t* seq_lens = nullptr;            // [rows.num_rows] the caller's memory
  int32_t* row_faults = nullptr;          // [rows.num_rows] RowFault; or absent
  int32_t* num_faults = nullptr;          // [1] rows with a fault; or absent
};

// Returns the batch over the arrays.
PagedBatch CrossBatch(const CrossBatchArgs& args);

// Checks the arguments of both forms. Does not read the arrays.
// Errors: InvalidArgument for an invalid table, a max_encoder_len that is negative or beyond the
// table's width, a negative number of rows, or an absent array.
absl::Status CheckCrossBatch(const CrossBatchArgs& args);

// Fills host arrays, like LaunchCrossBatch() on the device. REQUIRES: CheckCrossBatch(args) is OK.
void CrossBatchOnHost(const CrossBatchArgs& args);

// Fills host arrays and returns the batch over them. Errors: those of CheckCrossBatch();
// InvalidArgument for the first row with a fault, with its values. On error nothing is written.
absl::StatusOr<PagedBatch> BuildCrossBatch(const CrossBatchArgs& args);

// Fills device arrays. May be captured: the grid depends only on rows.num_rows.
// Errors: those of CheckCrossBatch(); Internal if a launch fails. Cost: one kernel, preceded by a
// memset if num_faults is given. Does not synchronise.
absl::Status LaunchCrossBatch(const CrossBatchArgs& args, CUstream_st* stream);

// The number of keys that a row sees, and its fault. Used by both forms.
struct CrossRow {
  int32_t seq_len = 0;
  RowFault fault = RowFault::kNone;
};

constexpr CrossRow CrossRowOf(const CrossBatchArgs& args, int r) {
  if (args.rows.seq_lens[r] <= 0) return {};
  const int32_t table_row = args.rows.table_row ? args.rows.table_row[r] : r;
  if (!HasTableRow(args.table, table_row)) return {0, RowFault::kTableRow};
  const int32_t length = args.encoder_lens[table_row];
  if (length < 0 || length > args.max_encoder_len) return {0, RowFault::kLength};
  return {length, RowFault::kNone};
}

constexpr void WriteCrossRow(const CrossBatchArgs& args, int r, const CrossRow& row) {
  args.seq_lens[r] = row.seq_len;
  if (args.row_faults) args.row_faults[r] = static_cast<int32_t>(row.fault);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_CROSS_BATCH_H_
