// The plain builder: a thread a row, then a thread a token.
//
// Every CTA reads and sums all rows for itself, which costs less than a second launch; the first
// one writes what is one a row, all together write the tokens.
//
// In rounds of the CTA's threads: read and check a row (rows over many blocks are checked by a warp
// each), sum the query lengths over the CTA, write the rows. Where every row has at most one token,
// its thread writes that too; else each token finds its row by bisection of the sums.
//
// Bound: latency. A decode step is two dependent loads (length and table row, then the block), one
// scan and the stores.

#include "attention/batch_gather_kernel.h"
#include "attention/batch_gather_rows.h"
#include "attention/cta_scan.cuh"

namespace reprise {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxCtas = 132;

// A row that writes to more blocks than this is checked by a warp.
constexpr int kMaxBlocksOfThread = 4;

struct SharedRows {
  CtaScanMemory<int64_t> scan;
  int num_bad;
  int num_wide;
  int32_t wide[kMaxThreads];         // rows of the round that warps have to check
  int32_t first_token[kMaxThreads];  // of the round's tokens
  GatherRow rows[kMaxThreads];
};

__device__ void CheckWideRows(const BatchGather& gather, SharedRows& shared) {
  const int lane = threadIdx.x % 32;
  for (int w = threadIdx.x / 32; w < shared.num_wide; w += blockDim.x / 32) {
    GatherRow& row = shared.rows[shared.wide[w]];
    const int32_t last = LastNewColumn(gather, row);
    bool good = true;
    for (int32_t column = FirstNewColumn(gather, row) + lane; column <= last; column += 32) {
      good &= IsBlockOfCache(gather, BlockAt(gather, row.table_row, column));
    }
    good = __all_sync(~0u, good);
    if (lane == 0 && !good) row.kind = GatherRowKind::kBad;
  }
}

// Reads and checks row r, into shared memory as this thread's, unless it is wide.
__device__ void ReadRow(const BatchGather& gather, int r, int num_live_rows, SharedRows& shared) {
  GatherRow row;
  if (r < num_live_rows) row = ReadGatherRow(gather, r);
  if (row.kind == GatherRowKind::kLive) {
    const int32_t first = FirstNewColumn(gather, row);
    const int32_t last = LastNewColumn(gather, row);
    if (last - first >= kMaxBlocksOfThread) {
      shared.wide[atomicAdd(&shared.num_wide, 1)] = threadIdx.x;
    } else {
      for (int32_t column = first; column <= last; ++column) {
        if (!IsBlockOfCache(gather, BlockAt(gather, row.table_row, column))) {
          row.kind = GatherRowKind::kBad;
        }
      }
    }
  }
  shared.rows[threadIdx.x] = row;
}

__device__ void WriteToken(const BatchGather& gather, const GatherRow& row, int32_t i,
                           int32_t token) {
  gather.out.positions[token] = row.num_computed + i;
  gather.out.slot_mapping[token] = SlotOfNewToken(gather, row, i);
}

__global__ void __launch_bounds__(kMaxThreads) BatchGatherKernel(const BatchGather gather) {
  __shared__ SharedRows shared;
  const int num_live_rows = NumLiveRows(gather);
  const int first_thread = blockIdx.x * blockDim.x + threadIdx.x;
  const int num_threads = gridDim.x * blockDim.x;
  if (threadIdx.x == 0) shared.num_bad = 0;
  int32_t num_tokens = 0;
  bool is_full = false;
  for (int round = 0; round < gather.num_rows; round += blockDim.x) {
    const int r = round + threadIdx.x;
    if (threadIdx.x == 0) shared.num_wide = 0;
    __syncthreads();
    ReadRow(gather, r, num_live_rows, shared);
    __syncthreads();
    CheckWideRows(gather, shared);
    if (shared.num_wide > 0) __syncthreads();

    const GatherRow row = shared.rows[threadIdx.x];
    bool live = row.kind == GatherRowKind::kLive && !is_full;
    const CtaSum<int64_t> sum = ExclusiveSum<int64_t>(live ? row.query_len : 0, shared.scan);
    const bool fits = num_tokens + sum.before + row.query_len <= gather.num_tokens;
    const bool round_is_full = __syncthreads_or(live && !fits);
    live = live && fits;
    if (blockIdx.x == 0 && r < gather.num_rows) {
      gather.out.seq_lens[r] = live ? row.num_computed + row.query_len : 0;
      gather.out.table_row[r] = live ? row.table_row : 0;
      if (gather.key_start) gather.out.key_start[r] = live ? row.key_start : 0;
      if (row.kind != GatherRowKind::kEmpty && !live) atomicAdd(&shared.num_bad, 1);
    }
    // Where not all rows fit, the sums count some that are not served: once more with those left
    // out.
    const CtaSum<int64_t> served =
        round_is_full ? ExclusiveSum<int64_t>(live ? row.query_len : 0, shared.scan) : sum;
    const auto first_token = static_cast<int32_t>(served.before);
    const auto round_tokens = static_cast<int32_t>(served.total);
    is_full |= round_is_full;
    if (blockIdx.x == 0 && r < gather.num_rows) {
      gather.out.query_start_loc[r] = num_tokens + first_token;
    }
    shared.first_token[threadIdx.x] = first_token;
    if (__syncthreads_or(live && row.query_len > 1)) {
      for (int t = first_thread; t < round_tokens; t += num_threads) {
        const int owner = LastNotAfter<int32_t>(shared.first_token, blockDim.x, t);
        WriteToken(gather, shared.rows[owner], t - shared.first_token[owner], num_tokens + t);
      }
    } else if (live && blockIdx.x == 0) {
      WriteToken(gather, row, 0, num_tokens + first_token);
    }
    num_tokens += round_tokens;
    __syncthreads();
  }
  for (int t = num_tokens + first_thread; t < gather.num_tokens; t += num_threads) {
    gather.out.positions[t] = 0;
    gather.out.slot_mapping[t] = -1;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    gather.out.query_start_loc[gather.num_rows] = num_tokens;
    *gather.out.num_bad_rows = gather.num_rows == 0 ? 0 : shared.num_bad;
  }
}

}  // namespace

cudaError_t LaunchBatchGather(const BatchGather& gather, cudaStream_t stream) {
  const BatchGatherBuffers& out = gather.out;
  const bool has_inputs = gather.table_row && gather.query_lens && gather.seq_lens &&
                          (gather.table.entries || gather.table.num_tables <= 0);
  const bool has_outputs = out.query_start_loc && out.seq_lens && out.table_row && out.positions &&
                           out.slot_mapping && out.num_bad_rows &&
                           (out.key_start || !gather.key_start);
  if (!has_outputs || (gather.num_rows > 0 && !has_inputs) || gather.num_rows < 0 ||
      gather.num_tokens < 0 || gather.table.block_size < 1) {
    return cudaErrorInvalidValue;
  }
  // A thread a row, and a thread a token while there are SMs.
  const int wanted = (gather.num_rows + 31) / 32 * 32;
  const int threads = wanted < 128 ? 128 : (wanted < kMaxThreads ? wanted : kMaxThreads);
  const int for_tokens = (gather.num_tokens + threads - 1) / threads;
  const int ctas = for_tokens < 1 ? 1 : (for_tokens < kMaxCtas ? for_tokens : kMaxCtas);
  BatchGatherKernel<<<ctas, threads, 0, stream>>>(gather);
  return cudaGetLastError();
}

}  // namespace reprise
