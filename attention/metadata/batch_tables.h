// Converts the block table of a batch to a table with one row per batch row, padded or packed, for
// kernels that do not support table_row. Can also write cumulative key lengths, for kernels over
// packed keys. The batch is the input of a block table conversion:
//
//   ConvertTablesArgs args = ConversionOf(batch, /*block_size=*/16);
//   args.selection = {.keys = TableKeys::kWindow, .window_left = 127};   // default: all keys
//   args.out = {.packed = packed, .key_start_loc = key_start_loc};
//   REPRISE_RETURN_IF_ERROR(LaunchConvertTables(args, stream));   // or ConvertTables(args)
//
// ConvertedBatch() returns the batch over the padded table. The virtual rows of
// attention/metadata/local_virtual_batch.h become the usual form of chunked-local attention: row v
// of the table holds the blocks with the keys of virtual row v. REQUIRES: the chunk size is a
// multiple of the block size. A row whose keys do not begin at a block boundary gets the fault
// kNoRun.
//
// cache/tables/convert_tables.h documents the outputs and the faults of rows. A selection is all
// keys of a row, the keys cached before the step (no keys in a pure prefill), or the keys that a
// window reaches. Padded rows become empty rows. If only cumulative lengths are requested, no table
// is read.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_TABLES_H_
#define REPRISE_ATTENTION_METADATA_BATCH_TABLES_H_

#include "reprise/attention/paged_batch.h"
#include "reprise/cache/tables/block_table_view.h"
#include "reprise/cache/tables/convert_tables_args.h"

namespace reprise {

// Returns the table that the batch reads.
constexpr BlockTableView TableOf(const PagedBatch& batch, int block_size) {
  return {.entries = batch.block_table,
          .row_stride = batch.block_table_stride,
          .num_tables = batch.num_tables,
          .max_blocks = batch.max_blocks,
          .block_size = block_size};
}

// Returns the inputs of a conversion of the batch's rows. All keys are selected, and the outputs
// are not set.
constexpr ConvertTablesArgs ConversionOf(const PagedBatch& batch, int block_size) {
  return {.table = TableOf(batch, block_size),
          .table_row = batch.table_row,
          .key_start = batch.key_start,
          .seq_lens = batch.seq_lens,
          .query_start_loc = batch.query_start_loc,
          .num_rows = batch.num_rows};
}

// Returns the batch over out.table and out.seq_lens. Row r reads row r of the table. Positions of
// queries and keys count from the first converted key, so the distances between them do not change.
// Scales and slopes per table row become per row of the batch. REQUIRES: the selection is kSeqLen
// or kWindow, the block size does not change, and the batch has no query_positions. With kWindow,
// it has neither custom masks nor a common_prefix_len.
constexpr PagedBatch ConvertedBatch(const PagedBatch& batch, const ConvertTablesOutputs& out) {
  PagedBatch converted = batch;
  converted.seq_lens = out.seq_lens;
  converted.table_row = nullptr;
  converted.key_start = nullptr;
  converted.block_table = out.table.entries;
  converted.block_table_stride = out.table.row_stride;
  converted.num_tables = batch.num_rows;
  converted.max_blocks = out.table.max_blocks;
  return converted;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_TABLES_H_
