#include "runner/ops/gelu.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "runner/ops/test_device.h"
#include "runner/ops/test_tensors.h"

namespace reprise {
namespace {

class GeluTest : public DeviceTest {};

TEST_F(GeluTest, AgreesWithFloat64ForAnySizeAndStride) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t size : {1, 7, 256, 4096, 50001}) {
      for (int64_t num_rows : {1, 5}) {
        const int64_t gap = random() % 2 == 0 ? 0 : 7;
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << num_rows << " x " << size << " + " << gap);
        const at::Tensor x = RandomNormal(random, {num_rows, size}, dtype) * 3;
        const at::Tensor got = WithGaps(x.to(device()), gap);
        ASSERT_TRUE(Gelu(got).ok());
        EXPECT_TRUE(
            IsAsGoodAs(got, at::gelu(x.to(at::kFloat)).to(dtype), at::gelu(x.to(at::kDouble))));
      }
    }
  }
}

TEST_F(GeluTest, IsTheDefinitionAndNotItsTanhFormula) {
  const at::Tensor x =
      at::tensor(std::vector<float>{-100, -5, -1, 0, 1, 5, 100}).view({1, 7}).to(device());
  ASSERT_TRUE(Gelu(x).ok());
  const at::Tensor got = x.cpu();
  EXPECT_EQ(got[0][0].item<float>(), 0);
  EXPECT_NEAR(got[0][1].item<float>(), -1.4332579e-6, 1e-11);  // the tanh formula gives -2.3e-7
  EXPECT_NEAR(got[0][2].item<float>(), -0.15865525, 1e-7);
  EXPECT_EQ(got[0][3].item<float>(), 0);
  EXPECT_NEAR(got[0][4].item<float>(), 0.84134475, 1e-7);
  EXPECT_NEAR(got[0][5].item<float>(), 4.9999986, 1e-6);
  EXPECT_EQ(got[0][6].item<float>(), 100);
}

TEST_F(GeluTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor x = at::zeros({2, 8}, options);
  EXPECT_EQ(Gelu(x.to(at::kInt)),
            absl::InvalidArgumentError("x has the wrong dtype: expected float32 or float16 or "
                                       "bfloat16, got int32"));
  EXPECT_EQ(Gelu(x.t()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Gelu(x[0]).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Gelu(at::zeros({0, 8}, options)).ok());
}

}  // namespace
}  // namespace reprise
