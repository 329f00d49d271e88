#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <limits>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/quantise_weight.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

class Fp8LinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }

  static at::TensorOptions Options(at::ScalarType dtype) {
    return at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(dtype);
  }
};

Fp8Weight WeightOf(const at::Tensor& values, const at::Tensor& scales) {
  return {.values = static_cast<const uint8_t*>(values.const_data_ptr()),
          .stride = values.stride(0),
          .scales = scales.const_data_ptr<float>(),
          .scales_stride = scales.stride(0),
          .num_groups = static_cast<int>(scales.size(1)),
          .out_features = static_cast<int>(values.size(0)),
          .in_features = static_cast<int>(values.size(1))};
}

Fp8LinearArgs ArgsOf(const at::Tensor& x, const QuantisedWeight& weight,
                     const std::optional<at::Tensor>& bias, const at::Tensor& out) {
  return {.dtype = *FromScalarType(x.scalar_type()),
          .out_dtype = *FromScalarType(out.scalar_type()),
          .x = x.const_data_ptr(),
          .x_stride = x.stride(0),
          .weight = WeightOf(weight.values, weight.scales),
          .bias = bias.has_value() ? bias->const_data_ptr() : nullptr,
          .out = out.mutable_data_ptr(),
          .out_stride = out.stride(0),
          .num_rows = static_cast<int>(x.size(0))};
}

at::Tensor Exact(const QuantisedWeight& weight) {
  return Linear::CreateScaled(weight.values, weight.scales, std::nullopt)->Dequantised(at::kDouble);
}

TEST_F(Fp8LinearTest, EveryValueIsDequantised) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  // All 254 finite values, including -0: a row of 256 with one scale per 128 values.
  const at::Tensor bits = at::arange(256, Options(at::kByte)).reshape({1, 256});
  const at::Tensor finite = at::where(bits.bitwise_and(127).eq(127), bits - 1, bits);
  const at::Tensor values = finite.view(at::ScalarType::Float8_e4m3fn);
  const at::Tensor scales = at::full({1, 2}, 0.75, Options(at::kFloat));
  scales[0][1] = 3;
  const at::Tensor expected =
      Linear::CreateScaled(values, scales, std::nullopt)->Dequantised(at::kFloat);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    const at::Tensor out = at::empty({1, 256}, Options(dtype));
    ASSERT_TRUE(LaunchDequantise(WeightOf(values, scales), 0, 1, *FromScalarType(dtype),
                                 out.mutable_data_ptr(), stream)
                    .ok());
    EXPECT_TRUE(at::equal(out, expected.to(dtype))) << dtype;
  }
}

