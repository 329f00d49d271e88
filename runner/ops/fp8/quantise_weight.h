// Quantises 16- or 32-bit weights to 8 bits. Each scale is the largest magnitude among the values
// that share it, divided by 448, the largest e4m3 number, as in checkpoints.
//
//   REPRISE_ASSIGN_OR_RETURN(QuantisedWeight q, QuantiseWeight(weight, ScaledBy::kRow));
//   REPRISE_ASSIGN_OR_RETURN(Linear linear, Linear::CreateScaled(q.values, q.scales, bias));
//
// Thread safety: pure functions.

#ifndef REPRISE_RUNNER_OPS_FP8_QUANTISE_WEIGHT_H_
#define REPRISE_RUNNER_OPS_FP8_QUANTISE_WEIGHT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"

namespace reprise {

enum class ScaledBy : int8_t {
  kRow,    // one scale per output channel
  kBlock,  // one scale per 128 x 128 values
};

struct QuantisedWeight {
  at::Tensor values;  // [out_features, in_features] float8_e4m3fn
  // [out_features, num_groups] float32, as Linear::CreateScaled() requires: the scales of a block
  // are repeated for each of its rows.
  at::Tensor scales;
};

// Quantises weight [out_features, in_features] float32, float16 or bfloat16, all finite, on the
// weight's device. If all values that share a scale are zero, the scale is 1. Errors:
// InvalidArgument, naming the argument; those of CatchTorch() (base/torch_status.h).
absl::StatusOr<QuantisedWeight> QuantiseWeight(const at::Tensor& weight, ScaledBy scaled_by);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_QUANTISE_WEIGHT_H_
