#include "runner/ops/gate_mul.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "runner/ops/test_device.h"
#include "runner/ops/test_tensors.h"

namespace reprise {
namespace {

class GateMulTest : public DeviceTest {};

at::Tensor ActivatedTimesUp(Activation activation, const at::Tensor& gate_up) {
  const int64_t size = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, size);
  const at::Tensor activated =
      activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh");
  return activated * gate_up.narrow(1, size, size);
}

TEST_F(GateMulTest, AgreesWithFloat64ForAnySizeAndStride) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t size : {1, 7, 64, 768, 2050, 14336}) {
      for (int64_t num_rows : {1, 3, 300}) {
        if (num_rows * size > 1000000) continue;
        const int64_t gap = random() % 2 == 0 ? 0 : 7;
        const Activation activation = random() % 2 == 0 ? Activation::kSilu : Activation::kGeluTanh;
        SCOPED_TRACE(testing::Message() << dtype << " " << num_rows << " x " << size << " + " << gap
                                        << ", activation " << static_cast<int>(activation));
        const at::Tensor gate_up = RandomNormal(random, {num_rows, 2 * size}, dtype) * 4;
        const at::Tensor out = NanRows({num_rows, size}, gap, dtype, device());
        ASSERT_TRUE(GateMul(activation, WithGaps(gate_up.to(device()), gap), out).ok());
        EXPECT_TRUE(IsAsGoodAs(out, ActivatedTimesUp(activation, gate_up),
                               ActivatedTimesUp(activation, gate_up.to(at::kDouble))));
      }
    }
  }
}

TEST_F(GateMulTest, LargeGatesNeitherOverflowNorBecomeNan) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor gate_up = at::empty({3, 2}, options).fill_(1);
  gate_up.select(1, 0).select(0, 0).fill_(-1e4f);  // exp(1e4) is inf: 1 / inf = 0
  gate_up.select(1, 0).select(0, 1).fill_(1e4f);
  gate_up.select(1, 0).select(0, 2).fill_(infinity);
  const at::Tensor out = at::empty({3, 1}, options);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    ASSERT_TRUE(GateMul(activation, gate_up, out).ok());
    EXPECT_EQ(out[0].item<float>(), 0);
    EXPECT_EQ(out[1].item<float>(), 1e4f);
    EXPECT_EQ(out[2].item<float>(), infinity);
  }
}

TEST_F(GateMulTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor out = at::empty({2, 8}, options);
  EXPECT_EQ(GateMul(Activation::kSilu, at::empty({2, 15}, options), out),
            absl::InvalidArgumentError(
                "gate_up must be [num_rows, 16] float32: expected [2, 16], got [2, 15]"));
  EXPECT_EQ(GateMul(Activation::kSilu, at::empty({2, 16}, options.dtype(at::kHalf)), out),
            absl::InvalidArgumentError(
                "gate_up must be [num_rows, 16] float32: expected float32, got float16"));
  EXPECT_FALSE(GateMul(Activation::kSilu, at::empty({2, 16}, options),
                       at::empty({2, 8}, options.dtype(at::kInt)))
                   .ok());
  EXPECT_TRUE(
      GateMul(Activation::kSilu, at::empty({0, 16}, options), at::empty({0, 8}, options)).ok());
}

}  // namespace
}  // namespace reprise
