#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/arange.h>
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
#include "reprise/runner/ops/fp8/fp8_tile_linear.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Some forms of Fp8TileForm(), and other forms; every size of cluster occurs.
constexpr TileForm kForms[] = {{.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
                               {.cluster = 2, .row_groups = 2, .turns = 2, .boxes = 1},
                               {.cluster = 4, .row_groups = 2, .turns = 2, .boxes = 1},
                               {.cluster = 2, .row_groups = 1, .turns = 4, .boxes = 1},
                               {.cluster = 1, .row_groups = 1, .turns = 3, .boxes = 2}};

// A single value; part of a box; sizes without common divisors; several tiles per cluster; more
// stages than fit.
struct Shape {
  int in_features, out_features;
};
constexpr Shape kShapes[] = {{1, 1}, {80, 100}, {1000, 257}, {4096, 130}, {2048, 30000}};

class Fp8TileLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    int major = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    if (major != 9) GTEST_SKIP() << "needs compute capability 9.0";
  }

  static at::TensorOptions Options(at::ScalarType dtype) {
    return at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(dtype);
  }

  // RandomValues() surrounds its rows with 448 and AmongNans() with NaN, so that reads beyond the
  // rows are detected.
  static at::Tensor RandomValues(int out_features, int in_features) {
    const at::Tensor all =
        at::full({out_features + 2, (in_features + 15) / 16 * 16 + 16}, 448, Options(at::kFloat));
    all.narrow(0, 1, out_features)
        .narrow(1, 0, in_features)
        .copy_(at::randn({out_features, in_features}, Options(at::kFloat)));
    return all.to(at::ScalarType::Float8_e4m3fn)
        .narrow(0, 1, out_features)
        .narrow(1, 0, in_features);
  }
  static at::Tensor RandomScales(int out_features, int num_groups) {
    return at::rand({out_features, num_groups}, Options(at::kFloat)) * 0.1 + 0.001;
  }
  static at::Tensor AmongNans(int num_rows, int in_features, at::ScalarType dtype) {
    const at::Tensor all =
        at::full({num_rows + 2, (in_features + 7) / 8 * 8 + 8}, kNan, Options(dtype));
    const at::Tensor inner = all.narrow(0, 1, num_rows).narrow(1, 0, in_features);
    inner.copy_(at::arange(num_rows * in_features, Options(at::kFloat))
                    .mul(0.37)
                    .sin()
                    .reshape({num_rows, in_features}));
    return inner;
  }
};

Fp8LinearArgs ArgsOf(const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales,
                     const std::optional<at::Tensor>& bias, const at::Tensor& out) {
  return {.dtype = *FromScalarType(x.scalar_type()),
          .out_dtype = *FromScalarType(out.scalar_type()),
          .x = x.const_data_ptr(),
          .x_stride = x.stride(0),
          .weight = {.values = static_cast<const uint8_t*>(values.const_data_ptr()),
                     .stride = values.stride(0),
                     .scales = scales.const_data_ptr<float>(),
                     .scales_stride = scales.stride(0),
                     .num_groups = static_cast<int>(scales.size(1)),
                     .out_features = static_cast<int>(values.size(0)),
                     .in_features = static_cast<int>(values.size(1))},
          .bias = bias.has_value() ? bias->const_data_ptr() : nullptr,
          .out = out.mutable_data_ptr(),
          .out_stride = out.stride(0),
          .num_rows = static_cast<int>(x.size(0))};
}

at::Tensor Exact(const at::Tensor& values, const at::Tensor& scales) {
  return Linear::CreateScaled(values, scales, std::nullopt)->Dequantised(at::kDouble);
}

