#include "runner/ops/query_temperature.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/log1p.h>
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

class QueryTemperatureTest : public DeviceTest {};

// In the given precision.
at::Tensor Tempered(const at::Tensor& q, const at::Tensor& positions, double attn_scale,
                    double floor_scale, at::ScalarType precision) {
  const at::Tensor factor =
      at::log1p(at::floor((positions.to(precision) + 1) / floor_scale)) * attn_scale + 1;
  return q.to(precision) * factor.view({-1, 1, 1});
}

TEST_F(QueryTemperatureTest, AgreesWithFloat64AtAnyPositionAndStride) {
  std::mt19937 random(1);
  const at::Tensor positions =
      at::tensor(std::vector<int32_t>{0, 14, 15, 16, 30, 31, 8191, 131071, 1 << 27});
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const float floor_scale : {1.0f, 16.0f, 8192.0f}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << floor_scale);
      const at::Tensor q = RandomNormal(random, {9, 5, 24}, dtype);
      const at::Tensor got = WithGaps(q.to(device()), 7);
      ASSERT_TRUE(TemperQueries(got, positions.to(device()),
                                {.attn_scale = 0.5f, .floor_scale = floor_scale})
                      .ok());
      EXPECT_TRUE(IsAsGoodAs(got, Tempered(q, positions, 0.5, floor_scale, at::kFloat).to(dtype),
                             Tempered(q, positions, 0.5, floor_scale, at::kDouble)));
    }
  }
}

TEST_F(QueryTemperatureTest, TheFirstQueriesKeepTheirBitsAndTheOneThatFillsTheFloorDoesNot) {
  std::mt19937 random(2);
  const at::Tensor q = RandomNormal(random, {4, 3, 8}, at::kBFloat16);
  const at::Tensor got = q.clone().to(device());
  const at::Tensor positions = at::tensor(std::vector<int32_t>{0, 5, 14, 15});
  ASSERT_TRUE(
      TemperQueries(got, positions.to(device()), {.attn_scale = 1, .floor_scale = 16}).ok());
  EXPECT_TRUE(Equals(got.narrow(0, 0, 3), q.narrow(0, 0, 3)));
  EXPECT_FALSE(Equals(got.narrow(0, 3, 1), q.narrow(0, 3, 1)));  // floor(16 / 16) = 1
}

TEST_F(QueryTemperatureTest, NegativePositionsCountAsZero) {
  std::mt19937 random(3);
  const at::Tensor q = RandomNormal(random, {2, 1, 4}, at::kFloat);
  const at::Tensor got = q.clone().to(device());
  const at::Tensor positions =
      at::tensor(std::vector<int32_t>{-1, std::numeric_limits<int32_t>::min()});
  ASSERT_TRUE(TemperQueries(got, positions.to(device()), {.floor_scale = 16}).ok());
  EXPECT_TRUE(Equals(got, q));
}

TEST_F(QueryTemperatureTest, NamesTheArgumentThatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kFloat);
  const at::Tensor q = at::zeros({2, 4, 8}, options);
  const at::Tensor positions = at::zeros({2}, options.dtype(at::kInt));
  EXPECT_TRUE(TemperQueries(q, positions, {}).ok());
  EXPECT_EQ(TemperQueries(q, positions, {.floor_scale = 0}),
            absl::InvalidArgumentError("floor_scale must be positive: got 0"));
  EXPECT_EQ(
      TemperQueries(q, at::zeros({3}, options.dtype(at::kInt)), {}),
      absl::InvalidArgumentError("positions must be [num_tokens] int32: expected [2], got [3]"));
  EXPECT_FALSE(TemperQueries(q, at::zeros({2}, options.dtype(at::kLong)), {}).ok());
  EXPECT_FALSE(TemperQueries(q.to(at::kInt), positions, {}).ok());
  EXPECT_TRUE(
      TemperQueries(at::zeros({0, 4, 8}, options), at::zeros({0}, options.dtype(at::kInt)), {})
          .ok());
}

}  // namespace
}  // namespace reprise
