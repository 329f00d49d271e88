// Linear::ApplyRotaryWriteKv() beside Apply() and RotaryWriteKv().

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "base/torch_dtype.h"
#include "cache/storage/kv_cache.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runner/ops/linear.h"
#include "runner/ops/rotary.h"
#include "runner/ops/rotary_table.h"
#include "runner/ops/test_device.h"
#include "runner/ops/test_tensors.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

struct Case {
  int num_rows;
  int num_q_heads;
  int num_kv_heads;
  int head_dim;
  int rotary_dim;
  int in_features;
  DType dtype;
  DType cache_dtype;
  KvForm form = KvForm::kPair;
  bool has_bias = false;
  bool has_norm = false;
};

constexpr DType kBf16 = DType::kBFloat16, kHalf = DType::kFloat16;

// First those that few rows may take one kernel for; then those that they may not.
const Case kCases[] = {
    {1, 16, 4, 128, 128, 1024, kBf16, kBf16},
    {8, 16, 4, 128, 128, 1024, kBf16, kBf16, KvForm::kPacked, true},
    {3, 32, 8, 64, 64, 1024, kHalf, kHalf},
    {20, 16, 4, 128, 128, 1024, kBf16, kBf16, KvForm::kPair, true},
    {64, 32, 8, 64, 64, 1024, kBf16, kBf16},
    {40, 20, 5, 80, 80, 1032, kHalf, kHalf},
    {65, 16, 4, 128, 128, 1024, kBf16, kBf16},
    {2, 3, 1, 24, 24, 64, kBf16, kBf16},
    {5, 16, 4, 128, 64, 1024, kBf16, kBf16},
    {5, 16, 4, 128, 128, 1024, kBf16, DType::kFp8E4M3},
    {5, 16, 4, 128, 128, 1024, kBf16, kHalf},
    {5, 16, 4, 128, 128, 1024, kBf16, kBf16, KvForm::kKPacked},
    {5, 16, 4, 128, 128, 1024, kBf16, kBf16, KvForm::kPair, false, true},
    {5, 4, 2, 32, 32, 96, DType::kFloat32, DType::kFloat32},
};

class RotaryLinearTest : public DeviceTest {
 protected:
  static constexpr int kMaxPositions = 100, kNumBlocks = 30, kBlockSize = 8;

  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    absl::StatusOr<std::unique_ptr<LinearContext>> context = MakeLinearContext(device(), {});
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }

  static at::Tensor Table(int rotary_dim) {
    std::vector<float> frequencies(rotary_dim / 2);
    for (int i = 0; i < rotary_dim / 2; ++i) {
      frequencies[i] = std::pow(1e4f, -2.0f * i / rotary_dim);
    }
    return MakeRotaryTable(frequencies, kMaxPositions, 1.0f, device()).value();
  }

  KvCache Cache(const Case& c) const {
    const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                               .num_blocks = kNumBlocks,
                                               .block_size = kBlockSize,
                                               .num_kv_heads = c.num_kv_heads,
                                               .head_dim_qk = c.head_dim,
                                               .head_dim_v = c.head_dim,
                                               .dtype = c.cache_dtype,
                                               .form = c.form});
    KvCache cache = *KvCache::Create(layout, device());
    EXPECT_TRUE(cache.Fill(3).ok());
    return cache;
  }

  std::unique_ptr<LinearContext> context_;
};

