// Tensors and comparisons for tests of operations.

#ifndef REPRISE_RUNNER_OPS_TEST_TENSORS_H_
#define REPRISE_RUNNER_OPS_TEST_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace reprise {

// Returns normally distributed numbers with mean 0, rounded to `dtype`, on the CPU.
at::Tensor RandomNormal(std::mt19937& random, at::IntArrayRef shape, at::ScalarType dtype);

// Returns the same values as a view on the device of `dense`. `gap` elements of NaN separate its
// rows (the last dimension). A copy to another device closes the gaps.
at::Tensor WithGaps(const at::Tensor& dense, int64_t gap);

// Returns rows of NaN with gaps, as from WithGaps(), for outputs.
at::Tensor NanRows(at::IntArrayRef shape, int64_t gap, at::ScalarType dtype, at::Device device);

// Returns x [rows, in] times the transpose of weight [out, in], both float32 on the CPU. Each sum
// is one chain of float32 additions, the worst order that an algorithm may choose. The lengths of a
// library's chains depend on the processor's vector width.
at::Tensor ProductInOneChain(const at::Tensor& x, const at::Tensor& weight);

// Succeeds if the largest error of `got` against `reference` (float64) is at most twice the error
// of `same_maths`, which LibTorch computes in the dtype of `got`, or at most the largest magnitude
// times the unit roundoff of that dtype.
::testing::AssertionResult IsAsGoodAs(const at::Tensor& got, const at::Tensor& same_maths,
                                      const at::Tensor& reference);

// IsAsGoodAs() for sums, whose terms may be larger than the sums. `magnitudes` holds the sums of
// the terms' absolute values, and the unit roundoff is multiplied by the largest of them.
::testing::AssertionResult IsAsGoodAs(const at::Tensor& got, const at::Tensor& same_maths,
                                      const at::Tensor& reference, const at::Tensor& magnitudes);

// Succeeds if shapes, dtypes and values are equal, on any devices; NaN equals NaN, and -0 equals 0.
::testing::AssertionResult Equals(const at::Tensor& got, const at::Tensor& expected);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_TEST_TENSORS_H_
