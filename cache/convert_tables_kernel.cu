// Converts block tables between padded, packed and token form: one CTA a row.
//
// Bound: latency; a few kilobytes move. Packing needs the number of blocks in all rows before a
// row: each CTA sums them itself, num_rows loads from the L2, in place of a scan across CTAs and
// its second launch.

#include <algorithm>
#include <cstdint>

#include "cache/convert_tables_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Blocks that a row takes: of its length as far as the table is wide.
__device__ int BlocksOfRow(const PackTableParams& params, int row) {
  const int table_row = params.table_row == nullptr ? row : params.table_row[row];
  if (table_row < 0 || table_row >= params.num_tables) return 0;
  const int64_t seq_len = max(params.seq_lens[row], 0);
  return static_cast<int>(
      min((seq_len + params.block_size - 1) / params.block_size, int64_t{params.max_blocks}));
}

__device__ int64_t SumOfCta(int64_t value) {
  __shared__ int64_t sums[kWarps];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  int64_t sum = 0;
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    PackTableKernel(const __grid_constant__ PackTableParams params) {
  const int row = blockIdx.x;
  if (row == 0 && threadIdx.x == 0) params.block_indptr[0] = 0;
  if (row >= params.num_rows) return;
  int64_t before = 0;
  for (int other = threadIdx.x; other < row; other += kThreads)
    before += BlocksOfRow(params, other);
  before = SumOfCta(before);

  const int wanted = BlocksOfRow(params, row);
  const int begin = static_cast<int>(min(before, int64_t{params.max_indices}));
  const int num_blocks = min(wanted, params.max_indices - begin);
  const int table_row = params.table_row == nullptr ? row : params.table_row[row];
  for (int i = threadIdx.x; i < num_blocks; i += kThreads) {
    params.block_indices[begin + i] = params.block_table[table_row * params.row_stride + i];
  }
  if (threadIdx.x != 0) return;
  params.block_indptr[row + 1] = begin + num_blocks;
  const int64_t in_last =
      params.seq_lens[row] - static_cast<int64_t>(num_blocks - 1) * params.block_size;
  params.last_block_len[row] =
      num_blocks == 0 ? 0 : static_cast<int>(min(in_last, int64_t{params.block_size}));
}

__global__ void __launch_bounds__(kThreads)
    UnpackTableKernel(const __grid_constant__ UnpackTableParams params) {
  const int row = blockIdx.x;
  const int begin = params.block_indptr[row], end = params.block_indptr[row + 1];
  const bool is_row = begin >= 0 && end > begin && end <= params.max_indices;
  const int listed = is_row ? end - begin : 0;
  const int num_blocks = min(listed, params.max_blocks);
  for (int column = threadIdx.x; column < params.max_blocks; column += kThreads) {
    params.block_table[row * params.row_stride + column] =
        column < num_blocks ? params.block_indices[begin + column] : 0;
  }
  if (threadIdx.x != 0) return;
  const int last = num_blocks < listed ? params.block_size
                                       : min(max(params.last_block_len[row], 1), params.block_size);
  const int64_t seq_len =
      num_blocks == 0 ? 0 : static_cast<int64_t>(num_blocks - 1) * params.block_size + last;
  params.seq_lens[row] = static_cast<int>(min(seq_len, int64_t{INT32_MAX}));
}

__global__ void __launch_bounds__(kThreads)
    TokensToBlocksKernel(const __grid_constant__ TokensToBlocksParams params) {
  const int row = blockIdx.x;
  const int request = params.requests == nullptr ? row : params.requests[row];
  const int64_t start = params.starts == nullptr ? 0 : params.starts[row];
  const bool is_row = request >= 0 && request < params.num_requests && start >= 0;
  const int64_t width = static_cast<int64_t>(params.max_blocks) * params.block_size;
  int64_t len = is_row ? max(params.lens[row], 0) : 0;
  len = max(min(min(len, width), params.max_tokens - start), int64_t{0});
  for (int column = threadIdx.x; column < params.max_blocks; column += kThreads) {
    const int64_t first = static_cast<int64_t>(column) * params.block_size;
    int block = 0;
    if (first < len) {
      block = params.slots[request * params.slots_stride + start + first] / params.block_size;
    }
    params.block_table[row * params.row_stride + column] = block;
  }
  if (threadIdx.x == 0 && params.seq_lens != nullptr) {
    params.seq_lens[row] = static_cast<int>(len);
  }
}

__global__ void __launch_bounds__(kThreads)
    BlocksToTokensKernel(const __grid_constant__ BlocksToTokensParams params) {
  const int row = blockIdx.x;
  const int64_t width = static_cast<int64_t>(params.max_blocks) * params.block_size;
  const int64_t len = min(static_cast<int64_t>(max(params.seq_lens[row], 0)), width);
  for (int token = threadIdx.x; token < params.max_tokens; token += kThreads) {
    int slot = 0;
    if (token < len) {
      const int column = token / params.block_size;
      slot = params.block_table[row * params.row_stride + column] * params.block_size +
             (token - column * params.block_size);
    }
    params.slots[row * params.slots_stride + token] = slot;
  }
}

}  // namespace

cudaError_t RunPackTable(const PackTableParams& params, cudaStream_t stream) {
  PackTableKernel<<<std::max(params.num_rows, 1), kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t RunUnpackTable(const UnpackTableParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  UnpackTableKernel<<<params.num_rows, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t RunTokensToBlocks(const TokensToBlocksParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  TokensToBlocksKernel<<<params.num_rows, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

cudaError_t RunBlocksToTokens(const BlocksToTokensParams& params, cudaStream_t stream) {
  if (params.num_rows == 0) return cudaSuccess;
  BlocksToTokensKernel<<<params.num_rows, kThreads, 0, stream>>>(params);
  return cudaGetLastError();
}

}  // namespace reprise