TEST_F(Fp8TileLinearTest, MatchesFloat64ForEveryTypeFormShapeAndRowCount) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    for (const Shape& shape : kShapes) {
      const at::Tensor values = RandomValues(shape.out_features, shape.in_features);
      const at::Tensor bias = at::randn({shape.out_features}, Options(dtype));
      for (const bool has_groups : {false, true}) {
        const int num_groups = has_groups ? (shape.in_features - 1) / kFp8Group + 1 : 1;
        const at::Tensor scales = RandomScales(shape.out_features, num_groups);
        const at::Tensor exact = Exact(values, scales);
        for (const TileForm& form : kForms) {
          at::Tensor first;  // row 0 of the first result with these columns
          int columns = 0;
          for (const int num_rows : {1, 9, 16, 17, 33, 40, 41, 64}) {
            SCOPED_TRACE(testing::Message()
                         << shape.in_features << " -> " << shape.out_features << ", groups "
                         << num_groups << ", rows " << num_rows << ", " << ToString(form));
            const at::ScalarType out_dtype = num_rows % 3 == 0 ? at::kFloat : dtype;
            const at::Tensor x = AmongNans(num_rows, shape.in_features, dtype);
            const at::Tensor wide = x.to(at::kDouble);
            const at::Tensor sums = at::linear(wide, exact, bias.to(at::kDouble));
            const at::Tensor magnitudes = at::linear(wide.abs(), exact.abs()) + 1;
            const at::Tensor all =
                at::full({num_rows + 1, shape.out_features + 3},
                         std::numeric_limits<double>::infinity(), Options(out_dtype));
            const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, shape.out_features);
            const Fp8LinearArgs args = ArgsOf(x, values, scales, bias, out);
            ASSERT_TRUE(Fp8TileLinearServes(args));
            const absl::Status status = LaunchFp8TileLinear(args, form, stream);
            if (!Fp8TilePlanOf(args, form).ok()) {
              EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
              EXPECT_EQ(form.boxes, 2);  // the form is too large
              continue;
            }
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
            EXPECT_TRUE(all.narrow(1, shape.out_features, 3).isinf().all().item<bool>());
            EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
            // Results are bitwise identical for all numbers of rows with the same number of
            // columns.
            if (TileColumns(num_rows) != columns) first = at::Tensor();
            columns = TileColumns(num_rows);
            if (first.defined() && first.scalar_type() == out_dtype) {
              EXPECT_TRUE(at::equal(out[0], first));
            }
            if (!first.defined()) first = out[0].clone();
          }
        }
      }
    }
  }
}

TEST_F(Fp8TileLinearTest, MultipliesEveryFp8Value) {
  // All 254 finite values, including subnormal numbers and -0; one value per product.
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const at::Tensor bits = at::arange(256, Options(at::kByte)).reshape({256, 1});
  const at::Tensor finite = at::where(bits.bitwise_and(127).eq(127), bits - 1, bits);
  for (int place = 0; place < 16; ++place) {
    const at::Tensor values = at::full({256, 16}, 0, Options(at::kByte));
    values.narrow(1, place, 1).copy_(finite);
    const at::Tensor fp8 = values.view(at::ScalarType::Float8_e4m3fn);
    const at::Tensor scales = at::full({256, 1}, 1, Options(at::kFloat));
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
      const at::Tensor x = at::full({2, 16}, 1, Options(dtype));
      const at::Tensor out = at::full({2, 256}, kNan, Options(at::kFloat));
      ASSERT_TRUE(
          LaunchFp8TileLinear(ArgsOf(x, fp8, scales, std::nullopt, out), kForms[0], stream).ok());
      EXPECT_TRUE(at::equal(out[1], fp8.to(at::kFloat).sum(1))) << place;
    }
  }
}

// Sums are kept in units of a group's scale. Scales may differ by any factor, and may be 0.
TEST_F(Fp8TileLinearTest, ScalesOfNeighbouringGroupsMayHaveAnyRatio) {
  constexpr int kIn = 1024, kOut = 192, kRows = 20;
  const at::Tensor values = RandomValues(kOut, kIn);
  const at::Tensor scales = RandomScales(kOut, kIn / kFp8Group);
  const double factors[] = {1e-12, 0, 1e6, 1e-20, 0, 1, 1e-3, 0};
  for (int group = 0; group < kIn / kFp8Group; ++group) {
    scales.narrow(1, group, 1).mul_(factors[group]);
  }
  const at::Tensor x = AmongNans(kRows, kIn, at::kBFloat16);
  const at::Tensor exact = Exact(values, scales);
  const at::Tensor sums = at::linear(x.to(at::kDouble), exact);
  const at::Tensor magnitudes = at::linear(x.to(at::kDouble).abs(), exact.abs());
  for (const TileForm& form : kForms) {
    const at::Tensor out = at::full({kRows, kOut}, kNan, Options(at::kFloat));
    ASSERT_TRUE(LaunchFp8TileLinear(ArgsOf(x, values, scales, std::nullopt, out), form,
                                    c10::cuda::getCurrentCUDAStream(0))
                    .ok());
    EXPECT_LT(((out.to(at::kDouble) - sums).abs() - magnitudes * 2e-6).max().item<double>(), 0)
        << ToString(form);
  }
}

