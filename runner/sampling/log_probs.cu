// Log-probabilities, with one CTA per row that requests them.
//
// 1. Each thread finds its largest logit, and the CTA the row's largest logit.
// 2. The CTA computes the sum of all masses, and the number of logits larger than the token's.
// 3. The CTA finds the top tokens one after the other. The thread that holds the row's largest
//    choice reports it, and then searches its own logits for its next largest choice. The row is
//    therefore not read again as a whole.
//
// All sums are sums of integers and all choices are maxima of integers, as in sampling.
//
// Bound: latency. One SM reads a row of 128256 bfloat16 twice, the second time from cache, 4 us
// each. Each top token needs a reduction, and one thread reads its 125 logits again, 2 us. Rows run
// concurrently, up to two per SM.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/log_probs.h"
#include "reprise/runner/sampling/logits_row.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
static_assert(kWarps == kWarpSize);

// The team of a LogitsRow: the CTA, with reductions. All threads call them in the same order.
class Cta {
 public:
  __device__ explicit Cta(uint64_t (&warp_values)[2][kWarps]) : warp_values_(warp_values) {}

  __device__ int thread() const { return threadIdx.x; }
  __device__ int num_threads() const { return kThreads; }

  // Reduces the values of all threads. Returns the result to all threads.
  template <typename Op>
  __device__ uint64_t Reduce(uint64_t value, Op op) {
    value = ReduceWarp(value, op);
    // Other threads may still read the values of the previous reduction. The buffer of the
    // reduction before that one is free.
    parity_ ^= 1;
    if (threadIdx.x % kWarpSize == 0) warp_values_[parity_][threadIdx.x / kWarpSize] = value;
    __syncthreads();
    return ReduceWarp(warp_values_[parity_][threadIdx.x % kWarpSize], op);
  }
  __device__ uint64_t Max(uint64_t value) {
    return Reduce(value, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  }
  __device__ uint64_t Sum(uint64_t value) {
    return Reduce(value, [](uint64_t a, uint64_t b) { return a + b; });
  }

 private:
  template <typename Op>
  __device__ static uint64_t ReduceWarp(uint64_t value, Op op) {
#pragma unroll
    for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }

  uint64_t (&warp_values_)[2][kWarps];
  int parity_ = 0;
};

// Returns this thread's largest choice below `taken`, or kNoChoice. REQUIRES: `taken` is this
// thread's choice.
template <typename T, int kVector>
__device__ uint64_t NextChoice(const LogitsRow<T, kVector>& row, const Cta& cta, uint64_t taken) {
  uint64_t best = kNoChoice;
  row.ForEach(cta, [&](int token, float logit) {
    const uint64_t choice = PackChoice(OrderKey(logit), token);
    if (choice < taken && choice > best) best = choice;
  });
  return best;
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) LogProbsKernel(const LogProbsArgs args) {
  __shared__ uint64_t warp_values[2][kWarps];
  const int row_idx = blockIdx.x;
  const int num_top = NumTopOf(args, row_idx);
  if (num_top < 0) return;  // the whole CTA
  const LogitsRow<T, kVector> row = {
      static_cast<const T*>(args.logits) + row_idx * args.logits_stride, args.vocab_size};
  const int32_t token = LogProbTokenOf(args, row_idx);
  const bool is_token = token >= 0 && token < args.vocab_size;
  const float token_logit = is_token ? ToFloat(row.logits[token]) : 0.0f;
  const uint32_t token_key = is_token ? OrderKey(token_logit) : 0;

  Cta cta(warp_values);
  uint64_t own_best = row.Largest(cta);
  uint64_t largest = cta.Max(own_best);
  const bool is_valid = CanBeChosen(largest);
  RowLogProbs log_probs;
  uint64_t num_larger = 0;
  if (is_valid) {
    const float max_logit = ToFloat(row.logits[TokenOf(largest)]);
    uint64_t total = 0;
    row.ForEach(cta, [&](int, float logit) {
      const uint32_t key = OrderKey(logit);
      if (key == 0) return;
      total += MassOf(ScaledDistance(logit, max_logit, 1.0f));
      num_larger += key > token_key ? 1 : 0;
    });
    log_probs = RowLogProbsOf(max_logit, cta.Sum(total));
    num_larger = cta.Sum(num_larger);
  }
  if (threadIdx.x == 0) {
    const bool has_token = is_valid && token_key != 0;
    args.out.token_log_probs[row_idx] = has_token ? log_probs.Of(token_logit) : kNoLogProb;
    if (args.out.token_ranks != nullptr) {
      args.out.token_ranks[row_idx] = has_token ? static_cast<int32_t>(num_larger) + 1 : 0;
    }
  }
  for (int i = 0; i < num_top; ++i) {
    const bool has_top = is_valid && KeyOf(largest) != 0;
    if (threadIdx.x == 0) {
      const int64_t at = static_cast<int64_t>(row_idx) * args.max_top + i;
      args.out.top_tokens[at] = has_top ? TokenOf(largest) : -1;
      args.out.top_log_probs[at] =
          has_top ? log_probs.Of(ToFloat(row.logits[TokenOf(largest)])) : kNoLogProb;
    }
    if (!has_top || i + 1 == num_top) continue;  // all threads
    if (own_best == largest) own_best = NextChoice(row, cta, largest);
    largest = cta.Max(own_best);
  }
}

template <typename T, int kVector>
cudaError_t Launch(const LogProbsArgs& args, cudaStream_t stream) {
  LogProbsKernel<T, kVector><<<args.num_rows, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

absl::Status LaunchLogProbs(const LogProbsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckLogProbs(args));
  if (args.num_rows == 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    return IsAlignedForVectors<T>(args.logits, args.logits_stride)
               ? Launch<T, kFullVector<T>>(args, stream)
               : Launch<T, 1>(args, stream);
  });
  return CudaStatus(error, "LaunchLogProbs");
}

}  // namespace reprise
