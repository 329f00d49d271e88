// The end of a product's kernel: what becomes of its sums, and what it reads ahead for the next.

#ifndef RUNNER_OPS_FEW_ROWS_PRODUCT_END_CUH_
#define RUNNER_OPS_FEW_ROWS_PRODUCT_END_CUH_

#include <cstdint>

#include "base/dependent_launch.cuh"
#include "runner/ops/elementwise_args.h"
#include "runner/ops/few_rows/weight_prefetch.h"
#include "runner/ops/op_options.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {

template <typename Function, typename T>
__device__ __forceinline__ T GatedBy(float gate, float up) {
  const float activated = RoundTo<T>(Function()(RoundTo<T>(gate)));
  return FromFloat<T>(activated * Function::Factor(RoundTo<T>(up)));
}

// activation(gate) * up of two sums, with the bits that they have if both are stored first and
// GateMul() reads them (runner/ops/elementwise.h).
template <typename T>
__device__ __forceinline__ T GatedValue(Activation activation, float gate, float up) {
  switch (activation) {
    case Activation::kSilu:
      return GatedBy<SiluGate, T>(gate, up);
    case Activation::kGeluTanh:
      return GatedBy<GeluTanhGate, T>(gate, up);
    default:
      return GatedBy<ClampedSwigluGate, T>(gate, up);
  }
}

// Called by num_threads threads of every CTA: each CTA has its share of the parts.
__device__ inline void PrefetchWeight(const WeightPrefetch& next, int thread, int num_threads) {
  if (next.data == nullptr) return;
  const char* const data = static_cast<const char*>(next.data);
  const int lines = next.row_bytes / kPrefetchLine;
  for (int part = static_cast<int>(blockIdx.x); part < next.num_parts;
       part += static_cast<int>(gridDim.x)) {
    const int first = next.FirstRow(part);
    const int rows = min(next.part_rows, next.num_rows - first);
    for (int e = thread; e < rows * lines; e += num_threads) {
      const char* const line = data + (first + e / lines) * next.stride + e % lines * kPrefetchLine;
      PrefetchToL2(line);
      if (next.pair_distance != 0) PrefetchToL2(line + next.pair_distance * next.stride);
    }
  }
}

}  // namespace reprise

#endif  // RUNNER_OPS_FEW_ROWS_PRODUCT_END_CUH_