TEST_F(RotaryLinearTest, IsTheProductAndRotaryWriteKv) {
  std::mt19937 random(1);
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << c.num_rows << " rows, " << c.num_q_heads << "/"
                                    << c.num_kv_heads << " heads of " << c.head_dim << ", "
                                    << DTypeName(c.dtype) << ", " << DTypeName(c.cache_dtype));
    const at::ScalarType dtype = ToScalarType(c.dtype);
    const int num_heads = c.num_q_heads + 2 * c.num_kv_heads, size = num_heads * c.head_dim;
    const at::Tensor weight =
        (RandomNormal(random, {size, c.in_features}, at::kFloat) / 32).to(dtype).to(device());
    std::optional<at::Tensor> bias;
    if (c.has_bias) bias = RandomNormal(random, {size}, dtype).to(device());
    const absl::StatusOr<Linear> linear = Linear::Create(weight, bias);
    ASSERT_TRUE(linear.ok()) << linear.status();
    const at::Tensor x = RandomNormal(random, {c.num_rows, c.in_features}, dtype).to(device());
    std::vector<int> positions(c.num_rows);
    for (int& position : positions) position = random() % kMaxPositions;
    // Every fifth row is not written, and the last is beyond the mapping.
    std::vector<int64_t> slots;
    for (int row = 0; row + 1 < c.num_rows || row == 0; ++row) {
      slots.push_back(row % 5 == 4 ? -1 : kBlockSize + 3 * row);
    }
    KvCache together = Cache(c), apart = Cache(c);
    const at::TensorOptions ints = at::TensorOptions().dtype(at::kInt);
    RotaryWrite write = {.num_q_heads = c.num_q_heads,
                         .num_kv_heads = c.num_kv_heads,
                         .positions = at::tensor(positions, ints).to(device()),
                         .table = Table(c.rotary_dim),
                         .kv = together.layer(0),
                         .slot_mapping = at::tensor(slots).to(device())};
    if (c.has_norm) {
      write.norm =
          HeadNormOptions{.q_weight = RandomNormal(random, {c.head_dim}, dtype).to(device()),
                          .k_weight = RandomNormal(random, {c.head_dim}, dtype).to(device()),
                          .eps = 1e-5f};
    }
    const at::Tensor qkv = at::empty({c.num_rows, size + 8}, x.options()).narrow(1, 0, size);
    const at::Tensor expected = at::empty({c.num_rows, size}, x.options());
    const absl::Status status = linear->ApplyRotaryWriteKv(*context_, x, qkv, write);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_TRUE(linear->Apply(*context_, x, expected).ok());
    const auto heads = [&](int first, int count) {
      return expected.narrow(1, first * c.head_dim, count * c.head_dim)
          .unflatten(1, {count, c.head_dim});
    };
    ASSERT_TRUE(RotaryWriteKv(heads(0, c.num_q_heads), heads(c.num_q_heads, c.num_kv_heads),
                              heads(c.num_q_heads + c.num_kv_heads, c.num_kv_heads),
                              write.positions, write.table, apart.layer(0), write.slot_mapping,
                              write.norm)
                    .ok());
    // Another kernel may add up in another order: results may be a unit apart, of q 1/128 of values
    // that are sums of a thousand terms.
    const double tolerance = device().is_cpu() ? 0 : c.dtype == DType::kFloat32 ? 1e-4 : 0.05;
    const auto expect_close = [&](const at::Tensor& got, const at::Tensor& wanted) {
      const at::Tensor a = got.to(at::kDouble), b = wanted.to(at::kDouble);
      EXPECT_TRUE(((a - b).abs() <= tolerance * (b.abs() + 1)).all().item<bool>());
    };
    const int q_size = c.num_q_heads * c.head_dim;
    expect_close(qkv.narrow(1, 0, q_size), expected.narrow(1, 0, q_size));
    for (size_t i = 0; i < apart.tensors(0).size(); ++i) {
      // Cells of rows that are not written hold what they held.
      if (c.cache_dtype == DType::kFp8E4M3 && device().is_cuda()) continue;  // units of 1/8
      expect_close(together.tensors(0)[i], apart.tensors(0)[i]);
    }
  }
}

