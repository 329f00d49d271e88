// The common prefix: a warp a row, lanes over its columns, against the first live row.
//
// Every CTA goes over the lengths of all rows by itself, to know the first live row and how far a
// prefix may reach; then each warp finds the first column of its row that differs, and the least of
// them all wins by an atomic minimum in the result, which a memset before has made the largest.
//
// Bound: latency, then rows times columns of the table, read once: 256 rows of 256 columns are
// 256 KB, over 32 CTAs.

#include <climits>

#include "attention/common_prefix_kernel.h"
#include "attention/row_packing.cuh"

namespace reprise {
namespace {

struct Limits {
  int first_row = INT_MAX;  // live
  int64_t num_keys = INT64_MAX;
};

__device__ Limits Least(Limits a, const Limits& b) {
  a.first_row = min(a.first_row, b.first_row);
  a.num_keys = min(a.num_keys, b.num_keys);
  return a;
}

// Over all rows, by all threads.
__device__ Limits FindLimits(const CommonPrefixArgs& args) {
  __shared__ Limits of_warp[kPackingWarps];
  Limits limits;
  for (int r = threadIdx.x; r < args.batch.num_rows; r += kPackingThreads) {
    const PrefixRow row = PrefixRowOf(args, r);
    if (row.num_keys >= 0) limits = Least(limits, {r, row.num_keys});
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    limits = Least(limits, {__shfl_xor_sync(~0u, limits.first_row, distance),
                            __shfl_xor_sync(~0u, limits.num_keys, distance)});
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = limits;
  __syncthreads();
  for (int w = 0; w < kPackingWarps; ++w) limits = Least(limits, of_warp[w]);
  return limits;
}

__global__ void __launch_bounds__(kPackingThreads) CommonPrefixKernel(const CommonPrefixArgs args) {
  const Limits limits = FindLimits(args);
  if (limits.first_row == INT_MAX || limits.num_keys == 0) {
    if (blockIdx.x == 0 && threadIdx.x == 0) atomicMin(args.common_prefix_len, 0);
    return;
  }
  const int r = RowOfWarp();
  if (r >= args.batch.num_rows) return;
  const PrefixRow row = PrefixRowOf(args, r);
  if (row.num_keys < 0) return;
  const PrefixRow first = PrefixRowOf(args, limits.first_row);
  int len = 0;
  if (row.key_start == first.key_start) {
    const PrefixColumns columns = PrefixColumnsOf(args, limits.num_keys, row.key_start);
    const int32_t* of_first =
        args.batch.block_table + first.table_row * args.batch.block_table_stride;
    const int32_t* of_row = args.batch.block_table + row.table_row * args.batch.block_table_stride;
    int end = columns.end;
    if (of_row != of_first) {
      for (int base = columns.first; base < columns.end; base += 32) {
        const int column = base + static_cast<int>(threadIdx.x % 32);
        const bool differs = column < columns.end && of_row[column] != of_first[column];
        const unsigned who = __ballot_sync(~0u, differs);
        if (who != 0) {
          end = base + __ffs(static_cast<int>(who)) - 1;
          break;
        }
      }
    }
    len = PrefixLen(args, end, row.key_start);
  }
  if (threadIdx.x % 32 == 0) atomicMin(args.common_prefix_len, len);
}

}  // namespace

cudaError_t LaunchCommonPrefix(const CommonPrefixArgs& args, cudaStream_t stream) {
  if (args.block_size < 1 || args.batch.num_rows < 0 || args.common_prefix_len == nullptr) {
    return cudaErrorInvalidValue;
  }
  // Bytes of 0x7f make a number that is larger than any length.
  const cudaError_t error = cudaMemsetAsync(args.common_prefix_len, 0x7f, sizeof(int32_t), stream);
  if (error != cudaSuccess) return error;
  CommonPrefixKernel<<<PackingCtas(args.batch.num_rows), kPackingThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace reprise
