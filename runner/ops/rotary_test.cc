#include "reprise/runner/ops/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/element_access.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/runner/ops/head_norm.h"
#include "reprise/runner/ops/rotary_table.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"

namespace reprise {
namespace {

constexpr int kMaxPositions = 100;

std::vector<float> Frequencies(int rotary_dim) {
  std::vector<float> frequencies(rotary_dim / 2);
  for (int i = 0; i < rotary_dim / 2; ++i) frequencies[i] = std::pow(1e4f, -2.0f * i / rotary_dim);
  return frequencies;
}

at::Tensor Ints(const std::vector<int>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kInt));
}

// Returns x [num_tokens, heads, dim] rotated, in the precision of `dtype`.
at::Tensor Rotated(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& table,
                   at::ScalarType dtype = at::kDouble) {
  const int64_t half = table.size(1) / 2;
  const at::Tensor rows = table.cpu().index_select(0, positions).to(dtype).unsqueeze(1);
  const at::Tensor cos = rows.narrow(2, 0, half);
  const at::Tensor sin = rows.narrow(2, half, half);
  const at::Tensor wide = x.to(dtype);
  const at::Tensor first = wide.narrow(2, 0, half);
  const at::Tensor second = wide.narrow(2, half, half);
  return at::cat({first * cos - second * sin, second * cos + first * sin,
                  wide.narrow(2, 2 * half, x.size(2) - 2 * half)},
                 2);
}

double EpsilonOf(DType dtype) {
  switch (dtype) {
    case DType::kFp8E4M3:
      return 0x1p-4;
    case DType::kFp8E5M2:
      return 0x1p-3;
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-21;  // float32 sums of two products
  }
}

// A step's q, k, v as views of a fused projection, on the device.
struct Projection {
  at::Tensor fused, q, k, v;
};

Projection MakeProjection(std::mt19937& random, int64_t num_tokens, int64_t num_q_heads,
                          int64_t num_kv_heads, int64_t dim_qk, int64_t dim_v, at::ScalarType dtype,
                          at::Device device) {
  const int64_t q_size = num_q_heads * dim_qk;
  const int64_t k_size = num_kv_heads * dim_qk;
  const int64_t v_size = num_kv_heads * dim_v;
  Projection p;
  p.fused = RandomNormal(random, {num_tokens, q_size + k_size + v_size}, dtype).to(device);
  p.q = p.fused.narrow(1, 0, q_size).unflatten(1, {num_q_heads, dim_qk});
  p.k = p.fused.narrow(1, q_size, k_size).unflatten(1, {num_kv_heads, dim_qk});
  p.v = p.fused.narrow(1, q_size + k_size, v_size).unflatten(1, {num_kv_heads, dim_v});
  return p;
}

class RotaryTest : public DeviceTest {
 protected:
  static at::Tensor Table(int rotary_dim) {
    return *MakeRotaryTable(Frequencies(rotary_dim), kMaxPositions, 1.0f, device());
  }
};

TEST_F(RotaryTest, RotatesQAndKInPlace) {
  std::mt19937 random(1);
  for (at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& [dim, rotary_dim] :
         {std::pair(128, 128), {64, 64}, {80, 32}, {6, 4}, {2, 2}}) {
      for (int64_t num_tokens : {1, 5, 300}) {
        SCOPED_TRACE(testing::Message() << dtype << " " << rotary_dim << " of " << dim);
        Projection p = MakeProjection(random, num_tokens, 6, 2, dim, 4, dtype, device());
        std::vector<int> position(num_tokens);
        for (int& value : position) value = random() % kMaxPositions;
        const at::Tensor positions = Ints(position);
        const at::Tensor table = Table(rotary_dim);
        const at::Tensor before = p.fused.clone();
        const at::Tensor q = p.q.cpu().clone();
        const at::Tensor k = p.k.cpu().clone();
        const absl::Status status = Rotary(p.q, p.k, positions.to(device()), table);
        ASSERT_TRUE(status.ok()) << status;
        EXPECT_TRUE(
            IsAsGoodAs(p.q, Rotated(q, positions, table, dtype), Rotated(q, positions, table)));
        EXPECT_TRUE(
            IsAsGoodAs(p.k, Rotated(k, positions, table, dtype), Rotated(k, positions, table)));
        EXPECT_TRUE(Equals(p.v, before.narrow(1, 8 * dim, 8).unflatten(1, {2, 4})));  // untouched
      }
    }
  }
}

