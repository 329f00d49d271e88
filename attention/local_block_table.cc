#include "attention/local_block_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {

absl::StatusOr<PagedBatch> LocalBlockTableOver(const PagedBatch& local, int chunk_size,
                                               int block_size, const LocalTableBuffers& buffers) {
  if (block_size < 1 || chunk_size < 1 || chunk_size % block_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_size: expected a multiple of block_size (", block_size, "), got ", chunk_size));
  }
  if (local.num_rows > 0 && (!local.table_row || !local.key_start)) {
    return absl::InvalidArgumentError(
        "local: expected a batch with table_row and key_start, got one without");
  }
  if (buffers.max_rows < local.num_rows) {
    return absl::InvalidArgumentError(absl::StrCat("buffers.max_rows: expected at least ",
                                                   local.num_rows, ", got ", buffers.max_rows));
  }
  if (local.num_rows > 0 && (!buffers.entries || !buffers.seq_lens)) {
    return absl::InvalidArgumentError("buffers: expected entries and seq_lens, got an absent one");
  }
  PagedBatch classic = local;
  classic.seq_lens = buffers.seq_lens;
  classic.table_row = nullptr;
  classic.key_start = nullptr;
  classic.query_positions = nullptr;
  classic.block_table = buffers.entries;
  classic.max_blocks = LocalTableWidth(chunk_size, block_size);
  classic.block_table_stride = classic.max_blocks;
  classic.num_tables = local.num_rows;
  return classic;
}

absl::StatusOr<PagedBatch> BuildLocalBlockTable(const PagedBatch& local, int chunk_size,
                                                int block_size, const LocalTableBuffers& buffers) {
  REPRISE_ASSIGN_OR_RETURN(const PagedBatch classic,
                           LocalBlockTableOver(local, chunk_size, block_size, buffers));
  for (int v = 0; v < local.num_rows; ++v) {
    const int32_t seq_len = local.seq_lens[v];
    const int32_t table_row = local.table_row[v];
    const int32_t key_start = local.key_start[v];
    if (seq_len > 0 && !HasLocalTable(local, table_row, key_start, seq_len, block_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("virtual row ", v, ": expected a table_row of 0 to ", local.num_tables - 1,
                       ", a key_start that is a multiple of ", block_size, " and keys up to ",
                       int64_t{local.max_blocks} * block_size, ", got table_row ", table_row,
                       ", key_start ", key_start, ", seq_len ", seq_len));
    }
    buffers.seq_lens[v] = seq_len;
    int32_t* entries = buffers.entries + v * classic.block_table_stride;
    for (int column = 0; column < classic.max_blocks; ++column) {
      entries[column] =
          seq_len > 0 ? LocalTableEntry(local, table_row, key_start, block_size, column) : 0;
    }
  }
  return classic;
}

}  // namespace reprise
