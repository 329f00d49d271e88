#include "reprise/models/random_source.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linspace.h>

#include <cmath>
#include <vector>

#include "reprise/base/torch_dtype.h"

namespace reprise {

RandomSource::RandomSource(const RandomWeightsOptions& options, RandomSpread spread)
    : WeightSource(options.dtype, options.ranks),
      spread_(spread),
      options_(at::TensorOptions(options.device).dtype(ToScalarType(options.dtype))),
      generator_(at::globalContext().defaultGenerator(options.device).clone()) {
  generator_.set_current_seed(options.seed);
}

absl::StatusOr<at::Tensor> RandomSource::Add(const WeightRequest& request) {
  const std::vector<int64_t> shape = request.Shape();
  const at::TensorOptions options =
      request.dtype.has_value() ? options_.dtype(ToScalarType(*request.dtype)) : options_;
  const bool is_matrix = request.kind == WeightKind::kMatrix;
  if (spread_ == RandomSpread::kLively && !is_matrix) {
    const double middle = request.kind == WeightKind::kNorm ? request.neutral : 0;
    return at::linspace(middle - 0.5, middle + 0.5, shape[0], options);
  }
  if (request.kind == WeightKind::kNorm) return at::full(shape, request.neutral, options);
  constexpr double kUntrainedDeviation = 0.02;  // Hugging Face's initializer_range
  const double deviation = spread_ == RandomSpread::kLively
                               ? 1 / std::sqrt(static_cast<double>(shape.back()))
                               : kUntrainedDeviation;
  return at::empty(shape, options).normal_(0, deviation, generator_);
}

}  // namespace reprise
