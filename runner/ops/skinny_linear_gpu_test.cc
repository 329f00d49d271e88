#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
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
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/skinny_linear_args.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

struct Shape {
  int in_features;
  int out_features;
};

// One unit; fewer units than SMs; more units, not a multiple of a strip; several rounds of the
// ring.
constexpr Shape kShapes[] = {
    {512, 16}, {1024, 16 * 7}, {512, 16 * 301}, {4096, 16 * 130}, {14336, 16 * 40}};

class SkinnyLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }

  static at::TensorOptions Options(DType dtype) {
    return at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(ToScalarType(dtype));
  }
};

SkinnyLinearArgs ArgsOf(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, const at::Tensor& out) {
  return {.dtype = *FromScalarType(x.scalar_type()),
          .out_dtype = *FromScalarType(out.scalar_type()),
          .x = x.const_data_ptr(),
          .x_stride = x.stride(0),
          .weight = weight.const_data_ptr(),
          .weight_stride = weight.stride(0),
          .bias = bias.has_value() ? bias->const_data_ptr() : nullptr,
          .out = out.mutable_data_ptr(),
          .out_stride = out.stride(0),
          .num_rows = static_cast<int>(x.size(0)),
          .out_features = static_cast<int>(weight.size(0)),
          .in_features = static_cast<int>(weight.size(1))};
}

TEST_F(SkinnyLinearTest, MatchesTheReferenceForEveryTypeShapeAndRowCount) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Shape& shape : kShapes) {
      // The rows of the weight have gaps, as in a slice of a wider matrix.
      const at::Tensor weight =
          at::randn({shape.out_features, shape.in_features + 64}, Options(dtype))
              .narrow(1, 0, shape.in_features) *
          0.05;
      const at::Tensor apart =
          at::randn({shape.out_features, shape.in_features + 64}, Options(dtype))
              .narrow(1, 0, shape.in_features);
      apart.copy_(weight);
      const at::Tensor bias = at::randn({shape.out_features}, Options(dtype));
      for (const DType out_dtype : {dtype, DType::kFloat32}) {
        at::Tensor first;  // row 0 of the first result
        for (int num_rows = 1; num_rows <= kMaxSkinnyRows; ++num_rows) {
          const at::Tensor x = at::arange(num_rows * shape.in_features, Options(DType::kFloat32))
                                   .mul(0.37)
                                   .sin()
                                   .reshape({num_rows, shape.in_features})
                                   .to(ToScalarType(dtype));
          const at::Tensor sums =
              at::mm(x.to(at::kDouble), weight.to(at::kDouble).t()) + bias.to(at::kDouble);
          const at::Tensor magnitudes =
              at::mm(x.to(at::kDouble).abs(), weight.to(at::kDouble).abs().t()) + 1;
          for (int strip = 1; strip <= kMaxSkinnyStrip; ++strip) {
            SCOPED_TRACE(testing::Message() << shape.in_features << " -> " << shape.out_features
                                            << ", rows " << num_rows << ", strip " << strip);
            // Memory beyond the result must not change.
            const at::Tensor all =
                at::full({num_rows + 1, shape.out_features + 8},
                         std::numeric_limits<double>::infinity(), Options(out_dtype));
            const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, shape.out_features);
            const SkinnyLinearArgs args = ArgsOf(x, apart, bias, out);
            ASSERT_TRUE(SkinnyLinearServes(args));
            const absl::Status status = LaunchSkinnyLinear(args, strip, stream);
            ASSERT_TRUE(status.ok()) << status;
            const at::Tensor error = (out.to(at::kDouble) - sums).abs();
            const double rounding = out_dtype == DType::kFloat32 ? 0
                                    : dtype == DType::kBFloat16  ? 1.0 / 256
                                                                 : 1.0 / 2048;
            EXPECT_LT((error - sums.abs() * rounding - magnitudes * 2e-6).max().item<double>(), 0);
            EXPECT_TRUE(all.narrow(1, shape.out_features, 8).isinf().all().item<bool>());
            EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
            // Row 0 must be bitwise identical for every strip and every number of rows.
            if (!first.defined()) first = out[0].clone();
            EXPECT_TRUE(at::equal(out[0], first));
          }
        }
      }
    }
  }
}

