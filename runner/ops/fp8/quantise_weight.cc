#include "reprise/runner/ops/fp8/quantise_weight.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/runner/ops/activation_type.h"

namespace reprise {
namespace {

constexpr int64_t kBlock = 128;
constexpr double kLargest = 448;  // largest e4m3 number

// Returns [out_features, num_groups]: for each row, the largest magnitude in the block of each
// group.
at::Tensor LargestOfBlocks(const at::Tensor& magnitudes) {
  // Takes maxima over the columns of each block, then over its rows. Blocks at the edges may be
  // partial.
  const auto of_columns = [](const at::Tensor& x) {
    const int64_t whole = (x.size(1) + kBlock - 1) / kBlock * kBlock;
    return at::constant_pad_nd(x, {0, whole - x.size(1)}).view({x.size(0), -1, kBlock}).amax(2);
  };
  const at::Tensor groups = of_columns(magnitudes);                   // [out, groups]
  const at::Tensor blocks = of_columns(groups.t().contiguous()).t();  // [row blocks, groups]
  return blocks.repeat_interleave(kBlock, 0).narrow(0, 0, magnitudes.size(0)).contiguous();
}

}  // namespace

absl::StatusOr<QuantisedWeight> QuantiseWeight(const at::Tensor& weight, ScaledBy scaled_by) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("weight", weight, {"out_features", "in_features"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("weight", weight));
  return CatchTorchOr([&]() -> absl::StatusOr<QuantisedWeight> {
    const at::Tensor exact = weight.to(at::kFloat);
    const at::Tensor magnitudes = exact.abs();
    const at::Tensor largest = scaled_by == ScaledBy::kRow ? magnitudes.amax(1, /*keepdim=*/true)
                                                           : LargestOfBlocks(magnitudes);
    QuantisedWeight quantised;
    quantised.scales = at::where(largest.gt(0), largest / kLargest, 1.0f).to(at::kFloat);
    at::Tensor of_values = quantised.scales;
    if (scaled_by == ScaledBy::kBlock) {
      of_values = of_values.repeat_interleave(kBlock, 1).narrow(1, 0, weight.size(1));
    }
    quantised.values =
        (exact / of_values).clamp_(-kLargest, kLargest).to(at::ScalarType::Float8_e4m3fn);
    return quantised;
  });
}

}  // namespace reprise
