#include <cuda_runtime_api.h>

#include "expert_kernels.h"

namespace {

constexpr int kMaxInner = 1024;

// A warp an expert goes through all pairs in their order.
__global__ void Assign(ExpertArgs args) {
  const int expert = blockIdx.x, lane = threadIdx.x;
  const int64_t num_pairs = static_cast<int64_t>(args.num_tokens) * args.num_chosen;
  const int num_live = *args.num_live_tokens;
  int count = 0;
  for (int64_t begin = 0; begin < num_pairs; begin += 32) {
    const int64_t pair = begin + lane, token = pair / args.num_chosen;
    const bool is_own = pair < num_pairs && args.experts[pair] == expert;
    const unsigned live = __ballot_sync(~0u, is_own && token < num_live);
    const int place = count + __popc(live & ((1u << lane) - 1));
    count += __popc(live);
    if (!is_own) continue;
    const bool fits = token < num_live && place < args.capacity;
    args.places[pair] = fits ? place : -1;
    if (fits) args.tokens[static_cast<int64_t>(expert) * args.capacity + place] = token;
  }
  if (lane == 0) args.counts[expert] = min(count, args.capacity);
}

__device__ float Dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// A CTA a place; those that are not taken end at once.
__global__ void Compute(ExpertArgs args) {
  const int place = blockIdx.x;
  const int64_t expert = blockIdx.y;
  if (place >= args.counts[expert]) return;
  __shared__ float gated[kMaxInner];
  const int64_t row = expert * args.capacity + place;
  const float* x = args.x + static_cast<int64_t>(args.tokens[row]) * args.hidden;
  const float* gate = args.gate_up + expert * 2 * args.inner * args.hidden;
  const float* up = gate + static_cast<int64_t>(args.inner) * args.hidden;
  for (int64_t i = threadIdx.x; i < args.inner; i += blockDim.x) {
    const float g = Dot(gate + i * args.hidden, x, args.hidden);
    gated[i] = g / (1 + expf(-g)) * Dot(up + i * args.hidden, x, args.hidden);
  }
  __syncthreads();
  const float* down = args.down + expert * args.hidden * args.inner;
  for (int64_t h = threadIdx.x; h < args.hidden; h += blockDim.x) {
    args.outputs[row * args.hidden + h] = Dot(down + h * args.inner, gated, args.inner);
  }
}

__global__ void Combine(ExpertArgs args) {
  const int64_t token = blockIdx.x, first = token * args.num_chosen;
  for (int h = threadIdx.x; h < args.hidden; h += blockDim.x) {
    float sum = 0;
    for (int64_t pair = first; pair < first + args.num_chosen; ++pair) {
      if (args.places[pair] < 0) continue;
      const int64_t row = args.experts[pair] * args.capacity + args.places[pair];
      sum += args.weights[pair] * args.outputs[row * args.hidden + h];
    }
    args.out[token * args.hidden + h] = sum;
  }
}

}  // namespace

int LaunchExperts(const ExpertArgs& args, CUstream_st* stream) {
  if (args.inner > kMaxInner) return cudaErrorInvalidValue;
  if (args.num_tokens == 0) return cudaSuccess;
  Assign<<<args.num_experts, 32, 0, stream>>>(args);
  Compute<<<dim3(args.capacity, args.num_experts), 64, 0, stream>>>(args);
  Combine<<<args.num_tokens, 64, 0, stream>>>(args);
  return cudaGetLastError();
}
