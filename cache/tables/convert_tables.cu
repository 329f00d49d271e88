// Block table conversions. In rounds of kThreads rows, each CTA computes the output position of
// every row, then converts some of the rows.
//
// A row's position in the packed outputs is the sum over the previous rows. Every CTA computes it,
// with one thread per row, which is cheaper than a second launch or a grid-wide barrier. Then a CTA
// converts one row at a time, with one thread per column.
//
// Bound: latency for the row counts of decode batches (two loads, a scan, a load and a store); for
// long rows, the bytes of the entries, spread over up to 132 CTAs.

#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/base/cta_scan.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/host_device.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;  // also the number of rows per round
constexpr int kMaxCtas = 132;  // one CTA per SM of an H200

// The threads of a CTA as lanes (base/lanes.h), with the functions that ConvertRow() uses. All
// threads must call each function together.
class CtaLanes {
 public:
  template <typename Body>
  REPRISE_HOST_DEVICE void ForEach(int n, Body body) const {
#if defined(__CUDA_ARCH__)
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += kThreads) body(i);
#endif
  }

  template <typename Predicate>
  REPRISE_HOST_DEVICE bool Any(int n, Predicate predicate) const {
    bool any = false;
#if defined(__CUDA_ARCH__)
    for (int i = threadIdx.x; i < n; i += kThreads) any = any || predicate(i);
    any = __syncthreads_or(any);
#endif
    return any;
  }
};

struct SharedRows {
  CtaScanMemory<int64_t> scan;
  SourceRow rows[kThreads];
  RowPlace places[kThreads];
};

struct Scan {
  RowPlace before;
  RowPlace total;
};

__device__ Scan ScanRows(const ConvertTablesArgs& args, const SourceRow& row,
                         CtaScanMemory<int64_t>& memory) {
  Scan scan = {};
  if (args.out.packed.block_indptr) {
    const CtaSum<int64_t> blocks =
        ExclusiveSum<int64_t>(NumBlocksFor(row.num_keys, SourceBlockSize(args)), memory);
    scan.before.num_blocks = blocks.before;
    scan.total.num_blocks = blocks.total;
  }
  if (args.out.key_start_loc) {
    const CtaSum<int64_t> keys = ExclusiveSum<int64_t>(row.num_keys, memory);
    scan.before.num_keys = keys.before;
    scan.total.num_keys = keys.total;
  }
  return scan;
}

__device__ RowPlace operator+(const RowPlace& a, const RowPlace& b) {
  return {a.num_blocks + b.num_blocks, a.num_keys + b.num_keys};
}

__global__ void __launch_bounds__(kThreads)
    ConvertTablesKernel(const __grid_constant__ ConvertTablesArgs args) {
  __shared__ SharedRows shared;
  const CtaLanes lanes;
  RowPlace next = {};
  bool is_full = false;
  int32_t num_faults = 0;
  for (int round = 0; round < args.num_rows; round += kThreads) {
    const int r = round + static_cast<int>(threadIdx.x);
    SourceRow row = r < args.num_rows ? ReadRow(args, r) : EmptyRow(RowFault::kNone);
    if (is_full && row.num_keys > 0) row = EmptyRow(RowFault::kNoRoom);
    Scan scan = ScanRows(args, row, shared.scan);
    const bool fits = FitsAt(args, next + scan.before, row);
    if (__syncthreads_or(!fits)) {
      // The sums must exclude the first row that does not fit and all rows after it.
      is_full = true;
      if (!fits && row.num_keys > 0) row = EmptyRow(RowFault::kNoRoom);
      scan = ScanRows(args, row, shared.scan);
    }
    shared.rows[threadIdx.x] = row;
    shared.places[threadIdx.x] = next + scan.before;
    num_faults += __syncthreads_count(row.fault != RowFault::kNone);
    const int in_round = min(kThreads, args.num_rows - round);
    for (int i = blockIdx.x; i < in_round; i += gridDim.x) {
      const RowFault known = shared.rows[i].fault;
      const RowFault fault = ConvertRow(lanes, args, round + i, shared.rows[i], shared.places[i]);
      if (threadIdx.x == 0 && fault != known && args.out.num_faults) {
        atomicAdd(args.out.num_faults, 1);
      }
    }
    next = next + scan.total;
    __syncthreads();
  }
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  FinishTables(args, next);
  if (!args.out.num_faults) return;
  if (ChangesBlockSize(args)) {
    atomicAdd(args.out.num_faults, num_faults);
  } else {
    *args.out.num_faults = num_faults;
  }
}

}  // namespace

absl::Status LaunchConvertTables(const ConvertTablesArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckConvertTables(args));
  if (args.out.num_faults && ChangesBlockSize(args)) {
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(args.out.num_faults, 0, sizeof(int32_t), stream),
                   "clearing num_faults of converted tables"));
  }
  const int num_ctas = args.num_rows < 1 ? 1 : args.num_rows < kMaxCtas ? args.num_rows : kMaxCtas;
  ConvertTablesKernel<<<num_ctas, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "converting block tables");
}

}  // namespace reprise