struct CacheCase {
  KvForm form;
  KvOrder order;
  DType dtype;
  at::ScalarType activations;
  int block_size;
  int dim_qk, dim_v, rotary_dim;
};

const CacheCase kCacheCases[] = {
    {KvForm::kPair, KvOrder::kNHD, DType::kFloat32, at::kFloat, 16, 64, 64, 64},
    {KvForm::kPair, KvOrder::kHND, DType::kBFloat16, at::kBFloat16, 16, 128, 128, 128},
    {KvForm::kPair, KvOrder::kNHD, DType::kBFloat16, at::kFloat, 5, 64, 32, 16},
    {KvForm::kPacked, KvOrder::kHND, DType::kFloat16, at::kHalf, 1, 64, 64, 64},
    {KvForm::kPacked, KvOrder::kNHD, DType::kFp8E4M3, at::kBFloat16, 16, 128, 128, 64},
    {KvForm::kDiffKv, KvOrder::kNHD, DType::kFp8E5M2, at::kHalf, 8, 96, 64, 96},
    {KvForm::kDiffKv, KvOrder::kHND, DType::kFloat32, at::kBFloat16, 4, 6, 10, 4},
    {KvForm::kKPacked, KvOrder::kNHD, DType::kBFloat16, at::kBFloat16, 16, 64, 64, 64},
    {KvForm::kKPacked, KvOrder::kNHD, DType::kFloat32, at::kFloat, 3, 20, 7, 8},
};

// Writes the expected contents of the cache, computed in float64.
void WriteReference(const KvView& view, DType dtype, int block_size, const at::Tensor& values,
                    double scale, const std::vector<int64_t>& slots) {
  const at::Tensor dense = values.to(at::kDouble).contiguous();  // [num_tokens, heads, dim]
  const double* value = dense.const_data_ptr<double>();
  for (int64_t token = 0; token < dense.size(0); ++token) {
    for (int64_t head = 0; head < dense.size(1); ++head) {
      for (int64_t d = 0; d < dense.size(2); ++d, ++value) {
        if (token >= static_cast<int64_t>(slots.size()) || slots[token] < 0) continue;
        const int64_t slot = slots[token];
        StoreElement(view.data, dtype, view.Offset(slot / block_size, slot % block_size, head, d),
                     *value / scale);
      }
    }
  }
}

void ExpectCachesAgree(const KvCache& got, const KvCache& expected, double epsilon) {
  for (size_t i = 0; i < expected.tensors(0).size(); ++i) {
    const at::Tensor a = got.tensors(0)[i].cpu().to(at::kDouble);
    const at::Tensor b = expected.tensors(0)[i].to(at::kDouble);
    // Values may differ by one unit if the float32 result is in another rounding interval.
    const at::Tensor excess = (a - b).abs() - (b.abs() * 2 * epsilon + epsilon / 64 + 1e-6);
    EXPECT_LE(at::nan_to_num(excess, 1.0).max().item<double>(), 0) << "tensor " << i;
  }
}

