// Computes a result of a gated GEMM from two sums, in a kernel.

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_GATED_VALUE_CUH_
#define REPRISE_RUNNER_OPS_FEW_ROWS_GATED_VALUE_CUH_

#include "reprise/runner/ops/elementwise_args.h"
#include "reprise/runner/ops/op_options.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {

template <typename Function, typename T>
__device__ __forceinline__ T GatedBy(float gate, float up) {
  const float activated = RoundTo<T>(Function()(RoundTo<T>(gate)));
  return FromFloat<T>(activated * Function::Factor(RoundTo<T>(up)));
}

// Returns activation(gate) * up of two sums. The result is bitwise identical to storing both sums
// first and applying GateMul() (runner/ops/elementwise.h).
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

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_GATED_VALUE_CUH_
