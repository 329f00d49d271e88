// Weights of 8 bits from weights of 16 or 32: each scale is the largest value that it serves
// divided by 448, the largest of e4m3, as checkpoints have it.
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
  kRow,    // a scale for each output channel
  kBlock,  // a scale for each 128 x 128 values
};

struct QuantisedWeight {
  at::Tensor values;  // [out_features, in_features] float8_e4m3fn
  // [out_features, num_groups] float32, as Linear::CreateScaled() takes them: those of a block are
  // repeated for its rows.
  at::Tensor scales;
};

// weight [out_features, in_features] float32, float16 or bfloat16, without NaN; on its device.
// Values that are all zero have the scale 1. Errors: InvalidArgument, naming the argument; those of
// CatchTorch() (base/torch_status.h).
absl::StatusOr<QuantisedWeight> QuantiseWeight(const at::Tensor& weight, ScaledBy scaled_by);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FP8_QUANTISE_WEIGHT_H_
