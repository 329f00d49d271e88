#include "runner/ops/softcap.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tanh.h>
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

class SoftcapTest : public DeviceTest {};

at::Tensor Capped(const at::Tensor& x, double cap, at::ScalarType precision) {
  return at::tanh(x.to(precision) / cap) * cap;
}

TEST_F(SoftcapTest, AgreesWithFloat64ForAnySizeAndStride) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t size : {1, 7, 256, 4096, 50001}) {
      for (int64_t num_rows : {1, 5}) {
        const int64_t gap = random() % 2 == 0 ? 0 : 7;
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << num_rows << " x " << size << " + " << gap);
        const at::Tensor x = RandomNormal(random, {num_rows, size}, dtype) * 20;
        const at::Tensor got = WithGaps(x.to(device()), gap);
        ASSERT_TRUE(Softcap(got, 30).ok());
        EXPECT_TRUE(
            IsAsGoodAs(got, Capped(x, 30, at::kFloat).to(dtype), Capped(x, 30, at::kDouble)));
      }
    }
  }
}

TEST_F(SoftcapTest, NothingPassesTheCap) {
  const float infinity = std::numeric_limits<float>::infinity();
  const at::Tensor x =
      at::tensor(std::vector<float>{-infinity, -1e30f, -30, 0, 30, 1e30f, infinity})
          .view({1, 7})
          .to(device());
  ASSERT_TRUE(Softcap(x, 30).ok());
  const at::Tensor got = x.cpu();
  EXPECT_EQ(got[0][0].item<float>(), -30);
  EXPECT_EQ(got[0][1].item<float>(), -30);
  EXPECT_NEAR(got[0][2].item<float>(), -30 * 0.76159416f, 1e-5);  // tanh(1)
  EXPECT_EQ(got[0][3].item<float>(), 0);
  EXPECT_EQ(got[0][5].item<float>(), 30);
  EXPECT_EQ(got[0][6].item<float>(), 30);
}

TEST_F(SoftcapTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor x = at::zeros({2, 8}, options);
  for (const float cap : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(Softcap(x, cap).code(), absl::StatusCode::kInvalidArgument) << cap;
  }
  EXPECT_FALSE(Softcap(x.to(at::kInt), 30).ok());
  EXPECT_FALSE(Softcap(x.t(), 30).ok());
  EXPECT_FALSE(Softcap(x[0], 30).ok());
  EXPECT_TRUE(Softcap(at::zeros({0, 8}, options), 30).ok());
}

}  // namespace
}  // namespace reprise
