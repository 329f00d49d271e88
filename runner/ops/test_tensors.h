// Tensors and comparisons for the tests of operations.

#ifndef REPRISE_RUNNER_OPS_TEST_TENSORS_H_
#define REPRISE_RUNNER_OPS_TEST_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace reprise {

// Normally distributed numbers around 0, rounded to `dtype`, on the CPU.
at::Tensor RandomNormal(std::mt19937& random, at::IntArrayRef shape, at::ScalarType dtype);

// The same values as a view whose rows (the last dimension) are `gap` elements apart, with NaN in
// between, on the device of `dense`. A copy to another device closes the gaps.
at::Tensor WithGaps(const at::Tensor& dense, int64_t gap);

// Rows with gaps as by WithGaps(), all NaN, for outputs.
at::Tensor NanRows(at::IntArrayRef shape, int64_t gap, at::ScalarType dtype, at::Device device);

// x [rows, in] times the transpose of weight [out, in], both float32 on the CPU, each sum in one chain
// of float32 additions: the worst order that an algorithm may choose. How long the chains of a library
// are depends on the processor's vectors.
at::Tensor ProductInOneChain(const at::Tensor& x, const at::Tensor& weight);

// Holds if the largest error of `got` against `reference` (float64) is at most twice that of
// `same_maths`, the same computation by LibTorch in the dtype of `got`, or a unit in the last place
// of the largest value.
::testing::AssertionResult IsAsGoodAs(const at::Tensor& got, const at::Tensor& same_maths,
                                      const at::Tensor& reference);

// The same for sums, whose terms may be larger than the sums: the unit in the last place is that of
// the largest sum of `magnitudes`, the terms' absolute values.
::testing::AssertionResult IsAsGoodAs(const at::Tensor& got, const at::Tensor& same_maths,
                                      const at::Tensor& reference, const at::Tensor& magnitudes);

// Bitwise equality of values on any devices; NaN equals NaN.
::testing::AssertionResult Equals(const at::Tensor& got, const at::Tensor& expected);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_TEST_TENSORS_H_
