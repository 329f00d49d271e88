// Blocks of token slots: a warp a row, a lane a block. Bound: latency; every block_size-th slot is
// read, a sector each.

#include "attention/token_table_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

__global__ void __launch_bounds__(kThreads) TokenTableKernel(const TokenTableGather gather) {
  const int r = blockIdx.x * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (r >= gather.num_rows) return;
  const int32_t table_row = gather.table_row ? gather.table_row[r] : r;
  const int32_t length = gather.lens[r];
  bool good = table_row >= 0 && table_row < gather.table.num_tables && length >= 0 &&
              length <= gather.table.max_tokens &&
              length <= static_cast<int64_t>(gather.max_blocks) * gather.block_size;
  const int32_t num_blocks =
      good ? length / gather.block_size + (length % gather.block_size != 0 ? 1 : 0) : 0;
  const int32_t* slots = gather.table.slots + (good ? table_row * gather.table.row_stride : 0);
  int32_t* entries = gather.entries + r * gather.row_stride;
  for (int column = lane; column < gather.max_blocks; column += 32) {
    int32_t block = 0;
    if (column < num_blocks) {
      const int32_t slot = slots[static_cast<int64_t>(column) * gather.block_size];
      good &= slot >= 0 && slot % gather.block_size == 0;
      block = slot / gather.block_size;
    }
    entries[column] = block;
  }
  good = __all_sync(~0u, good);
  if (lane == 0) gather.seq_lens[r] = good ? length : 0;
  if (good) return;
  for (int column = lane; column < gather.max_blocks; column += 32) entries[column] = 0;
  if (lane == 0) atomicAdd(gather.num_bad_rows, 1);
}

}  // namespace

cudaError_t LaunchTokenTableGather(const TokenTableGather& gather, cudaStream_t stream) {
  if (gather.num_rows < 0 || gather.block_size < 1 || gather.max_blocks < 0 ||
      !gather.num_bad_rows) {
    return cudaErrorInvalidValue;
  }
  if (gather.num_rows > 0 &&
      (!gather.table.slots || !gather.lens || !gather.entries || !gather.seq_lens)) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = cudaMemsetAsync(gather.num_bad_rows, 0, sizeof(int32_t), stream);
  if (error != cudaSuccess || gather.num_rows == 0) return error;
  TokenTableKernel<<<(gather.num_rows + kWarps - 1) / kWarps, kThreads, 0, stream>>>(gather);
  return cudaGetLastError();
}

}  // namespace reprise