TEST_F(RotaryTest, WritesRotatedKeysAndValuesIntoEveryLayout) {
  std::mt19937 random(2);
  for (const CacheCase& c : kCacheCases) {
    for (int num_tokens : {1, 17, 40}) {
      SCOPED_TRACE(testing::Message() << c.form << " " << c.order << " " << c.dtype << " from "
                                      << c.activations << ", " << num_tokens << " tokens");
      constexpr int kHeads = 2;
      constexpr int kBlocks = 60;
      const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                                 .num_blocks = kBlocks,
                                                 .block_size = c.block_size,
                                                 .num_kv_heads = kHeads,
                                                 .head_dim_qk = c.dim_qk,
                                                 .head_dim_v = c.dim_v,
                                                 .dtype = c.dtype,
                                                 .order = c.order,
                                                 .form = c.form});
      KvCache cache = *KvCache::Create(layout, device());
      KvCache expected = *KvCache::Create(layout, at::kCPU);
      ASSERT_TRUE(cache.Fill(3).ok());
      ASSERT_TRUE(expected.Fill(3).ok());
      const bool is_fp8 = IsFp8(c.dtype);
      cache.SetScales(0, {.value = is_fp8 ? 0.25f : 1}, {.value = is_fp8 ? 2.0f : 1});

      Projection p =
          MakeProjection(random, num_tokens, 4, kHeads, c.dim_qk, c.dim_v, c.activations, device());
      std::vector<int> position(num_tokens);
      for (int& value : position) value = random() % kMaxPositions;
      const at::Tensor positions = Ints(position);
      // Distinct slots in any order; every fifth token is not written; the last two tokens are
      // beyond the mapping.
      std::vector<int64_t> slots(kBlocks * c.block_size);
      for (size_t i = 0; i < slots.size(); ++i) slots[i] = i;
      std::shuffle(slots.begin(), slots.end(), random);
      slots.resize(std::max(num_tokens - 2, 1));
      for (size_t i = 4; i < slots.size(); i += 5) slots[i] = -1;

      const at::Tensor table = Table(c.rotary_dim);
      const at::Tensor q = p.q.cpu().clone();
      const KvLayer& layer = expected.layer(0);
      WriteReference(layer.k, c.dtype, c.block_size, Rotated(p.k.cpu(), positions, table),
                     is_fp8 ? 0.25 : 1, slots);
      WriteReference(layer.v, c.dtype, c.block_size, p.v.cpu(), is_fp8 ? 2 : 1, slots);
      const at::Tensor k_before = p.k.clone();

      const absl::Status status = RotaryWriteKv(p.q, p.k, p.v, positions.to(device()), table,
                                                cache.layer(0), at::tensor(slots).to(device()));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(IsAsGoodAs(p.q, Rotated(q, positions, table, c.activations),
                             Rotated(q, positions, table)));
      EXPECT_TRUE(Equals(p.k, k_before));
      ExpectCachesAgree(cache, expected, EpsilonOf(c.dtype));
    }
  }
}

// Covers heads that one launch can normalise and rotate (all dims are rotated; their number is a
// power of two or not), and heads that need two launches.
TEST_F(RotaryTest, NormalisesHeadsBeforeTheRotation) {
  std::mt19937 random(6);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    for (const auto& [dim, rotary_dim] :
         {std::pair(128, 128), {64, 64}, {96, 96}, {256, 256}, {80, 32}, {6, 6}}) {
      for (const bool has_weights : {true, false}) {
        SCOPED_TRACE(testing::Message() << dtype << " " << rotary_dim << " of " << dim
                                        << (has_weights ? ", weights" : ""));
        const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                                   .num_blocks = 10,
                                                   .block_size = 4,
                                                   .num_kv_heads = 3,
                                                   .head_dim_qk = dim,
                                                   .head_dim_v = dim,
                                                   .dtype = *FromScalarType(dtype)});
        KvCache fused = *KvCache::Create(layout, device());
        KvCache apart = *KvCache::Create(layout, device());
        ASSERT_TRUE(fused.Fill(3).ok());
        ASSERT_TRUE(apart.Fill(3).ok());
        constexpr int kTokens = 9;
        const Projection p = MakeProjection(random, kTokens, 5, 3, dim, dim, dtype, device());
        Projection other = p;
        other.q = p.q.clone();
        other.k = p.k.clone();
        HeadNormOptions norm = {
            .eps = 1e-5f, .form = random() % 2 == 0 ? NormWeight::kScale : NormWeight::kOnePlus};
        if (has_weights) {
          norm.q_weight = RandomNormal(random, {dim}, dtype).to(device());
          norm.k_weight = RandomNormal(random, {dim}, dtype).to(device());
        }
        const at::Tensor positions = Ints({0, 3, 99, 4, 5, 6, 7, 8, 50}).to(device());
        const at::Tensor slots =
            at::tensor(std::vector<int64_t>{4, 39, -1, 5, 6, 7, 30, 31, 8}).to(device());
        const at::Tensor table = Table(rotary_dim);
        ASSERT_TRUE(NormaliseHeads(other.q, other.k, norm).ok());
        ASSERT_TRUE(
            RotaryWriteKv(other.q, other.k, p.v, positions, table, apart.layer(0), slots).ok());
        const absl::Status status =
            RotaryWriteKv(p.q, p.k, p.v, positions, table, fused.layer(0), slots, norm);
        ASSERT_TRUE(status.ok()) << status;
        // The squares may be added in another order.
        const double epsilon = EpsilonOf(*FromScalarType(dtype));
        const auto expect_near = [&](const at::Tensor& got, const at::Tensor& want) {
          const at::Tensor difference =
              (got.cpu().to(at::kDouble) - want.cpu().to(at::kDouble)).abs();
          const at::Tensor bound = want.cpu().to(at::kDouble).abs() * (4 * epsilon) + 4 * epsilon;
          EXPECT_LE((difference - bound).max().item<double>(), 0);
        };
        expect_near(p.q, other.q);
        for (int i = 0; i < 2; ++i) expect_near(fused.tensors(0)[i], apart.tensors(0)[i]);
      }
    }
  }
}

