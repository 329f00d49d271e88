// The products with a rotary end have the bits of the product, and of LaunchRotary() of its results.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <limits>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/torch_dtype.h"
#include "gtest/gtest.h"
#include "runner/ops/few_rows/rotary_end.h"
#include "runner/ops/few_rows/tile_linear.h"
#include "runner/ops/rotary_args.h"
#include "runner/ops/skinny_linear_args.h"

namespace reprise {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr int kNumBlocks = 12, kBlockSize = 8, kMaxPositions = 50;

struct Shape {
  int in_features;
  int num_q_heads;
  int num_kv_heads;
  int head_dim;

  int num_heads() const { return num_q_heads + 2 * num_kv_heads; }
  int out_features() const { return num_heads() * head_dim; }
};

// Heads of one pair of 8 dims, of a number of pairs that is no power of two; numbers of heads that no
// tile divides; the shapes of 8B and 1B models.
constexpr Shape kShapes[] = {{512, 1, 1, 16},  {512, 5, 2, 48},    {1024, 7, 1, 80},
                             {1536, 3, 3, 64}, {4096, 32, 8, 128}, {2048, 32, 8, 64}};
// What the kernel for up to 8 rows does not serve.
constexpr Shape kTileShapes[] = {{40, 2, 1, 32}, {1000, 11, 1, 96}};

class RotaryEndGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    int major = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    if (major != 9) GTEST_SKIP() << "needs compute capability 9.0";
    table_ = at::cos(at::arange(kMaxPositions * 128, Options(DType::kFloat32)) * 0.7);
  }

  static at::TensorOptions Options(DType dtype) {
    return at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(ToScalarType(dtype));
  }

  // A projection of num_rows rows, whose last is beyond the slot mapping; every fifth slot is -1, and
  // one beyond the cache. Positions are out of the table, too.
  struct Projection {
    SkinnyLinearArgs product;  // of qkv
    RotaryArgs rotary;         // of qkv, into k and v
    at::Tensor x, weight, bias, qkv, k, v, positions, slots;
  };
  Projection Make(const Shape& shape, int num_rows, DType dtype, bool has_bias) const {
    Projection p;
    p.x = at::full({num_rows, shape.in_features + 8}, kNan, Options(dtype))
              .narrow(1, 0, shape.in_features);
    p.x.copy_(at::randn({num_rows, shape.in_features}, Options(dtype)));
    p.weight = at::full({shape.out_features(), shape.in_features + 8}, kNan, Options(dtype))
                   .narrow(1, 0, shape.in_features);
    p.weight.copy_(at::randn({shape.out_features(), shape.in_features}, Options(dtype)) * 0.05);
    if (has_bias) p.bias = at::randn({shape.out_features()}, Options(dtype));
    const at::TensorOptions longs = at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(at::kLong);
    p.positions = at::randint(-3, kMaxPositions + 3, {num_rows}, longs).to(at::kInt);
    p.slots = at::arange(num_rows, longs) + 9;
    p.slots.masked_fill_(at::arange(num_rows, longs).remainder(5) == 3, -1);
    if (num_rows > 6) p.slots[6] = kNumBlocks * kBlockSize;
    GiveMemory(shape, num_rows, dtype, p);
    return p;
  }

  // The same inputs, and other memory for what is written.
  Projection Copy(const Projection& p, const Shape& shape, int num_rows, DType dtype) const {
    Projection copy = p;
    GiveMemory(shape, num_rows, dtype, copy);
    return copy;
  }

  static void ExpectSame(const Projection& got, const Projection& expected, const Shape& shape) {
    const int q_size = shape.num_q_heads * shape.head_dim;
    EXPECT_FALSE(expected.qkv.narrow(1, 0, q_size).isnan().any().item<bool>());
    EXPECT_TRUE(at::equal(got.qkv.narrow(1, 0, q_size), expected.qkv.narrow(1, 0, q_size)));
    // Neither k nor v, nor what is behind the rows.
    EXPECT_TRUE(got.qkv.narrow(1, q_size, got.qkv.size(1) - q_size).isnan().all().item<bool>());
    EXPECT_TRUE(at::equal(got.k, expected.k));
    EXPECT_TRUE(at::equal(got.v, expected.v));
  }

  // One product in each of two ways.
  void Check(const Shape& shape, int num_rows, DType dtype, bool has_bias,
             absl::FunctionRef<absl::Status(const SkinnyLinearArgs&)> launch) {
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
    const Projection expected = Make(shape, num_rows, dtype, has_bias);
    const Projection got = Copy(expected, shape, num_rows, dtype);
    absl::Status status = launch(expected.product);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(LaunchRotary(expected.rotary, stream).ok());
    SkinnyLinearArgs args = got.product;
    const std::optional<RotaryEnd> end = RotaryEndOf(got.rotary);
    ASSERT_TRUE(end.has_value());
    args.rotary = *end;
    status = launch(args);
    ASSERT_TRUE(status.ok()) << status;
    ExpectSame(got, expected, shape);
  }

  at::Tensor table_;

 private:
  void GiveMemory(const Shape& shape, int num_rows, DType dtype, Projection& p) const {
    const int size = shape.out_features(), dim = shape.head_dim;
    p.qkv = at::full({num_rows, size + 8}, kNan, Options(dtype));
    p.k = at::full({kNumBlocks, kBlockSize, shape.num_kv_heads, dim}, 3, Options(dtype));
    p.v = p.k.clone();
    p.product = {.dtype = dtype,
                 .out_dtype = dtype,
                 .x = p.x.const_data_ptr(),
                 .x_stride = p.x.stride(0),
                 .weight = p.weight.const_data_ptr(),
                 .weight_stride = p.weight.stride(0),
                 .bias = p.bias.defined() ? p.bias.const_data_ptr() : nullptr,
                 .out = p.qkv.mutable_data_ptr(),
                 .out_stride = p.qkv.stride(0),
                 .num_rows = num_rows,
                 .out_features = size,
                 .in_features = shape.in_features};
    const auto heads = [&](int first, int count) -> HeadsView {
      return {.data = p.qkv.narrow(1, first * dim, count * dim).mutable_data_ptr(),
              .token_stride = p.qkv.stride(0),
              .head_stride = dim,
              .num_heads = count};
    };
    const auto view = [&](const at::Tensor& cache) -> KvView {
      return {.data = cache.mutable_data_ptr(),
              .block_stride = cache.stride(0),
              .token_stride = cache.stride(1),
              .head_stride = cache.stride(2),
              .dim_chunk = dim};
    };
    p.rotary = RotaryArgs();
    p.rotary.dtype = dtype;
    p.rotary.q = heads(0, shape.num_q_heads);
    p.rotary.k = heads(shape.num_q_heads, shape.num_kv_heads);
    p.rotary.v = heads(shape.num_q_heads + shape.num_kv_heads, shape.num_kv_heads);
    p.rotary.num_tokens = num_rows;
    p.rotary.head_dim_qk = p.rotary.head_dim_v = p.rotary.rotary_dim = dim;
    p.rotary.positions = p.positions.const_data_ptr<int32_t>();
    p.rotary.table = table_.const_data_ptr<float>();
    p.rotary.max_positions = kMaxPositions;
    p.rotary.slot_mapping = p.slots.const_data_ptr<int64_t>();
    p.rotary.num_slots = num_rows > 1 ? num_rows - 1 : 1;
    p.rotary.kv.k = view(p.k);
    p.rotary.kv.v = view(p.v);
    p.rotary.kv.dtype = dtype;
    p.rotary.kv.num_blocks = kNumBlocks;
    p.rotary.kv.block_size = kBlockSize;
    p.rotary.kv.num_kv_heads = shape.num_kv_heads;
    p.rotary.kv.head_dim_qk = p.rotary.kv.head_dim_v = dim;
  }
};