TEST_F(Fp8LinearTest, MatchesFloat64ForEveryTypeShapeAndRowCount) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  struct Shape {
    int in_features, out_features;
  };
  // One unit; fewer units than SMs; partial strips of 2 and of 3 units; several rounds of the ring.
  constexpr Shape kShapes[] = {
      {1024, 16}, {2048, 16 * 7}, {1024, 16 * 200}, {1024, 16 * 601}, {7168, 16 * 40}};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Shape& shape : kShapes) {
      for (const ScaledBy scaled_by : {ScaledBy::kRow, ScaledBy::kBlock}) {
        // Rows of different magnitudes, so that a scale of the wrong row or group is detected.
        const at::Tensor weight =
            at::randn({shape.out_features, shape.in_features}, Options(at::kFloat)) *
            at::rand({shape.out_features, 1}, Options(at::kFloat)) * 0.1;
        const QuantisedWeight small = *QuantiseWeight(weight, scaled_by);
        const at::Tensor exact = Exact(small);
        const at::Tensor bias = at::randn({shape.out_features}, Options(dtype));
        for (const at::ScalarType out_dtype : {dtype, at::kFloat}) {
          at::Tensor first;
          for (const int num_rows : {1, 3, 8, 9, 16, 17, 32, 33, 64, 100}) {
            SCOPED_TRACE(testing::Message() << shape.in_features << " -> " << shape.out_features
                                            << ", rows " << num_rows);
            const at::Tensor x = at::arange(num_rows * shape.in_features, Options(at::kFloat))
                                     .mul(0.37)
                                     .sin()
                                     .reshape({num_rows, shape.in_features})
                                     .to(dtype);
            const at::Tensor wide = x.to(at::kDouble);
            const at::Tensor sums = at::linear(wide, exact, bias.to(at::kDouble));
            const at::Tensor magnitudes = at::linear(wide.abs(), exact.abs()) + 1;
            const at::Tensor all =
                at::full({num_rows + 1, shape.out_features + 8},
                         std::numeric_limits<double>::infinity(), Options(out_dtype));
            const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, shape.out_features);
            const Fp8LinearArgs args = ArgsOf(x, small, bias, out);
            ASSERT_TRUE(Fp8LinearServes(args));
            const absl::Status status = LaunchFp8Linear(args, stream);
            ASSERT_TRUE(status.ok()) << status;
            // Only the sums (to float32) and the result are rounded.
            const double rounding = out_dtype == at::kFloat  ? 0
                                    : dtype == at::kBFloat16 ? 1.0 / 256
                                                             : 1.0 / 2048;
            EXPECT_LT(
                ((out.to(at::kDouble) - sums).abs() - sums.abs() * rounding - magnitudes * 2e-6)
                    .max()
                    .item<double>(),
                0);
            EXPECT_TRUE(all.narrow(1, shape.out_features, 8).isinf().all().item<bool>());
            EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
            if (!first.defined()) first = out[0].clone();
            EXPECT_TRUE(at::equal(out[0], first));
          }
        }
      }
    }
  }
}

TEST_F(Fp8LinearTest, EarlyWeightsWaitForXInACapturedChain) {
  // Each GEMM needs the result of the previous GEMM: a GEMM that reads x too early computes other
  // results. The weights total 128 MB, more than an H200's L2 cache. 40 rows need two passes over a
  // weight.
  constexpr int kSize = 4096;
  constexpr int kLayers = 8;
  std::vector<QuantisedWeight> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back(*QuantiseWeight(at::randn({kSize, kSize}, Options(at::kFloat)) * 0.015,
                                      i % 2 == 0 ? ScaledBy::kRow : ScaledBy::kBlock));
  }
  for (const int num_rows : {2, 40}) {
    const at::Tensor input = at::randn({num_rows, kSize}, Options(at::kBFloat16));
    std::vector<at::Tensor> hidden;
    for (int i = 0; i <= kLayers; ++i) hidden.push_back(input.clone());
    const auto run = [&](SkinnyWeights when) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
      for (int i = 0; i < kLayers; ++i) {
        Fp8LinearArgs args = ArgsOf(hidden[i], weights[i], std::nullopt, hidden[i + 1]);
        args.weights = when;
        const absl::Status status = LaunchFp8Linear(args, stream);
        ASSERT_TRUE(status.ok()) << status;
      }
    };
    run(SkinnyWeights::kAfterKernelBefore);
    const at::Tensor expected = hidden.back().clone();
    c10::cuda::getCurrentCUDAStream(0).synchronize();

    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
    const c10::cuda::CUDAStreamGuard guard(side);
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    run(SkinnyWeights::kEarly);
    graph.capture_end();
    for (int replay = 0; replay < 100; ++replay) {
      for (int i = 1; i <= kLayers; ++i) hidden[i].fill_(std::numeric_limits<double>::quiet_NaN());
      graph.replay();
      ASSERT_TRUE(at::equal(hidden.back(), expected)) << "replay " << replay;
    }
    side.synchronize();
  }
}