TEST_F(RotaryTest, RejectsNormWeightsOfTheWrongShape) {
  std::mt19937 random(7);
  const Projection p = MakeProjection(random, 2, 4, 2, 64, 64, at::kFloat, device());
  const HeadNormOptions norm = {.q_weight = RandomNormal(random, {32}, at::kFloat).to(device())};
  const at::Tensor before = p.fused.clone();
  EXPECT_EQ(
      Rotary(p.q, p.k, Ints({0, 1}).to(device()), Table(64), norm),
      absl::InvalidArgumentError("q_weight must be [head_dim] float32: expected [64], got [32]"));
  EXPECT_TRUE(Equals(p.fused, before));
}

TEST_F(RotaryTest, DividesByTheScaleOfEachHead) {
  const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                             .num_blocks = 2,
                                             .block_size = 1,
                                             .num_kv_heads = 2,
                                             .head_dim_qk = 8,
                                             .head_dim_v = 8,
                                             .dtype = DType::kFp8E4M3});
  KvCache cache = *KvCache::Create(layout, device());
  const at::Tensor scales = at::tensor(std::vector<float>{0.5f, 4.0f}).to(device());
  const Scale per_head = {.data = scales.const_data_ptr<float>(), .head_stride = 1};
  cache.SetScales(0, per_head, per_head);
  const at::Tensor ones =
      at::empty({1, 2, 8}, at::TensorOptions(device()).dtype(at::kBFloat16)).fill_(1);
  ASSERT_TRUE(RotaryWriteKv(ones.clone(), ones, ones, Ints({0}).to(device()), Table(8),
                            cache.layer(0), at::tensor({int64_t{1}}).to(device()))
                  .ok());
  for (const at::Tensor& tensor : cache.tensors(0)) {
    const at::Tensor written = tensor.cpu().to(at::kFloat).select(0, 1);  // position 0: unrotated
    EXPECT_EQ(written.select(1, 0).min().item<float>(), 2);               // 1 / 0.5
    EXPECT_EQ(written.select(1, 1).max().item<float>(), 0.25f);           // 1 / 4
  }
}

TEST_F(RotaryTest, OutOfRangePositionsAndSlotsWriteNothingElse) {
  std::mt19937 random(3);
  const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                             .num_blocks = 4,
                                             .block_size = 2,
                                             .num_kv_heads = 1,
                                             .head_dim_qk = 8,
                                             .head_dim_v = 8});
  KvCache cache = *KvCache::Create(layout, device());
  ASSERT_TRUE(cache.Fill(3).ok());
  Projection p = MakeProjection(random, 2, 1, 1, 8, 8, at::kFloat, device());
  const auto run = [&](int position, int64_t slot) {
    return RotaryWriteKv(p.q, p.k, p.v, Ints({0, position}).to(device()), Table(8), cache.layer(0),
                         at::tensor({int64_t{-1}, slot}).to(device()));
  };
  const bool on_cpu = device().is_cpu();
  EXPECT_EQ(run(0, 8).code(), on_cpu ? absl::StatusCode::kOutOfRange : absl::StatusCode::kOk);
  EXPECT_EQ(run(0, int64_t{1} << 40).ok(), !on_cpu);
  EXPECT_EQ(run(kMaxPositions, -1).ok(), !on_cpu);
  EXPECT_EQ(run(-1, -1).ok(), !on_cpu);
  for (const at::Tensor& tensor : cache.tensors(0)) {
    EXPECT_EQ(tensor.min().item<float>(), 3);
    EXPECT_EQ(tensor.max().item<float>(), 3);
  }
}

