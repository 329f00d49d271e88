// Conversions between block tables: padded, packed (CSR) and token tables
// (cache/tables/block_table_view.h), of all rows of a table or of the rows of a batch.
//
//   // Two of the rows of a padded table, packed. Inside a captured step:
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
// One function does all of these: a row is a range of keys of the input, and each output that is
// given gets that row. Only blocks that hold keys of the row are read, so look-ahead blocks stay
// out, beyond the table's width too. Columns after a row's last block become null blocks. With
// block_size 4, a request of 6 tokens in the blocks 7 and 2:
//
//   token table  {28, 29, 30, 31, 8, 9}    slot = block * block_size + offset
//   block table  {7, 2}                    entry c = token table[c * block_size] / block_size
//
// Where the block size stays, entries are copied as they are. Where it changes, every token of the
// row is checked: a block of the output must begin at a multiple of its block_size, and its tokens
// must follow each other. Then the table is the only output besides seq_lens and faults.
//
// Faults. A row that cannot be converted becomes an empty row, row_faults gives the reason
// (base/row_fault.h), and num_faults counts such rows; the other rows are converted:
//
//   kTableRow  table_row is not a row of the table
//   kLength    a length or start is negative; there are more queries than keys, or keys beyond the
//              table's capacity; block_indptr or last_block_len is not that of a packed table
//   kNoRoom    the row is wider than the output table, or its blocks, after those of the good rows
//              before it, pass max_indices (or its keys pass int32 in key_start_loc); then no later
//              row that has keys is converted
//   kNoRun     key_start is not a multiple of block_size, or, where the block size changes, a block
//              of the output does not begin at a multiple of it or is not one run of tokens
//   kNoBlock   where the block size changes: an entry is not a block of the input's cache, or a
//              result does not fit in int32
//
// Thread safety: pure functions. Cost: linear in rows and entries; no allocation.

#ifndef REPRISE_CACHE_TABLES_CONVERT_TABLES_H_
#define REPRISE_CACHE_TABLES_CONVERT_TABLES_H_

#include "absl/status/status.h"
#include "reprise/cache/tables/convert_tables_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks for both forms. Refuses a negative size, a block_size below 1, a row_stride below
// max_blocks, a missing array, an output with too few rows, and packed outputs where the block size
// changes. Reads no array. Errors: InvalidArgument, naming the field and what was expected and got.
absl::Status CheckConvertTables(const ConvertTablesArgs& args);

// Converts host arrays. REQUIRES: CheckConvertTables(args).ok().
void ConvertTablesOnHost(const ConvertTablesArgs& args);

// The same, but a fault is an error, and then nothing is written. Errors: those of
// CheckConvertTables(); InvalidArgument, naming the first row with a fault and its values.
absl::Status ConvertTables(const ConvertTablesArgs& args);

// Converts device arrays: one kernel, preceded by a memset if the block size changes and num_faults
// is given. May be captured: the grid depends on num_rows alone; replays read new contents of the
// same arrays. No synchronisation. Errors: those of CheckConvertTables(); Internal if a launch
// fails.
absl::Status LaunchConvertTables(const ConvertTablesArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_CONVERT_TABLES_H_
