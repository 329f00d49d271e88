// The classic form of chunked-local attention: each virtual row with a block table of its own, for
// kernels that read neither table_row nor key_start.
//
//   // The worked example of attention/local_virtual_batch.h at block_size 2, over the tables
//   // {0 .. 9}, {10 .. 19}, {20 .. 29}:
//   //   {0 1} {2 3} {12 13} {14 15} {16 17} {18 19} {22 23} {24 25}, and null blocks
//   absl::StatusOr<PagedBatch> classic =
//       BuildLocalBlockTable(*local, /*chunk_size=*/4, /*block_size=*/2, buffers);
//
// A row holds the blocks of its whole chunk, whatever stands in them; columns past the table's
// width repeat the last column (as vLLM and SGLang clip them), and are beyond the row's seq_len.
// Positions count from the chunk's start, for queries and keys alike, so windows, ALiBi and
// in-kernel rotary see the same distances.
//
// On a GPU: attention/local_block_table_kernel.h. Thread safety: pure functions. Cost: linear in
// virtual rows times blocks of a chunk; no allocation.

#ifndef ATTENTION_LOCAL_BLOCK_TABLE_H_
#define ATTENTION_LOCAL_BLOCK_TABLE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "attention/paged_batch.h"

namespace reprise {

// Columns of the local table. REQUIRES: block_size >= 1.
constexpr int LocalTableWidth(int chunk_size, int block_size) { return chunk_size / block_size; }

// The caller's memory, on the device of the batch.
struct LocalTableBuffers {
  int32_t* entries = nullptr;   // [max_rows, LocalTableWidth]
  int32_t* seq_lens = nullptr;  // [max_rows]
  int max_rows = 0;
};

// The batch that will stand in the buffers; reads no array. `local` is that of
// LocalVirtualBatchOver() or BuildLocalVirtualBatch(). Errors: InvalidArgument for a chunk_size
// that is no multiple of block_size, a batch without table_row and key_start, or buffers that are
// absent or too small.
absl::StatusOr<PagedBatch> LocalBlockTableOver(const PagedBatch& local, int chunk_size,
                                               int block_size, const LocalTableBuffers& buffers);

// Fills host buffers. Errors: those above; InvalidArgument, naming the row, for a table_row outside
// the table, keys beyond the table's width, or a key_start within a block.
absl::StatusOr<PagedBatch> BuildLocalBlockTable(const PagedBatch& local, int chunk_size,
                                                int block_size, const LocalTableBuffers& buffers);

// Whether a virtual row's table can be made: the arithmetic of both forms.
constexpr bool HasLocalTable(const PagedBatch& local, int32_t table_row, int32_t key_start,
                             int32_t seq_len, int32_t block_size) {
  return table_row >= 0 && table_row < local.num_tables && key_start >= 0 &&
         key_start % block_size == 0 &&
         static_cast<int64_t>(key_start) + seq_len <=
             static_cast<int64_t>(local.max_blocks) * block_size;
}

// The entry of column `column` of a row that has a table and keys.
constexpr int32_t LocalTableEntry(const PagedBatch& local, int32_t table_row, int32_t key_start,
                                  int32_t block_size, int32_t column) {
  const int64_t wanted = static_cast<int64_t>(key_start / block_size) + column;
  const int64_t clipped = wanted < local.max_blocks ? wanted : local.max_blocks - 1;
  return local.block_table[table_row * local.block_table_stride + clipped];
}

}  // namespace reprise

#endif  // ATTENTION_LOCAL_BLOCK_TABLE_H_