TEST_F(RotaryTest, NamesTheArgumentThatIsWrong) {
  std::mt19937 random(4);
  Projection p = MakeProjection(random, 3, 4, 2, 8, 8, at::kFloat, device());
  const at::Tensor positions = Ints({0, 1, 2}).to(device());
  const at::Tensor slots = at::tensor(std::vector<int64_t>{-1, -1, -1}).to(device());
  const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                             .num_blocks = 4,
                                             .block_size = 2,
                                             .num_kv_heads = 2,
                                             .head_dim_qk = 8,
                                             .head_dim_v = 8});
  KvCache cache = *KvCache::Create(layout, device());
  KvLayer kv = cache.layer(0);
  EXPECT_EQ(
      Rotary(p.q, p.k, Ints({0, 1}).to(device()), Table(8)),
      absl::InvalidArgumentError("positions must be [num_tokens] int32: expected [3], got [2]"));
  EXPECT_EQ(Rotary(p.q, p.k, positions, Table(10)),
            absl::InvalidArgumentError("table must be contiguous, [max_positions, rotary_dim]: "
                                       "expected an even rotary_dim of at most 8, got [100, 10]"));
  EXPECT_FALSE(RotaryWriteKv(p.q, p.k, p.v.narrow(1, 0, 1), positions, Table(8), kv, slots).ok());
  kv.head_dim_v = 16;
  EXPECT_EQ(RotaryWriteKv(p.q, p.k, p.v, positions, Table(8), kv, slots),
            absl::InvalidArgumentError("kv has the wrong head_dim_v: expected 8, got 16"));
  kv.head_dim_v = 8;
  const at::Tensor scale = at::empty({4}, at::TensorOptions(device()).dtype(at::kFloat));
  kv.k_scale = {.data = scale.const_data_ptr<float>(), .row_stride = 1};
  EXPECT_FALSE(RotaryWriteKv(p.q, p.k, p.v, positions, Table(8), kv, slots).ok());
  EXPECT_EQ(
      RotaryWriteKv(p.q, p.k, p.v, positions, Table(8), cache.layer(0), at::cat({slots, slots})),
      absl::InvalidArgumentError(
          "slot_mapping must not be longer than q: expected at most 3, got 6"));
}

TEST_F(RotaryTest, RotatesOnlyQWithoutSlots) {
  std::mt19937 random(5);
  Projection p = MakeProjection(random, 2, 4, 2, 8, 8, at::kFloat, device());
  const KvLayout layout = *KvLayout::Create({.num_layers = 1,
                                             .num_blocks = 4,
                                             .block_size = 2,
                                             .num_kv_heads = 2,
                                             .head_dim_qk = 8,
                                             .head_dim_v = 8});
  KvCache cache = *KvCache::Create(layout, device());
  ASSERT_TRUE(cache.Fill(3).ok());
  const at::Tensor k = p.k.clone();
  const at::Tensor q = p.q.cpu().clone();
  ASSERT_TRUE(RotaryWriteKv(p.q, p.k, p.v, Ints({5, 6}).to(device()), Table(8), cache.layer(0),
                            at::empty({0}, at::TensorOptions(device()).dtype(at::kLong)))
                  .ok());
  EXPECT_TRUE(IsAsGoodAs(p.q, Rotated(q, Ints({5, 6}), Table(8), at::kFloat),
                         Rotated(q, Ints({5, 6}), Table(8))));
  EXPECT_TRUE(Equals(p.k, k));
  EXPECT_EQ(cache.tensors(0)[0].max().item<float>(), 3);
}

}  // namespace
}  // namespace reprise