TEST_F(Fp8LinearTest, CapturedLinearMatchesBitwise) {
  const auto context = MakeLinearContext(c10::Device(c10::kCUDA, 0), {});
  ASSERT_TRUE(context.ok()) << context.status();
  const QuantisedWeight small =
      *QuantiseWeight(at::randn({4096, 4096}, Options(at::kFloat)) * 0.02, ScaledBy::kRow);
  const Linear linear = *Linear::CreateScaled(small.values, small.scales, std::nullopt);
  {
    // More than kMaxFp8Rows rows: needs scratch memory, which a capture must not allocate.
    const at::Tensor x = at::randn({200, 4096}, Options(at::kBFloat16));
    const at::Tensor out = at::empty({200, 4096}, Options(at::kBFloat16));
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
    c10::cuda::getCurrentCUDAStream(0).synchronize();
    const c10::cuda::CUDAStreamGuard guard(side);
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    const absl::Status status = linear.Apply(**context, x, out);
    graph.capture_end();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("warm up"));
  }
  for (const int num_rows : {1, 32, 64, 65, 200}) {
    const at::Tensor x = at::randn({num_rows, 4096}, Options(at::kBFloat16));
    const at::Tensor eager = at::empty({num_rows, 4096}, Options(at::kBFloat16));
    ASSERT_TRUE(linear.Apply(**context, x, eager).ok());
    const at::Tensor replayed = at::full({num_rows, 4096}, 7, Options(at::kBFloat16));
    c10::cuda::getCurrentCUDAStream(0).synchronize();
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
    const c10::cuda::CUDAStreamGuard guard(side);
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    ASSERT_TRUE(linear.Apply(**context, x, replayed).ok());
    graph.capture_end();
    for (int replay = 0; replay < 3; ++replay) {
      replayed.fill_(7);
      graph.replay();
      EXPECT_TRUE(at::equal(replayed, eager)) << num_rows;
    }
    side.synchronize();
  }
}

TEST_F(Fp8LinearTest, RejectsUnsupportedArguments) {
  const at::Tensor x = at::randn({2, 2048}, Options(at::kBFloat16));
  const QuantisedWeight small =
      *QuantiseWeight(at::randn({64, 2048}, Options(at::kFloat)), ScaledBy::kBlock);
  const at::Tensor out = at::empty({2, 64}, Options(at::kBFloat16));
  const Fp8LinearArgs good = ArgsOf(x, small, std::nullopt, out);
  EXPECT_TRUE(Fp8LinearServes(good));
  std::vector<Fp8LinearArgs> bad(9, good);
  bad[0].num_rows = 0;
  bad[1].weight.in_features = 1536;
  bad[2].weight.out_features = 60;
  bad[3].x_stride = 2049;
  bad[4].weight.stride = 2056;
  bad[5].dtype = DType::kFloat32;
  bad[6].out_dtype = DType::kFloat16;
  bad[7].weight.values = good.weight.values + 8;
  bad[8].weight.num_groups = 2;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  for (const Fp8LinearArgs& args : bad) {
    EXPECT_FALSE(Fp8LinearServes(args));
    EXPECT_EQ(LaunchFp8Linear(args, stream).code(), absl::StatusCode::kInvalidArgument);
  }
  const at::Tensor part = at::empty({64, 2048}, Options(at::kBFloat16));
  const auto dequantise = [&](const Fp8Weight& weight, int first, int count, DType dtype) {
    return LaunchDequantise(weight, first, count, dtype, part.mutable_data_ptr(), stream);
  };
  EXPECT_TRUE(dequantise(good.weight, 60, 4, DType::kBFloat16).ok());
  EXPECT_THAT(dequantise(good.weight, 60, 5, DType::kBFloat16).message(), HasSubstr("num_rows"));
  EXPECT_THAT(dequantise(bad[8].weight, 0, 4, DType::kBFloat16).message(), HasSubstr("num_groups"));
  EXPECT_THAT(dequantise(good.weight, 0, 4, DType::kFp8E4M3).message(), HasSubstr("dtype"));
}

}  // namespace
}  // namespace reprise