TEST_F(RotaryEndGpuTest, FewRowsHaveTheBitsOfTwoLaunches) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  int turn = 0;
  for (const Shape& shape : kShapes) {
    for (int num_rows = 1; num_rows <= kMaxSkinnyRows; ++num_rows) {
      for (int strip = 1; strip <= kMaxSkinnyStrip; ++strip, ++turn) {
        SCOPED_TRACE(testing::Message()
                     << shape.in_features << " -> " << shape.num_heads() << " heads of "
                     << shape.head_dim << ", rows " << num_rows << ", strip " << strip);
        const DType dtype = turn % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
        Check(shape, num_rows, dtype, turn % 3 == 0, [&](const SkinnyLinearArgs& args) {
          return LaunchSkinnyLinear(args, strip, stream);
        });
      }
    }
  }
}

TEST_F(RotaryEndGpuTest, TilesHaveTheBitsOfTwoLaunches) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  int num_checked = 0, turn = 0;
  const auto check = [&](const Shape& shape, const TileForm& form, int num_rows) {
    SCOPED_TRACE(testing::Message()
                 << shape.in_features << " -> " << shape.num_heads() << " heads of "
                 << shape.head_dim << ", rows " << num_rows << ", " << ToString(form));
    const DType dtype = ++turn % 2 == 0 ? DType::kBFloat16 : DType::kFloat16;
    Projection p = Make(shape, num_rows, dtype, false);
    SkinnyLinearArgs args = p.product;
    const bool serves_plain = TileLinearPlanOf(args, form).ok();
    args.rotary = *RotaryEndOf(p.rotary);
    ASSERT_TRUE(TileLinearServes(args));
    if (!serves_plain || !TileLinearPlanOf(args, form).ok()) return;  // too large
    ++num_checked;
    Check(shape, num_rows, dtype, turn % 3 == 0,
          [&](const SkinnyLinearArgs& args) { return LaunchTileLinear(args, form, stream); });
  };
  for (const TileForm& form : {TileForm{.cluster = 1, .row_groups = 1, .turns = 1, .boxes = 1},
                               {.cluster = 1, .row_groups = 1, .turns = 4, .boxes = 4},
                               {.cluster = 1, .row_groups = 4, .turns = 1, .boxes = 1},
                               {.cluster = 2, .row_groups = 1, .turns = 4, .boxes = 2},
                               {.cluster = 2, .row_groups = 2, .turns = 2, .boxes = 1},
                               {.cluster = 2, .row_groups = 1, .turns = 2, .boxes = 1},
                               {.cluster = 4, .row_groups = 1, .turns = 3, .boxes = 1},
                               {.cluster = 4, .row_groups = 3, .turns = 1, .boxes = 1}}) {
    for (const int num_rows : {1, 9, 16, 31, 40, 48, 64}) {
      for (const Shape& shape : kShapes) check(shape, form, num_rows);
      for (const Shape& shape : kTileShapes) check(shape, form, num_rows);
    }
  }
  EXPECT_GT(num_checked, 300);
}

