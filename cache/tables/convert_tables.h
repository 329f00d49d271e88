// Conversions between padded, packed (CSR) and token tables (cache/tables/block_table_view.h). A
// conversion covers all rows of a table, or the rows of a batch.
//
//   // Packs two of the rows of a padded table. May run inside a captured step.
//   REPRISE_RETURN_IF_ERROR(LaunchConvertTables(
//       {.table = table, .table_row = rows, .seq_lens = lens, .num_rows = 2,
//        .out = {.packed = packed, .num_faults = num_faults}}, stream));
//
//   from            to              inputs                       outputs
//   padded          packed          table, seq_lens              packed
//   packed          padded          packed                       table, seq_lens
//   tokens          blocks          table (block_size 1),        table, seq_lens
//                                   seq_lens, key_start
//   blocks          tokens          table, seq_lens              table (block_size 1)
//   rows of a       both forms,     attention/metadata/          table, packed, seq_lens,
//   batch           key lengths     batch_tables.h               key_start_loc
//
// One function performs all conversions. A row is a range of keys of the input, and every given
// output receives that row. Only blocks with keys of the row are read, so look-ahead blocks are not
// converted, and may extend past the table's width. Columns after a row's last block become null
// blocks. Example: with block_size 4, a request of 6 tokens in the blocks 7 and 2:
//
//   token table  {28, 29, 30, 31, 8, 9}    slot = block * block_size + offset
//   block table  {7, 2}                    entry c = token table[c * block_size] / block_size
//
// If the block size does not change, entries are copied unchanged. If it changes, every token of
// the row is checked: a block of the output must begin at a multiple of its block_size, and its
// tokens must be consecutive. In this case the only outputs are the table, seq_lens and the faults.
//
// Faults. A row that cannot be converted becomes an empty row. row_faults has the reason
// (base/row_fault.h), and num_faults the number of such rows. All other rows are converted:
//
//   kTableRow  table_row is not a row of the table
//   kLength    a length or start is negative; there are more queries than keys (if the selection
//              reads queries); keys exceed the table's capacity; block_indptr or last_block_len is
//              invalid
//   kNoRoom    the row is wider than the output table; or, together with the good rows before it,
//              its blocks exceed max_indices or its keys exceed int32 in key_start_loc. In the
//              second case, no later row with keys is converted.
//   kNoRun     key_start is not a multiple of block_size; or, if the block size changes, a block of
//              the output does not begin at a multiple of it or its tokens are not consecutive
//   kNoBlock   the block size changes, and an entry is not a block of the input's cache or a result
//              does not fit in int32
//
// Thread safety: pure functions. Cost: linear in rows and entries; no allocation.

#ifndef REPRISE_CACHE_TABLES_CONVERT_TABLES_H_
#define REPRISE_CACHE_TABLES_CONVERT_TABLES_H_

#include "absl/status/status.h"
#include "reprise/cache/tables/convert_tables_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks the arguments of the functions below. Rejects, among others, a negative size, a block_size
// below 1, a row_stride below max_blocks (if there are several rows), a missing array, an output
// with too few rows, and packed outputs if the block size changes. Does not read arrays. Errors:
// InvalidArgument, naming the field, the expected value and the given value.
absl::Status CheckConvertTables(const ConvertTablesArgs& args);

// Converts host arrays. REQUIRES: CheckConvertTables(args).ok().
void ConvertTablesOnHost(const ConvertTablesArgs& args);

// Like ConvertTablesOnHost(), but checks the arguments, and returns an error without writing
// anything if a row has a fault. Errors: as CheckConvertTables(); InvalidArgument, naming the first
// row with a fault and its values.
absl::Status ConvertTables(const ConvertTablesArgs& args);

// Converts device arrays with one kernel. A memset precedes it if the block size changes and
// num_faults is given. May be captured: the grid depends only on num_rows, and replays read the
// current contents of the same arrays. Does not synchronise. Errors: as CheckConvertTables();
// Internal if a launch fails.
absl::Status LaunchConvertTables(const ConvertTablesArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_CONVERT_TABLES_H_
