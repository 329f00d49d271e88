// The rotation of a pair of dims, and the end of a product that rotates (rotary_end.h).

#ifndef RUNNER_OPS_FEW_ROWS_ROTATED_VALUES_CUH_
#define RUNNER_OPS_FEW_ROWS_ROTATED_VALUES_CUH_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runner/ops/few_rows/rotary_end.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {

// In float32, with the order of operations given: all kernels that rotate compute the same bits.
struct RotatedPair {
  float low, high;
};
__device__ __forceinline__ RotatedPair Rotated(float low, float high, float cos, float sin) {
  return {__fmaf_rn(low, cos, -__fmul_rn(high, sin)), __fmaf_rn(high, cos, __fmul_rn(low, sin))};
}

__device__ __forceinline__ void PrefetchToL1(const void* address) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(address));
}

// Requests what StoreRotated() will load of each row, which else are two loads one after the other at
// the end of the kernel: for threads that will wait for sums. After AwaitKernelBefore().
__device__ __forceinline__ void RequestRotaryEnd(const RotaryEnd& end, int num_rows, int thread,
                                                 int num_threads) {
  constexpr int kLine = 32;  // floats
  const int lines = (end.head_dim + kLine - 1) / kLine;
  for (int i = thread; i < num_rows * lines; i += num_threads) {
    const int row = i / lines, line = i % lines;
    const int position = min(max(end.positions[row], 0), end.max_positions - 1);
    const float* const at =
        end.table + static_cast<int64_t>(position) * end.head_dim + line * kLine;
    PrefetchToL1(at);
    if (line == 0 && row < end.num_slots) PrefetchToL1(end.slot_mapping + row);
  }
}

// Stores kSize dims from `dim` on of a head of one row, and those head_dim / 2 further on: `low` and
// `high`, sums with their bias. `out`: the row's memory, which gets q; k and v go into the cache.
// `head`: of q's, then k's, then v's. T: the type of x and of the cache.
template <typename T, int kSize>
__device__ __forceinline__ void StoreRotated(const RotaryEnd& end, T* out, int row, int head,
                                             int dim, const float (&low)[kSize],
                                             const float (&high)[kSize]) {
  const int half = end.head_dim / 2;
  const bool is_v = head >= end.num_q_heads + end.num_kv_heads;
  Vector<T, kSize> low_results, high_results;
  if (is_v) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      low_results.value[j] = FromFloat<T>(low[j]);
      high_results.value[j] = FromFloat<T>(high[j]);
    }
  } else {
    const int position = min(max(end.positions[row], 0), end.max_positions - 1);
    const float* const table = end.table + static_cast<int64_t>(position) * end.head_dim + dim;
    const auto cos = LoadVector<float, kSize>(table);
    const auto sin = LoadVector<float, kSize>(table + half);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      // As if q and k had been stored in between.
      const RotatedPair pair =
          Rotated(RoundTo<T>(low[j]), RoundTo<T>(high[j]), cos.value[j], sin.value[j]);
      low_results.value[j] = FromFloat<T>(pair.low);
      high_results.value[j] = FromFloat<T>(pair.high);
    }
  }
  T* to = out + head * end.head_dim;
  if (head >= end.num_q_heads) {
    const KvView& view = is_v ? end.v : end.k;
    const int kv_head = head - end.num_q_heads - (is_v ? end.num_kv_heads : 0);
    const SlotPlace place = end.places.Find(row < end.num_slots ? end.slot_mapping[row] : -1);
    if (!place.is_there) return;
    to = static_cast<T*>(view.data) + place.Offset(view) + kv_head * view.head_stride;
  }
  StoreVector(to + dim, low_results);
  StoreVector(to + half + dim, high_results);
}

}  // namespace reprise

#endif  // RUNNER_OPS_FEW_ROWS_ROTATED_VALUES_CUH_