using RotaryEndSmallTest = RotaryEndGpuTest;

// Few products, for compute-sanitizer: a cluster has two tiles, a CTA two strips.
TEST_F(RotaryEndSmallTest, TilesAndStripsFollowOneAnother) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const Shape shape = {512, 34, 8, 96};
  Check(shape, 9, DType::kBFloat16, true, [&](const SkinnyLinearArgs& args) {
    return LaunchTileLinear(args, {.cluster = 4, .row_groups = 1, .turns = 1, .boxes = 1}, stream);
  });
  Check(shape, 3, DType::kBFloat16, true,
        [&](const SkinnyLinearArgs& args) { return LaunchSkinnyLinear(args, 1, stream); });
}

TEST_F(RotaryEndGpuTest, OtherProductsAreRefused) {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(0);
  const Shape shape = {512, 5, 2, 48};
  const Projection p = Make(shape, 3, DType::kBFloat16, false);
  SkinnyLinearArgs good = p.product;
  good.rotary = *RotaryEndOf(p.rotary);
  EXPECT_TRUE(SkinnyLinearServes(good));
  EXPECT_TRUE(TileLinearServes(good));
  std::vector<SkinnyLinearArgs> bad(5, good);
  bad[0].is_gated = true;
  bad[1].out_dtype = DType::kFloat32;
  bad[2].rotary.num_q_heads = 4;
  bad[3].out_stride += 4;
  bad[4].rotary.head_dim = 24;
  bad[4].rotary.num_q_heads = 14;
  for (const SkinnyLinearArgs& args : bad) {
    EXPECT_FALSE(SkinnyLinearServes(args));
    EXPECT_FALSE(TileLinearServes(args));
    EXPECT_EQ(LaunchSkinnyLinear(args, 1, stream).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(LaunchTileLinear(args, {}, stream).code(), absl::StatusCode::kInvalidArgument);
  }
  SkinnyLinearArgs wide = good;
  wide.num_rows = kMaxTileLinearRows + 1;
  EXPECT_FALSE(TileLinearServes(wide));
}

}  // namespace
}  // namespace reprise
