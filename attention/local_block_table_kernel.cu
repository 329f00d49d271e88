// Tables of virtual rows: a CTA a row, a thread a column. Bound: the bytes of the entries, 8 a
// column.

#include "attention/local_block_table_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    LocalBlockTableKernel(const PagedBatch local, const int block_size, const int width,
                          const LocalTableBuffers out) {
  const int v = blockIdx.x;
  const int32_t seq_len = local.seq_lens[v];
  const int32_t table_row = local.table_row[v];
  const int32_t key_start = local.key_start[v];
  const bool has_keys =
      seq_len > 0 && HasLocalTable(local, table_row, key_start, seq_len, block_size);
  if (threadIdx.x == 0) out.seq_lens[v] = has_keys ? seq_len : 0;
  int32_t* entries = out.entries + static_cast<int64_t>(v) * width;
#pragma unroll 4
  for (int column = threadIdx.x; column < width; column += kThreads) {
    entries[column] =
        has_keys ? LocalTableEntry(local, table_row, key_start, block_size, column) : 0;
  }
}

}  // namespace

cudaError_t LaunchLocalBlockTable(const PagedBatch& local, int chunk_size, int block_size,
                                  const LocalTableBuffers& buffers, cudaStream_t stream) {
  if (block_size < 1 || chunk_size < 1 || chunk_size % block_size != 0 ||
      buffers.max_rows < local.num_rows || local.num_rows < 0) {
    return cudaErrorInvalidValue;
  }
  if (local.num_rows == 0) return cudaSuccess;
  if (!local.table_row || !local.key_start || !local.seq_lens || !buffers.entries ||
      !buffers.seq_lens) {
    return cudaErrorInvalidValue;
  }
  LocalBlockTableKernel<<<local.num_rows, kThreads, 0, stream>>>(
      local, block_size, LocalTableWidth(chunk_size, block_size), buffers);
  return cudaGetLastError();
}

}  // namespace reprise
