#include "reprise/hf/element_conversion.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

TEST(ElementConversionTest, GivesTheBitsThatLibTorchGives) {
  const float infinity = std::numeric_limits<float>::infinity();
  // Ties, subnormals, values beyond the largest half, zeros of both signs.
  const at::Tensor special =
      at::tensor(std::vector<double>{1.00390625, 1.01171875, 1.0009765625 / 2, 6e-8, 1e-40, 65519,
                                     65520, 1e38, -0.0, 0.0, infinity, -infinity},
                 at::kDouble);
  const at::Tensor values = at::cat({special, at::randn({5000}, at::kDouble) * 100});
  for (const DType from : {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const at::Tensor source = values.to(ToScalarType(from));
    for (const DType to : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      SCOPED_TRACE(testing::Message() << from << " to " << to);
      const at::Tensor target = at::empty({source.numel()}, ToScalarType(to));
      ConvertElements(from, source.const_data_ptr(), to, target.mutable_data_ptr(), source.numel());
      EXPECT_TRUE(at::equal(target, source.to(ToScalarType(to))));
    }
  }
}

TEST(ElementConversionTest, NoElementsAreNoWork) {
  ConvertElements(DType::kFloat32, nullptr, DType::kBFloat16, nullptr, 0);
}

}  // namespace
}  // namespace reprise
