// The plain builder: one thread per row, then one thread per token.
//
// Every CTA reads and sums all rows itself, which costs less than a second launch. The first CTA
// writes the per-row entries; all CTAs together write the tokens.
//
// The CTA's threads work in rounds: read and check a row (a warp checks each row that spans many
// blocks), sum the query lengths over the CTA, write the rows. If every row has at most one token,
// the row's thread writes the token too; otherwise each token finds its row by bisection of the
// sums.
//
// Bound: latency. A decode step is two dependent loads (length and table row, then the block), one
// scan and the stores.

#include "absl/status/status.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/row_packing.cuh"
#include "reprise/base/cta_scan.cuh"
#include "reprise/base/cuda_status.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxCtas = 132;

// A row that writes to more blocks than this is checked by a warp.
constexpr int kMaxBlocksOfThread = 4;

struct SharedRows {
  CtaScanMemory<int64_t> scan;
  int num_faults;
  int num_wide;
  int32_t wide[kMaxThreads];         // rows of the round that warps have to check
  int32_t first_token[kMaxThreads];  // of the round's tokens
  CheckedRow rows[kMaxThreads];
};

__device__ void CheckWideRows(const RowArgs& args, SharedRows& shared) {
  for (int w = threadIdx.x / 32; w < shared.num_wide; w += blockDim.x / 32) {
    CheckedRow& row = shared.rows[shared.wide[w]];
    const bool has_blocks = HasBlocks(WarpLanes(), args, row);
    if (threadIdx.x % 32 == 0 && !has_blocks) row.fault = RowFault::kNoBlock;
  }
}

// Reads and checks row r into this thread's entry of shared memory. CheckWideRows() checks the
// blocks of wide rows.
__device__ void ReadRow(const BatchGatherArgs& gather, const RowArgs& args, int r,
                        int num_live_rows, SharedRows& shared) {
  CheckedRow row;
  if (r < num_live_rows) row = GatheredRow(gather, args, r);
  if (row.is_live()) {
    if (NewColumns(args, row).size() > kMaxBlocksOfThread) {
      shared.wide[atomicAdd(&shared.num_wide, 1)] = threadIdx.x;
    } else if (!HasBlocks(SerialLanes(), args, row)) {
      row.fault = RowFault::kNoBlock;
    }
  }
  shared.rows[threadIdx.x] = row;
}

__global__ void __launch_bounds__(kMaxThreads)
    BatchGatherKernel(const __grid_constant__ BatchGatherArgs gather,
                      const __grid_constant__ RowArgs args) {
  __shared__ SharedRows shared;
  const int num_live_rows = NumLiveRows(gather);
  const int first_thread = blockIdx.x * blockDim.x + threadIdx.x;
  const int num_threads = gridDim.x * blockDim.x;
  if (threadIdx.x == 0) shared.num_faults = 0;
  int32_t num_tokens = 0;
  bool is_full = false;
  for (int round = 0; round < args.num_rows; round += blockDim.x) {
    const int r = round + threadIdx.x;
    if (threadIdx.x == 0) shared.num_wide = 0;
    __syncthreads();
    ReadRow(gather, args, r, num_live_rows, shared);
    __syncthreads();
    CheckWideRows(args, shared);
    if (shared.num_wide > 0) __syncthreads();

    CheckedRow row = shared.rows[threadIdx.x];
    const bool wants = row.is_live();
    bool live = wants && !is_full;
    const CtaSum<int64_t> sum = ExclusiveSum<int64_t>(live ? row.query_len : 0, shared.scan);
    const bool fits = num_tokens + sum.before + row.query_len <= args.num_tokens;
    const bool round_is_full = __syncthreads_or(live && !fits);
    live = live && fits;
    if (wants && !live) row.fault = RowFault::kNoRoom;
    // If not all rows fit, the sums include rows that are dropped: sum again without them.
    const CtaSum<int64_t> served =
        round_is_full ? ExclusiveSum<int64_t>(live ? row.query_len : 0, shared.scan) : sum;
    const auto first_token = static_cast<int32_t>(served.before);
    const auto round_tokens = static_cast<int32_t>(served.total);
    is_full |= round_is_full;
    if (blockIdx.x == 0 && r < args.num_rows) {
      WriteBatchRow(args, r, row, num_tokens + first_token);
      if (row.fault != RowFault::kNone) atomicAdd(&shared.num_faults, 1);
    }
    shared.first_token[threadIdx.x] = first_token;
    if (__syncthreads_or(live && row.query_len > 1)) {
      for (int t = first_thread; t < round_tokens; t += num_threads) {
        const int owner = LastNotAfter<int32_t>(shared.first_token, blockDim.x, t);
        WriteNewToken(args, shared.rows[owner], t - shared.first_token[owner], num_tokens + t, 0);
      }
    } else if (live && blockIdx.x == 0) {
      WriteNewToken(args, row, 0, num_tokens + first_token, 0);
    }
    num_tokens += round_tokens;
    __syncthreads();
  }
  for (int t = num_tokens + first_thread; t < args.num_tokens; t += num_threads) {
    WriteInertToken(args, t);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    args.arrays.query_start_loc[args.num_rows] = num_tokens;
    if (gather.num_faults) *gather.num_faults = args.num_rows == 0 ? 0 : shared.num_faults;
  }
}

}  // namespace

absl::Status LaunchBatchGather(const BatchGatherArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckBatchGather(args));
  // One thread per row, and one thread per token up to the number of SMs.
  const int wanted = (args.num_rows + 31) / 32 * 32;
  const int threads = wanted < 128 ? 128 : (wanted < kMaxThreads ? wanted : kMaxThreads);
  const int for_tokens = (args.num_tokens + threads - 1) / threads;
  const int ctas = for_tokens < 1 ? 1 : (for_tokens < kMaxCtas ? for_tokens : kMaxCtas);
  BatchGatherKernel<<<ctas, threads, 0, stream>>>(args, GatherRowArgs(args));
  return CudaStatus(cudaGetLastError(), "BatchGatherKernel");
}

}  // namespace reprise
