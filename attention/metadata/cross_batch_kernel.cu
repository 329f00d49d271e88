// Encoder lengths of a batch's rows: one thread per row. Bound: latency, three dependent loads.

#include "attention/metadata/cross_batch_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) CrossBatchKernel(const CrossBatch cross) {
  const int r = blockIdx.x * kThreads + threadIdx.x;
  if (r >= cross.rows.num_rows) return;
  const int32_t seq_len = CrossSeqLen(cross, r);
  cross.seq_lens[r] = seq_len < 0 ? 0 : seq_len;
}

}  // namespace

cudaError_t LaunchCrossBatch(const CrossBatch& cross, cudaStream_t stream) {
  const int64_t width = static_cast<int64_t>(cross.table.max_blocks) * cross.table.block_size;
  if (cross.table.block_size < 1 || cross.max_encoder_len < 0 || cross.max_encoder_len > width ||
      cross.rows.num_rows < 0) {
    return cudaErrorInvalidValue;
  }
  if (cross.rows.num_rows == 0) return cudaSuccess;
  const bool has_lens = cross.encoder_lens || cross.table.num_tables <= 0;
  if (!has_lens || !cross.seq_lens || !cross.rows.seq_lens) return cudaErrorInvalidValue;
  CrossBatchKernel<<<(cross.rows.num_rows + kThreads - 1) / kThreads, kThreads, 0, stream>>>(cross);
  return cudaGetLastError();
}

}  // namespace reprise
