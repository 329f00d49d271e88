#include <ATen/TensorOperators.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
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
#include "reprise/runner/ops/few_rows/tile_linear.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Shape {
  int in_features;
  int out_features;
};

// A single element; less than a box, a tile and a cluster's stages; sizes without common divisors;
// several tiles per cluster; more stages than fit.
constexpr Shape kShapes[] = {{1, 1},       {64, 8},     {40, 100},    {320, 257},   {1000, 33},
                             {1096, 4999}, {4096, 130}, {14336, 640}, {2048, 30000}};

constexpr TileForm kForms[] = {{.cluster = 1, .row_groups = 1, .turns = 1, .boxes = 1},
                               {.cluster = 1, .row_groups = 1, .turns = 4, .boxes = 4},
                               {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
                               {.cluster = 2, .row_groups = 1, .turns = 4, .boxes = 2},
                               {.cluster = 2, .row_groups = 2, .turns = 2, .boxes = 1},
                               {.cluster = 2, .row_groups = 1, .turns = 3, .boxes = 1},
                               {.cluster = 4, .row_groups = 1, .turns = 3, .boxes = 1},
                               {.cluster = 4, .row_groups = 2, .turns = 1, .boxes = 2},
                               {.cluster = 4, .row_groups = 3, .turns = 1, .boxes = 1}};

class TileLinearTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    int major = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    if (major != 9) GTEST_SKIP() << "needs compute capability 9.0";
  }

  static at::TensorOptions Options(DType dtype) {
    return at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(ToScalarType(dtype));
  }

  // Returns `rows` random rows whose neighbours in memory (before, after and between the rows) are
  // NaN. The stride is the smallest aligned stride plus 8.
  static at::Tensor AmongNans(int64_t rows, int64_t elements, DType dtype) {
    const at::Tensor all = at::full({rows + 2, (elements + 7) / 8 * 8 + 8}, kNan, Options(dtype));
    const at::Tensor inner = all.narrow(0, 1, rows).narrow(1, 0, elements);
    inner.copy_(at::randn({rows, elements}, Options(DType::kFloat32)));
    return inner;
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

double Rounding(DType dtype) {
  return dtype == DType::kFloat32 ? 0 : dtype == DType::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
}

// Compares GEMMs of `num_rows` rows with float64, for every form. NaN surrounds x and the weight.
class TileLinearProductTest : public TileLinearTest {
 protected:
  void CheckShape(const Shape& shape, DType dtype, DType out_dtype, std::vector<int> row_counts) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
    const at::Tensor weight = AmongNans(shape.out_features, shape.in_features, dtype);
    const at::Tensor bias = at::randn({shape.out_features}, Options(dtype));
    const at::Tensor max_x = AmongNans(kMaxWideTileRows, shape.in_features, dtype);
    for (const TileForm& form : kForms) {
      at::Tensor first;  // row 0 of the first result with these columns
      int columns = 0;
      for (int num_rows : row_counts) {
        SCOPED_TRACE(testing::Message()
                     << shape.in_features << " -> " << shape.out_features << ", rows " << num_rows
                     << ", form " << form.cluster << " " << form.row_groups << " " << form.turns
                     << " " << form.boxes);
        // Rows after the last row are NaN.
        const at::Tensor x = AmongNans(num_rows, shape.in_features, dtype);
        x.copy_(max_x.narrow(0, 0, num_rows));
        const at::Tensor sums =
            at::mm(x.to(at::kDouble), weight.to(at::kDouble).t()) + bias.to(at::kDouble);
        const at::Tensor magnitudes =
            at::mm(x.to(at::kDouble).abs(), weight.to(at::kDouble).abs().t()) + 1;
        const at::Tensor all =
            at::full({num_rows + 1, shape.out_features + 3},
                     std::numeric_limits<double>::infinity(), Options(out_dtype));
        const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, shape.out_features);
        const SkinnyLinearArgs args = ArgsOf(x, weight, bias, out);
        ASSERT_TRUE(TileLinearServes(args));
        const absl::Status status = LaunchTileLinear(args, form, stream);
        if (!TileLinearPlanOf(args, form).ok()) {
          ++num_too_large_;
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
          continue;
        }
        ASSERT_TRUE(status.ok()) << status;
        ++num_checked_;
        const at::Tensor error = (out.to(at::kDouble) - sums).abs();
        const at::Tensor excess = error - sums.abs() * Rounding(out_dtype) - magnitudes * 2e-6;
        EXPECT_TRUE((excess < 0).all().item<bool>()) << excess.max().item<double>();
        EXPECT_TRUE(all.narrow(1, shape.out_features, 3).isinf().all().item<bool>());
        EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
        // Results are bitwise identical for all numbers of rows with the same number of columns.
        if (TileColumns(num_rows) != columns) first = out[0].clone();
        columns = TileColumns(num_rows);
        EXPECT_TRUE(at::equal(out[0], first));
      }
    }
  }

  int num_checked_ = 0;
  int num_too_large_ = 0;  // the form is too large for the rows
};