#ifdef REPRISE_TEST_ON_GPU
TEST_F(RotaryLinearTest, FewRowsMayTakeOneKernelAndTheChoiceSaysSo) {
  std::mt19937 random(2);
  // 12 MB: timed.
  const Case c = {1, 32, 8, 64, 64, 2048, kBf16, kBf16};
  const at::Tensor weight =
      (RandomNormal(random, {48 * 64, 2048}, at::kFloat) / 32).to(at::kBFloat16).to(device());
  const absl::StatusOr<Linear> linear = Linear::Create(weight, std::nullopt);
  ASSERT_TRUE(linear.ok());
  KvCache cache = Cache(c);
  int num_own = 0;
  for (const int num_rows : {1, 8, 16, 32, 64, 65}) {
    const at::Tensor x = RandomNormal(random, {num_rows, 2048}, at::kBFloat16).to(device());
    const at::Tensor qkv = at::empty({num_rows, 48 * 64}, x.options());
    const at::TensorOptions options(device());
    const absl::Status status = linear->ApplyRotaryWriteKv(
        *context_, x, qkv,
        {.num_q_heads = 32,
         .num_kv_heads = 8,
         .positions = at::empty({num_rows}, options.dtype(at::kInt)).fill_(3),
         .table = Table(64),
         .kv = cache.layer(0),
         .slot_mapping = at::empty({num_rows}, options.dtype(at::kLong)).fill_(-1)});
    ASSERT_TRUE(status.ok()) << status;
    const LinearChoice choice = context_->Choices().back();
    EXPECT_TRUE(choice.is_rotated);
    EXPECT_THAT(ToString(choice), HasSubstr("rotated, rows"));
    const bool is_own = choice.skinny_strip > 0 || choice.tile_form.has_value();
    EXPECT_FALSE(is_own && num_rows > kMaxTileLinearRows);
    num_own += is_own ? 1 : 0;
  }
  EXPECT_GE(num_own, 1);
}
#endif

TEST_F(RotaryLinearTest, NamesWhatIsWrong) {
  const at::TensorOptions options = at::TensorOptions(device()).dtype(at::kBFloat16);
  const Case c = {2, 2, 1, 16, 16, 32, kBf16, kBf16};
  KvCache cache = Cache(c);
  const absl::StatusOr<Linear> linear =
      Linear::Create(at::empty({4 * 16, 32}, options).fill_(0), std::nullopt);
  ASSERT_TRUE(linear.ok());
  const at::Tensor x = at::empty({2, 32}, options).fill_(0);
  const at::Tensor qkv = at::empty({2, 4 * 16}, options);
  const RotaryWrite good = {.num_q_heads = 2,
                            .num_kv_heads = 1,
                            .positions = at::empty({2}, options.dtype(at::kInt)).fill_(0),
                            .table = Table(16),
                            .kv = cache.layer(0),
                            .slot_mapping = at::empty({2}, options.dtype(at::kLong)).fill_(9)};
  EXPECT_TRUE(linear->ApplyRotaryWriteKv(*context_, x, qkv, good).ok());
  RotaryWrite bad = good;
  bad.num_q_heads = 3;
  EXPECT_EQ(linear->ApplyRotaryWriteKv(*context_, x, qkv, bad),
            absl::InvalidArgumentError("weight must have the rows of whole heads: expected a "
                                       "multiple of 5 (3 of q, 1 of k and of v), got 64"));
  bad = good;
  bad.num_kv_heads = 0;
  EXPECT_FALSE(linear->ApplyRotaryWriteKv(*context_, x, qkv, bad).ok());
  bad = good;
  bad.positions = good.positions.to(at::kLong);
  EXPECT_FALSE(linear->ApplyRotaryWriteKv(*context_, x, qkv, bad).ok());
  bad = good;
  bad.kv.num_kv_heads = 2;
  EXPECT_FALSE(linear->ApplyRotaryWriteKv(*context_, x, qkv, bad).ok());
  EXPECT_FALSE(linear->ApplyRotaryWriteKv(*context_, x, qkv.narrow(1, 0, 48), good).ok());
  const at::Tensor none = at::empty({0, 32}, options);
  EXPECT_TRUE(
      linear->ApplyRotaryWriteKv(*context_, none, at::empty({0, 4 * 16}, options), good).ok());
}

}  // namespace
}  // namespace reprise
