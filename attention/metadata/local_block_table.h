// The classic form of chunked-local attention: each virtual row has its own block table, for
// kernels that read neither table_row nor key_start.
//
//   // The worked example of attention/metadata/local_virtual_batch.h at block_size 2, over the
//   // tables {0 .. 9}, {10 .. 19}, {20 .. 29}:
//   //   {0 1} {2 3} {12 13} {14 15} {16 17} {18 19} {22 23} {24 25}, and null blocks
//   LocalBlockTableArgs args = {.local = *local, .chunk_size = 4, .table = table,
//                               .seq_lens = lens};
//   absl::StatusOr<PagedBatch> classic = BuildLocalBlockTable(args);
//   // on a GPU: LocalBlockTableBatch(args) once per shape, LaunchLocalBlockTable(args, stream)
//   // each step
//
// A row holds the blocks of its whole chunk, whatever they contain, so its columns do not depend on
// its length, unlike those of cache/tables/convert_tables.h. Columns past the table's width repeat
// the last column (as vLLM and SGLang clip them), and are beyond the row's seq_len. Positions count
// from the chunk's start, for queries and keys alike, so windows, ALiBi and in-kernel rotary use
// the same distances.
//
// A row without a valid table becomes an empty row, with the reason in row_faults: kTableRow for a
// table_row outside the table, kLength for keys beyond the table's width or a negative seq_len or
// key_start, kNoRun for a key_start within a block.
//
// Thread safety: pure functions. Cost: linear in virtual rows times blocks of a chunk; no
// allocation.

#ifndef REPRISE_ATTENTION_METADATA_LOCAL_BLOCK_TABLE_H_
#define REPRISE_ATTENTION_METADATA_LOCAL_BLOCK_TABLE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/metadata/batch_tables.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/tables/block_table_view.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Columns of the local table. REQUIRES: block_size >= 1.
constexpr int LocalTableWidth(int chunk_size, int block_size) { return chunk_size / block_size; }

// Pointers are all on the host or all on the device.
struct LocalBlockTableArgs {
  PagedBatch local = {};  // of LocalVirtualBatch() or BuildLocalVirtualBatch()
  int chunk_size = 0;     // a multiple of table.block_size, the batch's block size
  // The caller's memory: max_blocks is LocalTableWidth(), num_tables at least local.num_rows.
  MutableBlockTableView table = {};
  int32_t* seq_lens = nullptr;    // [local.num_rows]
  int32_t* row_faults = nullptr;  // [local.num_rows] RowFault; or absent
  int32_t* num_faults = nullptr;  // [1] rows with a fault; or absent
};

// Checks the arguments for both forms; reads no array. Errors: InvalidArgument for a chunk_size
// that is not a multiple of block_size, a batch without table_row and key_start, or a table or
// array that is absent or too small.
absl::Status CheckLocalBlockTable(const LocalBlockTableArgs& args);

// The batch over the table. REQUIRES: CheckLocalBlockTable(args).ok().
PagedBatch LocalBlockTableBatch(const LocalBlockTableArgs& args);

// Fills host arrays. REQUIRES: CheckLocalBlockTable(args).ok().
void LocalBlockTableOnHost(const LocalBlockTableArgs& args);

// Fills host arrays and returns the batch over the table. Errors: those of CheckLocalBlockTable();
// InvalidArgument, naming the first row with a fault and its values, before anything is written.
absl::StatusOr<PagedBatch> BuildLocalBlockTable(const LocalBlockTableArgs& args);

// Fills device arrays. No synchronisation; may be captured, because the grid depends only on
// local.num_rows. One kernel, preceded by a memset if num_faults is given.
// Errors: those of CheckLocalBlockTable(); Internal if a launch fails.
absl::Status LaunchLocalBlockTable(const LocalBlockTableArgs& args, CUstream_st* stream);

// The fault of virtual row v, for both forms.
constexpr RowFault LocalTableFault(const LocalBlockTableArgs& args, int v) {
  const int32_t seq_len = args.local.seq_lens[v];
  const int32_t key_start = args.local.key_start[v];
  if (seq_len == 0) return RowFault::kNone;
  const BlockTableView table = TableOf(args.local, args.table.block_size);
  if (!HasTableRow(table, args.local.table_row[v])) return RowFault::kTableRow;
  if (seq_len < 0 || key_start < 0 ||
      static_cast<int64_t>(key_start) + seq_len > TableCapacity(table)) {
    return RowFault::kLength;
  }
  return key_start % table.block_size == 0 ? RowFault::kNone : RowFault::kNoRun;
}

// The entry of column `column` of a row that has keys and no fault.
constexpr int32_t LocalTableEntry(const LocalBlockTableArgs& args, int v, int32_t column) {
  const PagedBatch& local = args.local;
  const int64_t wanted = static_cast<int64_t>(local.key_start[v] / args.table.block_size) + column;
  const int64_t clipped = wanted < local.max_blocks ? wanted : local.max_blocks - 1;
  return local.block_table[local.table_row[v] * local.block_table_stride + clipped];
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_LOCAL_BLOCK_TABLE_H_