TEST_F(SkinnyLinearTest, GatedGemmMatchesGemmThenGateBitwise) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  int turn = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Shape& shape : kShapes) {
      const at::Tensor weight =
          at::randn({shape.out_features, shape.in_features}, Options(dtype)) * 0.05;
      for (int num_rows = 1; num_rows <= kMaxSkinnyRows; ++num_rows, ++turn) {
        const Activation activation = static_cast<Activation>(turn % 3);
        std::optional<at::Tensor> bias;
        if (turn % 2 == 0) bias = at::randn({shape.out_features}, Options(dtype));
        const at::Tensor x = at::randn({num_rows, shape.in_features}, Options(dtype));
        const at::Tensor gate_up = at::empty({num_rows, shape.out_features}, Options(dtype));
        const int size = shape.out_features / 2;
        const at::Tensor expected = at::empty({num_rows, size}, Options(dtype));
        ASSERT_TRUE(LaunchSkinnyLinear(ArgsOf(x, weight, bias, gate_up), 1, stream).ok());
        ASSERT_TRUE(GateMul(activation, gate_up, expected).ok());
        for (int strip = 1; strip <= kMaxSkinnyStrip; ++strip) {
          SCOPED_TRACE(testing::Message() << shape.in_features << " -> " << shape.out_features
                                          << ", rows " << num_rows << ", strip " << strip);
          // Memory beyond the result must not change.
          const at::Tensor all = at::full({num_rows + 1, size + 3},
                                          std::numeric_limits<double>::infinity(), Options(dtype));
          const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, size);
          SkinnyLinearArgs args = ArgsOf(x, weight, bias, out);
          args.is_gated = true;
          args.activation = activation;
          ASSERT_TRUE(SkinnyLinearServes(args));
          const absl::Status status = LaunchSkinnyLinear(args, strip, stream);
          ASSERT_TRUE(status.ok()) << status;
          EXPECT_TRUE(at::equal(out, expected));
          EXPECT_TRUE(all.narrow(1, size, 3).isinf().all().item<bool>());
          EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
        }
      }
    }
  }
}

TEST_F(SkinnyLinearTest, EarlyWeightsWaitForXInACapturedChain) {
  // Each GEMM needs the result of the previous GEMM: a GEMM that reads x too early computes other
  // results. The weights total 64 MB, more than an H200's L2 cache.
  constexpr int kSize = 2048;
  constexpr int kLayers = 8;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back(at::randn({kSize, kSize}, Options(DType::kBFloat16)) * 0.03);
  }
  const at::Tensor input = at::randn({3, kSize}, Options(DType::kBFloat16));
  std::vector<at::Tensor> hidden;
  for (int i = 0; i <= kLayers; ++i) hidden.push_back(input.clone());
  const auto run = [&](SkinnyWeights when) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
    for (int i = 0; i < kLayers; ++i) {
      SkinnyLinearArgs args = ArgsOf(hidden[i], weights[i], std::nullopt, hidden[i + 1]);
      args.weights = when;
      const absl::Status status = LaunchSkinnyLinear(args, 1 + i % kMaxSkinnyStrip, stream);
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
  for (int replay = 0; replay < 200; ++replay) {
    for (int i = 1; i <= kLayers; ++i) hidden[i].fill_(std::numeric_limits<double>::quiet_NaN());
    graph.replay();
    ASSERT_TRUE(at::equal(hidden.back(), expected)) << "replay " << replay;
  }
}

TEST_F(SkinnyLinearTest, LinearUsesAndReportsTheKernelIfItIsFastest) {
  const auto context = MakeLinearContext(c10::Device(c10::kCUDA, 0), {});
  ASSERT_TRUE(context.ok()) << context.status();
  const at::Tensor weight = at::randn({4096, 4096}, Options(DType::kBFloat16)) * 0.02;
  const auto linear = Linear::Create(weight, std::nullopt);
  ASSERT_TRUE(linear.ok());
  for (const int num_rows : {1, 8, 9}) {
    const at::Tensor x = at::randn({num_rows, 4096}, Options(DType::kBFloat16));
    const at::Tensor out = at::empty({num_rows, 4096}, Options(DType::kBFloat16));
    ASSERT_TRUE(linear->Apply(**context, x, out).ok());
    const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
    EXPECT_LT((out.to(at::kDouble) - expected).abs().max().item<double>(), 0.05);
    const LinearChoice choice = (*context)->Choices().back();
    EXPECT_EQ(choice.num_rows, num_rows);
    if (num_rows > kMaxSkinnyRows) {
      EXPECT_EQ(choice.skinny_strip, 0);
    }
    if (choice.skinny_strip > 0) {
      EXPECT_THAT(ToString(choice), HasSubstr("few rows, strip"));
    }
  }
}

TEST_F(SkinnyLinearTest, RejectsUnsupportedArguments) {
  const at::Tensor x = at::randn({2, 1024}, Options(DType::kBFloat16));
  const at::Tensor weight = at::randn({64, 1024}, Options(DType::kBFloat16));
  const at::Tensor out = at::empty({2, 64}, Options(DType::kBFloat16));
  const SkinnyLinearArgs good = ArgsOf(x, weight, std::nullopt, out);
  EXPECT_TRUE(SkinnyLinearServes(good));
  std::vector<SkinnyLinearArgs> bad(10, good);
  bad[9].is_gated = true;
  bad[9].out_dtype = DType::kFloat32;
  bad[0].num_rows = 0;
  bad[1].num_rows = kMaxSkinnyRows + 1;
  bad[2].in_features = 768;
  bad[3].out_features = 60;
  bad[4].x_stride = 1025;
  bad[5].weight_stride = 1028;
  bad[6].dtype = DType::kFloat32;
  bad[7].out_dtype = DType::kFloat16;
  bad[8].weight = static_cast<const char*>(good.weight) + 2;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  for (const SkinnyLinearArgs& args : bad) {
    EXPECT_FALSE(SkinnyLinearServes(args));
    EXPECT_EQ(LaunchSkinnyLinear(args, 1, stream).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(LaunchSkinnyLinear(good, 0, stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LaunchSkinnyLinear(good, kMaxSkinnyStrip + 1, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
