// Updates of LogitsSlots.
//
// Joins: one CTA per join. It clears the slot's counts, then adds the sequence's tokens, each with
// a 16-bit compare-and-swap, so that results do not depend on the order. Bound: with a vocabulary of
// 128,000, 256 KB of writes by one SM, about 3 us, and the transfer of the tokens over PCIe; once per
// join of a sequence with penalties.
//
// CountTokens: one thread per row. Bound: the launch, and four dependent loads.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/sampling/logits_state.h"

namespace reprise {
namespace {

constexpr int kJoinThreads = 1024;
constexpr int kCountThreads = 128;

static_assert(sizeof(LogitsJoin) % sizeof(int32_t) == 0);
static_assert(sizeof(TokenCount) == sizeof(unsigned short));

template <typename Change>
__device__ void Update(TokenCount* count, Change change) {
  TokenCount seen = *count;
  for (;;) {
    const TokenCount changed = change(seen);
    if (changed == seen) return;
    const TokenCount before = atomicCAS(count, seen, changed);
    if (before == seen) return;
    seen = before;
  }
}

__global__ void __launch_bounds__(kJoinThreads) JoinLogitsKernel(const JoinLogitsArgs args) {
  // Read once, by one warp, because the join may be read over PCIe.
  constexpr int kWords = sizeof(LogitsJoin) / sizeof(int32_t);
  static_assert(kWords <= 32);
  __shared__ alignas(LogitsJoin) int32_t words[kWords];
  const LogitsJoin& join = *reinterpret_cast<const LogitsJoin*>(words);
  if (threadIdx.x < kWords) {
    words[threadIdx.x] = reinterpret_cast<const int32_t*>(args.joins + blockIdx.x)[threadIdx.x];
  }
  __syncthreads();
  if (!args.slots.has(join.slot)) return;
  const LogitsParams params = ParamsOf(join, args);
  if (threadIdx.x == 0) args.slots.params[join.slot] = params;
  for (int i = threadIdx.x; i < params.num_biases; i += kJoinThreads) {
    args.slots.biases_of(join.slot)[i] = args.biases[join.first_bias + i];
  }
  if (!args.slots.counts_tokens(params)) return;
  TokenCount* counts = args.slots.counts_of(join.slot);
  constexpr int kCountsOfVector = sizeof(uint4) / sizeof(TokenCount);
  const int64_t num_vectors = TokenCountStride(args.slots.vocab_size) / kCountsOfVector;
  for (int64_t i = threadIdx.x; i < num_vectors; i += kJoinThreads) {
    reinterpret_cast<uint4*>(counts)[i] = uint4{0, 0, 0, 0};
  }
  __syncthreads();
  const int64_t num_tokens = int64_t{join.num_prompt_tokens} + join.num_output_tokens;
  for (int64_t i = threadIdx.x; i < num_tokens; i += kJoinThreads) {
    const int32_t token = args.tokens[join.first_token + i];
    if (token < 0 || token >= args.slots.vocab_size) continue;
    Update(counts + token, [&](TokenCount count) { return WithTokenOfJoin(join, i, count); });
  }
}

__global__ void __launch_bounds__(kCountThreads) CountTokensKernel(const CountTokensArgs args) {
  const int row = blockIdx.x * kCountThreads + threadIdx.x;
  if (row >= args.num_rows) return;
  TokenCount* count = CountOfNewToken(args, row);
  if (count != nullptr) *count = WithOutputToken(*count);
}

}  // namespace

absl::Status LaunchJoinLogits(const JoinLogitsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckJoinLogits(args));
  if (args.num_joins == 0) return absl::OkStatus();
  JoinLogitsKernel<<<args.num_joins, kJoinThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchJoinLogits");
}

absl::Status LaunchCountTokens(const CountTokensArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckCountTokens(args));
  if (args.num_rows == 0) return absl::OkStatus();
  const int num_ctas = (args.num_rows + kCountThreads - 1) / kCountThreads;
  CountTokensKernel<<<num_ctas, kCountThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchCountTokens");
}

}  // namespace reprise