TEST_F(Fp8TileLinearTest, EarlyWeightsWaitForXInACapturedChain) {
  // Each GEMM needs the result of the previous GEMM: a GEMM that reads x too early computes other
  // results. The weights total 128 MB, more than an H200's L2 cache.
  constexpr int kSize = 4096;
  constexpr int kLayers = 8;
  std::vector<at::Tensor> values, scales;
  for (int i = 0; i < kLayers; ++i) {
    values.push_back(RandomValues(kSize, kSize));
    scales.push_back(
        at::full({kSize, i % 2 == 0 ? 1 : kSize / kFp8Group}, 0.015, Options(at::kFloat)));
  }
  for (const int num_rows : {12, 40}) {
    const at::Tensor input = at::randn({num_rows, kSize}, Options(at::kBFloat16));
    std::vector<at::Tensor> hidden;
    for (int i = 0; i <= kLayers; ++i) hidden.push_back(input.clone());
    const auto run = [&](SkinnyWeights when) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
      for (int i = 0; i < kLayers; ++i) {
        Fp8LinearArgs args = ArgsOf(hidden[i], values[i], scales[i], std::nullopt, hidden[i + 1]);
        args.weights = when;
        const absl::Status status = LaunchFp8TileLinear(args, kForms[i % 4], stream);
        ASSERT_TRUE(status.ok()) << status;
      }
    };
    run(SkinnyWeights::kAfterKernelBefore);
    const at::Tensor expected = hidden.back().clone();
    ASSERT_FALSE(expected.isnan().any().item<bool>());
    c10::cuda::getCurrentCUDAStream(0).synchronize();

    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
    const c10::cuda::CUDAStreamGuard guard(side);
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    run(SkinnyWeights::kEarly);
    graph.capture_end();
    for (int replay = 0; replay < 100; ++replay) {
      for (int i = 1; i <= kLayers; ++i) hidden[i].fill_(kNan);
      graph.replay();
      ASSERT_TRUE(at::equal(hidden.back(), expected)) << "replay " << replay;
    }
    side.synchronize();
  }
}

TEST_F(Fp8TileLinearTest, RejectsUnsupportedArguments) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const at::Tensor x = at::randn({20, 1024}, Options(at::kBFloat16));
  const at::Tensor values = RandomValues(64, 1024);
  const at::Tensor scales = RandomScales(64, 8);
  const at::Tensor out = at::full({20, 64}, 0, Options(at::kBFloat16));
  const Fp8LinearArgs good = ArgsOf(x, values, scales, std::nullopt, out);
  EXPECT_TRUE(Fp8TileLinearServes(good));
  std::vector<Fp8LinearArgs> bad(11, good);
  bad[0].num_rows = 0;
  bad[1].num_rows = kMaxTileLinearRows + 1;
  bad[2].weight.in_features = 0;
  bad[3].weight.out_features = 0;
  bad[4].x_stride = 1025;
  bad[5].weight.stride = 1032;
  bad[6].dtype = DType::kFloat32;
  bad[7].out_dtype = DType::kFloat16;
  bad[8].weight.values = good.weight.values + 8;
  bad[9].weight.num_groups = 7;
  bad[10].x_stride = 512;
  for (const Fp8LinearArgs& args : bad) {
    EXPECT_FALSE(Fp8TileLinearServes(args));
    EXPECT_EQ(LaunchFp8TileLinear(args, {}, stream).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(LaunchFp8TileLinear(good, {.cluster = 3}, stream).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
