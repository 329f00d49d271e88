#include "reprise/runner/ops/test_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace reprise {
namespace {

double Epsilon(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0x1p-8;
    case at::kHalf:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

double MaxOf(const at::Tensor& values) {
  return values.numel() == 0 ? 0.0 : values.max().item<double>();
}

}  // namespace

at::Tensor RandomNormal(std::mt19937& random, at::IntArrayRef shape, at::ScalarType dtype) {
  at::Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kFloat));
  std::normal_distribution<float> normal;
  std::generate_n(values.mutable_data_ptr<float>(), values.numel(), [&] { return normal(random); });
  return values.to(dtype);
}

at::Tensor WithGaps(const at::Tensor& dense, int64_t gap) {
  at::Tensor rows = NanRows(dense.sizes(), gap, dense.scalar_type(), dense.device());
  rows.copy_(dense);
  return rows;
}

at::Tensor NanRows(at::IntArrayRef shape, int64_t gap, at::ScalarType dtype, at::Device device) {
  std::vector<int64_t> padded = shape.vec();
  padded.back() += gap;
  return at::full(padded, std::numeric_limits<double>::quiet_NaN(),
                  at::TensorOptions(device).dtype(dtype))
      .narrow(-1, 0, shape.back());
}

at::Tensor ProductInOneChain(const at::Tensor& x, const at::Tensor& weight) {
  const auto a = x.accessor<float, 2>();
  const auto b = weight.accessor<float, 2>();
  at::Tensor out = at::zeros({x.size(0), weight.size(0)}, x.options());
  auto sums = out.accessor<float, 2>();
  for (int64_t row = 0; row < x.size(0); ++row) {
    for (int64_t column = 0; column < weight.size(0); ++column) {
      for (int64_t i = 0; i < x.size(1); ++i) sums[row][column] += a[row][i] * b[column][i];
    }
  }
  return out;
}

::testing::AssertionResult IsAsGoodAs(const at::Tensor& got, const at::Tensor& same_maths,
                                      const at::Tensor& reference) {
  return IsAsGoodAs(got, same_maths, reference, reference.abs());
}

::testing::AssertionResult IsAsGoodAs(const at::Tensor& got, const at::Tensor& same_maths,
                                      const at::Tensor& reference, const at::Tensor& magnitudes) {
  const at::Tensor expected = reference.to(at::kDouble).cpu();
  const at::Tensor error = (got.cpu().to(at::kDouble) - expected).abs();
  const double allowed =
      std::max(2 * MaxOf((same_maths.cpu().to(at::kDouble) - expected).abs()),
               MaxOf(magnitudes.to(at::kDouble).cpu()) * Epsilon(got.scalar_type()));
  // NaN fails every comparison, so it counts as an infinite error.
  const double largest = MaxOf(at::nan_to_num(error, std::numeric_limits<double>::infinity()));
  if (largest <= allowed) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "error " << largest << ", allowed " << allowed;
}

::testing::AssertionResult Equals(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor a = got.cpu();
  const at::Tensor b = expected.cpu();
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    return ::testing::AssertionFailure() << "shapes or dtypes differ";
  }
  if (a.numel() == 0) return ::testing::AssertionSuccess();
  const at::Tensor same = a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b)));
  if (same.all().item<bool>()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << a.numel() - same.sum().item<int64_t>() << " of " << a.numel() << " elements differ";
}

}  // namespace reprise