TEST_F(TileLinearProductTest, MatchesFloat64ForEverySizeOfX) {
  for (const Shape& shape : kShapes) {
    CheckShape(shape, DType::kBFloat16, DType::kBFloat16,
               {1, 9, 16, 17, 31, 32, 33, 40, 41, 48, 64});
  }
  EXPECT_GT(num_checked_, 8 * num_too_large_);
}

TEST_F(TileLinearProductTest, MatchesFloat64ForWideX) {
  for (const Shape& shape : kShapes) {
    CheckShape(shape, DType::kBFloat16, DType::kBFloat16, {65, 72, 95, 96, 97, 120, 127, 128});
    CheckShape(shape, DType::kFloat16, DType::kFloat16, {66, 96, 100, 128});
  }
  // Two of the nine forms have one source.
  EXPECT_EQ(num_checked_, 2 * 12 * static_cast<int>(std::size(kShapes)));
}

TEST_F(TileLinearProductTest, MatchesFloat64ForEveryType) {
  for (const Shape& shape : kShapes) {
    CheckShape(shape, DType::kBFloat16, DType::kFloat32, {3, 31, 40});
    CheckShape(shape, DType::kFloat16, DType::kFloat16, {3, 31, 40});
    CheckShape(shape, DType::kFloat16, DType::kFloat32, {3, 31, 40});
  }
}

using TileLinearSmallTest = TileLinearTest;

// A small number of GEMMs, for compute-sanitizer. Clusters of several CTAs compute two tiles, so
// that buffers are reused.
TEST_F(TileLinearSmallTest, ConsecutiveTilesReuseBuffers) {
  constexpr int kInFeatures = 256, kRepeats = 17;
  int num_checked = 0;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const at::Tensor weight =
      (at::eye(kInFeatures, Options(DType::kBFloat16)) * 2).repeat({kRepeats, 1});
  for (const TileForm& form : kForms) {
    for (const int num_rows : {9, 33, 70, 100}) {
      SCOPED_TRACE(testing::Message() << "cluster " << form.cluster << ", rows " << num_rows);
      const at::Tensor x = at::arange(num_rows * kInFeatures, Options(DType::kFloat32))
                               .remainder(251)
                               .reshape({num_rows, kInFeatures})
                               .to(at::kBFloat16);
      const at::Tensor out = at::zeros({num_rows, weight.size(0)}, x.options());
      const SkinnyLinearArgs args = ArgsOf(x, weight, std::nullopt, out);
      if (!TileLinearPlanOf(args, form).ok()) continue;  // too large, or several sources
      const absl::Status status = LaunchTileLinear(args, form, stream);
      ASSERT_TRUE(status.ok()) << status;
      ++num_checked;
      EXPECT_TRUE(at::equal(out.cpu(), (x.cpu() * 2).repeat({1, kRepeats})));
    }
  }
  EXPECT_GT(num_checked, 13);
}

TEST_F(TileLinearTest, GatedGemmMatchesGemmThenGateBitwise) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  int num_checked = 0, turn = 0;
  for (const Shape& shape : {Shape{64, 16},
                             {64, 48},
                             {320, 272},
                             {1088, 4992},
                             {4096, 144},
                             {14336, 640},
                             {2048, 30000}}) {
    for (const TileForm& form : kForms) {
      for (const int num_rows : {1, 16, 31, 40, 48, 64, 72, 96, 128}) {
        const DType dtype = ++turn % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
        const Activation activation = static_cast<Activation>(turn % 3);
        SCOPED_TRACE(testing::Message() << shape.in_features << " -> " << shape.out_features
                                        << ", rows " << num_rows << ", " << ToString(form));
        const int size = shape.out_features / 2;
        const at::Tensor weight = AmongNans(shape.out_features, shape.in_features, dtype);
        weight.mul_(0.05);
        std::optional<at::Tensor> bias;
        if (turn % 5 < 2) bias = at::randn({shape.out_features}, Options(dtype));
        const at::Tensor x = AmongNans(num_rows, shape.in_features, dtype);
        const at::Tensor gate_up = at::full({num_rows, shape.out_features}, kNan, Options(dtype));
        const at::Tensor expected = at::full({num_rows, size}, kNan, Options(dtype));
        SkinnyLinearArgs args = ArgsOf(x, weight, bias, gate_up);
        if (!TileLinearPlanOf(args, form).ok()) continue;
        ASSERT_TRUE(LaunchTileLinear(args, form, stream).ok());
        ASSERT_TRUE(GateMul(activation, gate_up, expected).ok());
        const at::Tensor all = at::full({num_rows + 1, size + 3},
                                        std::numeric_limits<double>::infinity(), Options(dtype));
        const at::Tensor out = all.narrow(0, 0, num_rows).narrow(1, 0, size);
        args = ArgsOf(x, weight, bias, out);
        args.is_gated = true;
        args.activation = activation;
        ASSERT_TRUE(TileLinearServes(args));
        const absl::Status status = LaunchTileLinear(args, form, stream);
        if (!TileLinearPlanOf(args, form).ok()) continue;  // the form has larger tiles
        ASSERT_TRUE(status.ok()) << status;
        ++num_checked;
        EXPECT_FALSE(expected.isnan().any().item<bool>());
        EXPECT_TRUE(at::equal(out, expected));
        EXPECT_TRUE(all.narrow(1, size, 3).isinf().all().item<bool>());
        EXPECT_TRUE(all[num_rows].isinf().all().item<bool>());
      }
    }
  }
  EXPECT_GT(num_checked, 200);
}

