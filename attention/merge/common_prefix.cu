// Finds the common prefix with one warp per row. The lanes divide the row's block-table columns,
// and compare them with those of the first live row.
//
// Every CTA reads the lengths of all rows, to find the first live row and the longest possible
// prefix. Then each warp finds the first column of its row that differs. The scratch holds a
// maximum of (kLongest - prefix length) over the CTAs, so that its initial value can be 0. The last
// CTA to arrive writes the result and resets the scratch to 0.
//
// Bound: latency, then rows times columns of the table, each read at most once except for the first
// live row: 256 rows of 256 columns are 256 KB, divided among 32 CTAs.

#include <cuda_runtime.h>

#include <climits>

#include "absl/status/status.h"
#include "reprise/attention/merge/common_prefix.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

struct Limits {
  int first_row = INT_MAX;  // the first live row
  int64_t num_keys = INT64_MAX;
};

__device__ Limits Least(Limits a, const Limits& b) {
  a.first_row = min(a.first_row, b.first_row);
  a.num_keys = min(a.num_keys, b.num_keys);
  return a;
}

// Reduces the limits of all rows, with all threads of the CTA.
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

// Columns per lane and round: the loads of a round are in flight together.
constexpr int kColumnsOfLane = 8;

// The first column in [begin, end) at which the two rows differ, or `end`. Called by a whole warp.
__device__ int FirstDifference(const int32_t* a, const int32_t* b, int begin, int end) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (a == b) return end;
  for (int base = begin; base < end; base += 32 * kColumnsOfLane) {
    int first = end;
#pragma unroll
    for (int i = kColumnsOfLane - 1; i >= 0; --i) {
      const int column = base + 32 * i + lane;
      if (column < end && a[column] != b[column]) first = column;
    }
    first = __reduce_min_sync(~0u, first);
    if (first < end) return first;
  }
  return end;
}

// Length of the prefix common to this warp's row and the first live row, up to the longest possible
// prefix of all rows; kLongest if the row is ignored.
constexpr int kLongest = INT_MAX;

__device__ int CommonWithFirst(const CommonPrefixArgs& args, const Limits& limits) {
  if (limits.first_row == INT_MAX) return kLongest;
  const int r = RowOfWarp();
  if (r >= args.batch.num_rows) return kLongest;
  const PrefixRow row = PrefixRowOf(args, r);
  if (row.num_keys < 0) return kLongest;
  if (limits.num_keys == 0) return 0;
  const PrefixRow first = PrefixRowOf(args, limits.first_row);
  if (row.key_start != first.key_start) return 0;
  const PrefixColumns columns = PrefixColumnsOf(args, limits.num_keys, row.key_start);
  const int64_t stride = args.batch.block_table_stride;
  const int end =
      FirstDifference(args.batch.block_table + first.table_row * stride,
                      args.batch.block_table + row.table_row * stride, columns.first, columns.end);
  return PrefixLen(args, end, row.key_start);
}

__global__ void __launch_bounds__(kPackingThreads) CommonPrefixKernel(const CommonPrefixArgs args) {
  __shared__ int of_warp[kPackingWarps];
  const Limits limits = FindLimits(args);
  const int len = CommonWithFirst(args, limits);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = len;
  __syncthreads();
  if (threadIdx.x > 0) return;
  int least = of_warp[0];
  for (int w = 1; w < kPackingWarps; ++w) least = min(least, of_warp[w]);
  uint32_t* missing = args.scratch;
  uint32_t* arrivals = args.scratch + 1;
  if (least < kLongest) atomicMax(missing, static_cast<uint32_t>(kLongest - least));
  __threadfence();
  if (atomicAdd(arrivals, 1) != gridDim.x - 1) return;
  __threadfence();
  const uint32_t most = atomicExch(missing, 0);
  *arrivals = 0;
  *args.common_prefix_len = most == 0 ? 0 : kLongest - static_cast<int>(most);
}

}  // namespace

absl::Status LaunchCommonPrefix(const CommonPrefixArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckCommonPrefix(args));
  if (args.common_prefix_len == nullptr || args.scratch == nullptr) {
    return absl::InvalidArgumentError("common_prefix_len, scratch: expected arrays, got none");
  }
  CommonPrefixKernel<<<PackingCtas(args.batch.num_rows), kPackingThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchCommonPrefix");
}

}  // namespace reprise
