// One CTA makes all virtual rows, with one thread per row and then one thread per virtual row.
//
// The threads work in rounds. In a round each thread cuts one row, the CTA computes prefix sums of
// the numbers of virtual rows, and both are stored in shared memory. Then each thread finds the row
// of its virtual row by bisection of the prefix sums, so that all threads share the work of a long
// prefill. At the end the unused virtual rows are padded.
//
// Bound: latency. A round loads the row's lengths, scans the numbers of virtual rows (two
// barriers), and writes each virtual row after up to ten steps of bisection in shared memory.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/base/cta_scan.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;

struct SharedRows {
  CtaScanMemory<int32_t> scan;
  int32_t first_local[kMaxThreads];  // index in the round of each row's first virtual row
  CutRow rows[kMaxThreads];
};

__global__ void __launch_bounds__(kMaxThreads)
    LocalVirtualBatchKernel(const __grid_constant__ LocalVirtualBatchArgs args,
                            const int num_local_rows) {
  __shared__ SharedRows shared;
  const int num_rows = args.batch.num_rows;
  int32_t num_done = 0;
  int32_t num_faults = 0;
  for (int round = 0; round < num_rows; round += blockDim.x) {
    const int r = round + threadIdx.x;
    CutRow row;
    if (r < num_rows) row = CutRowOf(args, r);
    const CtaSum<int32_t> sum = ExclusiveSum(row.cut.num_rows, shared.scan);
    KeepToRoom(row, num_local_rows - num_done - sum.before);
    if (args.row_faults && r < num_rows) args.row_faults[r] = static_cast<int32_t>(row.fault);
    shared.first_local[threadIdx.x] = sum.before;
    shared.rows[threadIdx.x] = row;
    num_faults += __syncthreads_count(row.fault != RowFault::kNone);
    const int32_t left = min(sum.total, num_local_rows - num_done);
    for (int v = threadIdx.x; v < left; v += blockDim.x) {
      const int owner = LastNotAfter<int32_t>(shared.first_local, blockDim.x, v);
      const CutRow& source = shared.rows[owner];
      WriteLocalRow(args.buffers, num_done + v, source,
                    LocalRowOf(source.cut, v - shared.first_local[owner], args.chunk_size));
    }
    num_done += max(left, 0);
    __syncthreads();
  }
  for (int v = num_done + threadIdx.x; v < num_local_rows; v += blockDim.x) {
    WriteUnusedLocalRow(args, v);
  }
  if (threadIdx.x != 0) return;
  args.buffers.query_start_loc[num_local_rows] = args.batch.query_start_loc[num_rows];
  if (args.num_faults) *args.num_faults = num_faults;
}

}  // namespace

absl::Status LaunchLocalVirtualBatch(const LocalVirtualBatchArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckLocalVirtualBatch(args));
  const int num_local_rows = MaxLocalRows(args);
  const int wanted = args.batch.num_rows > num_local_rows ? args.batch.num_rows : num_local_rows;
  const int threads = wanted >= kMaxThreads ? kMaxThreads : (wanted + 31) / 32 * 32;
  LocalVirtualBatchKernel<<<1, threads == 0 ? 32 : threads, 0, stream>>>(args, num_local_rows);
  return CudaStatus(cudaGetLastError(), "LaunchLocalVirtualBatch");
}

}  // namespace reprise
