#include "reprise/runner/ops/elementwise.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

class GateMulTest : public DeviceTest {};

at::Tensor ActivatedTimesUp(Activation activation, const at::Tensor& gate_up) {
  const int64_t size = gate_up.size(1) / 2;
  const at::Tensor gate = gate_up.narrow(1, 0, size);
  if (activation == Activation::kClampedSwiglu) {
    const at::Tensor clamped = gate.clamp_max(7);
    const at::Tensor up = gate_up.narrow(1, size, size).clamp(-7, 7);
    return clamped * at::sigmoid(clamped * 1.702) * (up + 1);
  }
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
        const Activation activation = static_cast<Activation>(random() % 3);
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

TEST_F(GateMulTest, ClampedGateStaysWithinItsLimits) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // Pairs of (gate, up).
  const at::Tensor gate_up =
      at::tensor(std::vector<float>{100, 100, infinity, -infinity, -1e4f, 3, 0, 1, 7, -1, nan, 1})
          .view({6, 2})
          .to(device());
  const at::Tensor out = at::empty({6, 1}, gate_up.options());
  ASSERT_TRUE(GateMul(Activation::kClampedSwiglu, gate_up, out).ok());
  const at::Tensor got = out.cpu();
  const float seven = 7 / (1 + std::exp(-1.702f * 7));
  EXPECT_NEAR(got[0].item<float>(), seven * 8, 1e-4);
  EXPECT_NEAR(got[1].item<float>(), seven * -6, 1e-4);
  EXPECT_EQ(got[2].item<float>(), 0);
  EXPECT_EQ(got[3].item<float>(), 0);
  EXPECT_EQ(got[4].item<float>(), 0);  // up + 1 is 0
  EXPECT_TRUE(std::isnan(got[5].item<float>()));
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

TEST_F(GeluTest, MatchesTheErfDefinitionNotTheTanhFormula) {
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

TEST_F(GeluTest, TheTanhFormAgreesWithFloat64) {
  std::mt19937 random(2);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (int64_t size : {1, 7, 256, 5001}) {
      SCOPED_TRACE(testing::Message() << dtype << " " << size);
      const at::Tensor x = RandomNormal(random, {5, size}, dtype) * 3;
      const at::Tensor got = WithGaps(x.to(device()), size % 2 == 0 ? 0 : 7);
      ASSERT_TRUE(Gelu(got, GeluForm::kTanh).ok());
      EXPECT_TRUE(IsAsGoodAs(got, at::gelu(x.to(at::kFloat), "tanh").to(dtype),
                             at::gelu(x.to(at::kDouble), "tanh")));
    }
  }
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

TEST_F(SoftcapTest, ResultsStayWithinTheCap) {
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

class QueryTemperatureTest : public DeviceTest {};

// Computes the reference in the given precision.
at::Tensor Tempered(const at::Tensor& q, const at::Tensor& positions, double attn_scale,
                    double floor_scale, int position_offset, at::ScalarType precision) {
  const at::Tensor factor =
      at::log1p(at::floor((positions.to(precision) + position_offset) / floor_scale)) * attn_scale +
      1;
  return q.to(precision) * factor.view({-1, 1, 1});
}

TEST_F(QueryTemperatureTest, AgreesWithFloat64AtAnyPositionAndStride) {
  std::mt19937 random(1);
  const at::Tensor positions =
      at::tensor(std::vector<int32_t>{0, 14, 15, 16, 30, 31, 8191, 131071, 1 << 27});
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& [floor_scale, offset] :
         {std::pair(1.0f, 1), std::pair(16.0f, 1), std::pair(16.0f, 0), std::pair(8192.0f, 1)}) {
      for (const int64_t gap : {0, 7, 8}) {  // elements between heads: dense, not aligned, aligned
        SCOPED_TRACE(testing::Message()
                     << dtype << " " << floor_scale << " " << offset << " + " << gap);
        const at::Tensor q = RandomNormal(random, {9, 5, 24}, dtype);
        const at::Tensor got = WithGaps(q.to(device()), gap);
        ASSERT_TRUE(TemperQueries(
                        got, positions.to(device()),
                        {.attn_scale = 0.5f, .floor_scale = floor_scale, .position_offset = offset})
                        .ok());
        EXPECT_TRUE(
            IsAsGoodAs(got, Tempered(q, positions, 0.5, floor_scale, offset, at::kFloat).to(dtype),
                       Tempered(q, positions, 0.5, floor_scale, offset, at::kDouble)));
      }
    }
  }
}

TEST_F(QueryTemperatureTest, QueriesChangeOnlyFromPositionFloorScaleMinusOne) {
  std::mt19937 random(2);
  const at::Tensor q = RandomNormal(random, {4, 3, 8}, at::kBFloat16);
  const at::Tensor got = q.clone().to(device());
  const at::Tensor positions = at::tensor(std::vector<int32_t>{0, 5, 14, 15});
  ASSERT_TRUE(
      TemperQueries(got, positions.to(device()), {.attn_scale = 1, .floor_scale = 16}).ok());
  EXPECT_TRUE(Equals(got.narrow(0, 0, 3), q.narrow(0, 0, 3)));
  EXPECT_FALSE(Equals(got.narrow(0, 3, 1), q.narrow(0, 3, 1)));  // floor(16 / 16) = 1
}

TEST_F(QueryTemperatureTest, PositionOffsetSaysWhereQueriesBeginToChange) {
  std::mt19937 random(4);
  const at::Tensor q = RandomNormal(random, {2, 3, 8}, at::kFloat);
  const at::Tensor got = q.clone().to(device());
  const at::Tensor positions = at::tensor(std::vector<int32_t>{15, 16});
  ASSERT_TRUE(TemperQueries(got, positions.to(device()),
                            {.attn_scale = 1, .floor_scale = 16, .position_offset = 0})
                  .ok());
  EXPECT_TRUE(Equals(got.narrow(0, 0, 1), q.narrow(0, 0, 1)));
  EXPECT_FALSE(Equals(got.narrow(0, 1, 1), q.narrow(0, 1, 1)));
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
