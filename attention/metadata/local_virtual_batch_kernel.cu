// Virtual rows by one CTA: one thread per row, then one thread per virtual row.
//
// The CTA's threads work in rounds: cut a row, sum the numbers of virtual rows over the CTA, keep
// cut and sum in shared memory; then each virtual row finds its row by bisection of the sums, so
// that one long prefill is spread over all threads. Rows beyond the last virtual row are padded.
//
// Bound: latency. A round is one load, one scan (two barriers), ten steps of bisection in shared
// memory and one store.

#include "attention/metadata/local_virtual_batch_kernel.h"
#include "attention/metadata/local_virtual_rows.h"
#include "base/cta_scan.cuh"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;

struct SharedRows {
  CtaScanMemory<int32_t> scan;
  int32_t first_local[kMaxThreads];  // of the round's virtual rows
  int32_t first_token[kMaxThreads];
  int32_t table_row[kMaxThreads];
  LocalCut cuts[kMaxThreads];
};

// Cuts row r into shared memory, as this thread's. Returns how many virtual rows it has.
__device__ int32_t Cut(const PagedBatch& batch, int r, int32_t chunk_size, SharedRows& shared) {
  const int32_t first_token = batch.query_start_loc[r];
  CutRow row;
  row.query_len = batch.query_start_loc[r + 1] - first_token;
  row.seq_len = batch.seq_lens[r];
  row.key_start = batch.key_start ? batch.key_start[r] : 0;
  const LocalCut cut = CutAtChunks(row, chunk_size);
  shared.cuts[threadIdx.x] = cut;
  shared.first_token[threadIdx.x] = first_token;
  shared.table_row[threadIdx.x] = !cut.has_keys ? 0 : (batch.table_row ? batch.table_row[r] : r);
  return cut.num_rows;
}

__global__ void __launch_bounds__(kMaxThreads)
    LocalVirtualBatchKernel(const PagedBatch batch, const int chunk_size,
                            const LocalBatchBuffers out, const int num_local_rows) {
  __shared__ SharedRows shared;
  int32_t num_done = 0;
  for (int round = 0; round < batch.num_rows; round += blockDim.x) {
    const int r = round + threadIdx.x;
    const int32_t count = r < batch.num_rows ? Cut(batch, r, chunk_size, shared) : 0;
    const CtaSum<int32_t> sum = ExclusiveSum(count, shared.scan);
    shared.first_local[threadIdx.x] = sum.before;
    __syncthreads();
    const int32_t left = min(sum.total, num_local_rows - num_done);
    for (int v = threadIdx.x; v < left; v += blockDim.x) {
      const int row = LastNotAfter<int32_t>(shared.first_local, blockDim.x, v);
      const LocalRow local = LocalRowOf(shared.cuts[row], v - shared.first_local[row], chunk_size);
      out.query_start_loc[num_done + v] = shared.first_token[row] + local.first_token;
      out.seq_lens[num_done + v] = local.seq_len;
      out.key_start[num_done + v] = local.key_start;
      out.table_row[num_done + v] = shared.table_row[row];
    }
    num_done += max(left, 0);
    __syncthreads();
  }
  const int32_t num_live_tokens = batch.query_start_loc[batch.num_rows];
  for (int v = num_done + threadIdx.x; v < num_local_rows; v += blockDim.x) {
    out.query_start_loc[v] = num_live_tokens;
    out.seq_lens[v] = 0;
    out.key_start[v] = 0;
    out.table_row[v] = 0;
  }
  if (threadIdx.x == 0) out.query_start_loc[num_local_rows] = num_live_tokens;
}

}  // namespace

cudaError_t LaunchLocalVirtualBatch(const PagedBatch& batch, int chunk_size,
                                    const LocalBatchBuffers& buffers, cudaStream_t stream) {
  if (chunk_size < 1 || batch.num_rows < 0 || batch.num_tokens < 0 || !batch.causal ||
      batch.tail_len || batch.key_positions.world != 1) {
    return cudaErrorInvalidValue;
  }
  const int num_rows = MaxLocalRows(batch.num_rows, batch.num_tokens, chunk_size);
  const bool has_rows = buffers.seq_lens && buffers.table_row && buffers.key_start;
  if (buffers.max_rows < num_rows || !buffers.query_start_loc || (num_rows > 0 && !has_rows)) {
    return cudaErrorInvalidValue;
  }
  const int wanted = batch.num_rows > num_rows ? batch.num_rows : num_rows;
  const int threads = wanted >= kMaxThreads ? kMaxThreads : (wanted + 31) / 32 * 32;
  LocalVirtualBatchKernel<<<1, threads == 0 ? 32 : threads, 0, stream>>>(batch, chunk_size, buffers,
                                                                         num_rows);
  return cudaGetLastError();
}

}  // namespace reprise