TEST_F(TileLinearTest, NanPropagatesOnlyToDependentResults) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const at::Tensor weight = AmongNans(300, 520, DType::kBFloat16);
  const at::Tensor x = AmongNans(20, 520, DType::kBFloat16);
  weight[77][519] = kNan;
  x[19][0] = kNan;
  const at::Tensor out = at::full({20, 300}, 0, Options(DType::kBFloat16));
  const absl::Status status = LaunchTileLinear(ArgsOf(x, weight, std::nullopt, out), {}, stream);
  ASSERT_TRUE(status.ok()) << status;
  const at::Tensor is_nan = out.isnan();
  EXPECT_TRUE(is_nan[19].all().item<bool>());
  EXPECT_TRUE(is_nan.select(1, 77).all().item<bool>());
  EXPECT_EQ(is_nan.sum().item<int64_t>(), 300 + 20 - 1);
}

TEST_F(TileLinearTest, EarlyWeightsWaitForXInACapturedChain) {
  // Each GEMM needs the result of the previous GEMM: a GEMM that reads x too early computes other
  // results. The weights total 127 MB, more than an H200's L2 cache.
  constexpr int kSize = 2816;
  constexpr int kLayers = 8;
  std::vector<at::Tensor> weights;
  for (int i = 0; i < kLayers; ++i) {
    weights.push_back(at::randn({kSize, kSize}, Options(DType::kBFloat16)) * 0.019);
  }
  for (int num_rows : {20, 64, 96, 128}) {
    const at::Tensor input = at::randn({num_rows, kSize}, Options(DType::kBFloat16));
    std::vector<at::Tensor> hidden;
    for (int i = 0; i <= kLayers; ++i) hidden.push_back(input.clone());
    const auto run = [&](SkinnyWeights when) {
      const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
      for (int i = 0; i < kLayers; ++i) {
        SkinnyLinearArgs args = ArgsOf(hidden[i], weights[i], std::nullopt, hidden[i + 1]);
        args.weights = when;
        // kForms[0] replaces a form that is too large for the rows, or, with more than 64 rows,
        // has several sources.
        TileForm form = kForms[i % std::size(kForms)];
        if (!TileLinearPlanOf(args, form).ok()) form = kForms[0];
        const absl::Status status = LaunchTileLinear(args, form, stream);
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
    for (int replay = 0; replay < 200; ++replay) {
      for (int i = 1; i <= kLayers; ++i) hidden[i].fill_(kNan);
      graph.replay();
      ASSERT_TRUE(at::equal(hidden.back(), expected)) << "replay " << replay;
    }
  }
}

TEST_F(TileLinearTest, LinearUsesAndReportsTheKernelIfItIsFastest) {
  const auto context = MakeLinearContext(c10::Device(c10::kCUDA, 0), {});
  ASSERT_TRUE(context.ok()) << context.status();
  // The kernel for up to 8 rows does not support these in_features.
  const at::Tensor weight = at::randn({4096, 4104}, Options(DType::kBFloat16)) * 0.02;
  const auto linear = Linear::Create(weight, std::nullopt);
  ASSERT_TRUE(linear.ok());
  int num_tiles = 0;
  for (const int num_rows : {1, 9, 32, 64, 65}) {
    const at::Tensor x = at::randn({num_rows, 4104}, Options(DType::kBFloat16));
    const at::Tensor out = at::full({num_rows, 4096}, kNan, Options(DType::kBFloat16));
    ASSERT_TRUE(linear->Apply(**context, x, out).ok());
    const at::Tensor expected = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
    EXPECT_LT((out.to(at::kDouble) - expected).abs().max().item<double>(), 0.05);
    const LinearChoice choice = (*context)->Choices().back();
    EXPECT_EQ(choice.num_rows, num_rows);
    EXPECT_EQ(choice.skinny_strip, 0);
    if (choice.tile_form.has_value()) {
      EXPECT_LE(num_rows, kMaxTileLinearRows);
      EXPECT_THAT(ToString(choice), HasSubstr("tiles, cluster"));
      ++num_tiles;
    }
  }
  EXPECT_GE(num_tiles, 1);
}

TEST_F(TileLinearTest, WideLinearUsesTheKernelOnlyWithTheActivation) {
  const auto context = MakeLinearContext(c10::Device(c10::kCUDA, 0), {});
  ASSERT_TRUE(context.ok()) << context.status();
  constexpr int kSize = 14336;
  const at::Tensor weight = at::randn({2 * kSize, 4096}, Options(DType::kBFloat16)) * 0.02;
  const auto linear = Linear::Create(weight, std::nullopt);
  ASSERT_TRUE(linear.ok());
  for (const int num_rows : {72, 96, 128, 129}) {
    SCOPED_TRACE(num_rows);
    const at::Tensor x = at::randn({num_rows, 4096}, Options(DType::kBFloat16));
    const at::Tensor gate_up = at::full({num_rows, 2 * kSize}, kNan, Options(DType::kBFloat16));
    const at::Tensor out = at::full({num_rows, kSize}, kNan, Options(DType::kBFloat16));
    const at::Tensor expected = at::full({num_rows, kSize}, kNan, Options(DType::kBFloat16));
    ASSERT_TRUE(linear->ApplyGated(**context, Activation::kSilu, x, gate_up, out).ok());
    const LinearChoice gated = (*context)->Choices().back();
    EXPECT_TRUE(gated.is_gated);
    EXPECT_TRUE(num_rows <= kMaxWideTileRows || !gated.tile_form.has_value());
    ASSERT_TRUE(linear->Apply(**context, x, gate_up).ok());
    EXPECT_FALSE((*context)->Choices().back().tile_form.has_value());
    ASSERT_TRUE(GateMul(Activation::kSilu, gate_up, expected).ok());
    // Sums may be added in another order.
    const at::Tensor error = (out.to(at::kDouble) - expected.to(at::kDouble)).abs();
    EXPECT_TRUE((error <= expected.to(at::kDouble).abs() * 0.02 + 0.02).all().item<bool>());
  }
}

TEST_F(TileLinearTest, RejectsUnsupportedArguments) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const at::Tensor x = at::randn({20, 1024}, Options(DType::kBFloat16));
  const at::Tensor weight = at::randn({64, 1024}, Options(DType::kBFloat16));
  const at::Tensor out = at::empty({20, 64}, Options(DType::kBFloat16));
  const SkinnyLinearArgs good = ArgsOf(x, weight, std::nullopt, out);
  EXPECT_TRUE(TileLinearServes(good));
  SkinnyLinearArgs wide = good;
  wide.num_rows = kMaxWideTileRows;
  EXPECT_TRUE(TileLinearServes(wide));
  EXPECT_EQ(LaunchTileLinear(wide, {.cluster = 2, .row_groups = 1, .turns = 1, .boxes = 1}, stream)
                .code(),
            absl::StatusCode::kInvalidArgument);
  std::vector<SkinnyLinearArgs> bad(15, good);
  bad[14].num_rows = kMaxTileLinearRows + 1;
  bad[14].out_dtype = DType::kFloat32;
  for (int i = 11; i < 14; ++i) bad[i].is_gated = true;
  bad[11].out_dtype = DType::kFloat32;
  bad[12].out_features = 56;
  bad[13].in_features = 1000;
  bad[0].num_rows = 0;
  bad[1].num_rows = kMaxWideTileRows + 1;
  bad[2].in_features = 0;
  bad[3].out_features = 0;
  bad[4].x_stride = 1025;
  bad[5].weight_stride = 1028;
  bad[6].dtype = DType::kFloat32;
  bad[7].out_dtype = DType::kFloat16;
  bad[8].weight = static_cast<const char*>(good.weight) + 2;
  bad[9].x_stride = 512;
  bad[10].weight_stride = 512;
  for (const SkinnyLinearArgs& args : bad) {
    EXPECT_FALSE(TileLinearServes(args));
    EXPECT_EQ(LaunchTileLinear(args, {}, stream).code(), absl::StatusCode::kInvalidArgument);
  }
  std::vector<TileForm> forms(5);
  forms[0].cluster = 3;
  forms[1].row_groups = 0;
  forms[2].turns = 0;
  forms[3].row_groups = kMaxTileGroups;  // multiplied by turns
  forms[4].boxes = 3;
  for (const TileForm& form : forms) {
    EXPECT_EQ(LaunchTileLinear(good, form, stream).code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace reprise
