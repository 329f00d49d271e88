#include "reprise/cache/storage/kv_cache.h"

#include <ATen/ops/isnan.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr KvLayoutOptions kSmall = {.num_layers = 2,
                                    .num_blocks = 5,
                                    .block_size = 4,
                                    .num_kv_heads = 3,
                                    .head_dim_qk = 8,
                                    .head_dim_v = 8};

KvLayout LayoutOf(KvForm form, KvOrder order, DType dtype = DType::kFloat32) {
  KvLayoutOptions options = kSmall;
  options.form = form;
  options.order = order;
  options.dtype = dtype;
  return *KvLayout::Create(options);
}

at::Tensor Zeros(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::zeros(shape, at::TensorOptions().dtype(dtype));
}

TEST(KvCacheTest, LayersPointIntoTheTensors) {
  for (KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      SCOPED_TRACE(testing::Message() << form << " " << order);
      KvCache cache = *KvCache::Create(LayoutOf(form, order), at::kCPU);
      ASSERT_EQ(cache.num_layers(), 2);
      ASSERT_TRUE(cache.Fill(0).ok());
      const KvLayer& layer = cache.layer(1);
      static_cast<float*>(layer.k.data)[layer.k.Offset(2, 3, 1, 5)] = 7;
      static_cast<float*>(layer.v.data)[layer.v.Offset(2, 3, 1, 5)] = 9;
      at::Tensor k = cache.tensors(1)[0], v = k;
      if (form == KvForm::kPair) v = cache.tensors(1)[1];
      if (form == KvForm::kPacked) std::tie(k, v) = std::pair(k.select(1, 0), k.select(1, 1));
      if (form == KvForm::kDiffKv) v = k.narrow(3, 8, 8);
      EXPECT_EQ(k[2][3][1][5].item<float>(), 7);
      EXPECT_EQ(v[2][3][1][5].item<float>(), 9);
      EXPECT_EQ(cache.tensors(0)[0].sum().item<float>(), 0);
    }
  }
}

TEST(KvCacheTest, FillSetsEveryDType) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    SCOPED_TRACE(testing::Message() << dtype);
    KvCache cache = *KvCache::Create(LayoutOf(KvForm::kPair, KvOrder::kHND, dtype), at::kCPU);
    ASSERT_TRUE(cache.Fill(std::numeric_limits<float>::quiet_NaN()).ok());
    for (int layer = 0; layer < 2; ++layer) {
      for (const at::Tensor& tensor : cache.tensors(layer)) {
        EXPECT_TRUE(at::isnan(tensor.to(at::kFloat)).all().item<bool>());
      }
    }
  }
}

TEST(KvCacheTest, ReportsItsBytes) {
  KvLayout layout = LayoutOf(KvForm::kDiffKv, KvOrder::kNHD, DType::kBFloat16);
  KvCache cache = *KvCache::Create(layout, at::kCPU);
  EXPECT_EQ(cache.bytes(), layout.bytes());
  EXPECT_EQ(cache.bytes(), 2 * 5 * 4 * 3 * 16 * 2);
}

TEST(KvCacheTest, LayersOfAnySizeAreAligned) {
  KvLayoutOptions options = kSmall;
  options.head_dim_qk = options.num_kv_heads = options.block_size = 1;
  options.head_dim_v = 3;
  KvCache cache = *KvCache::Create(*KvLayout::Create(options), at::kCPU);
  const auto address = [&](int layer) {
    return reinterpret_cast<uintptr_t>(cache.layer(layer).v.data);
  };
  EXPECT_EQ((address(1) - address(0)) % 256, 0);
}

TEST(KvCacheTest, SetScalesChangesTheLayer) {
  KvCache cache = *KvCache::Create(LayoutOf(KvForm::kPair, KvOrder::kNHD), at::kCPU);
  cache.SetScales(1, {.value = 2.0f}, {.value = 3.0f});
  EXPECT_EQ(cache.layer(0).k_scale.value, 1.0f);
  EXPECT_EQ(cache.layer(1).k_scale.value, 2.0f);
  EXPECT_EQ(cache.layers()[1].v_scale.value, 3.0f);
}

TEST(KvCacheTest, LayersMayShareMemoryAndScalesOfEarlierLayers) {
  const int storage_layers[] = {0, 1, 1, 0};
  KvCache cache =
      *KvCache::Create(LayoutOf(KvForm::kPair, KvOrder::kNHD), at::kCPU, storage_layers);
  ASSERT_EQ(cache.num_layers(), 4);
  EXPECT_EQ(cache.layer(3).k.data, cache.layer(0).k.data);
  EXPECT_EQ(cache.layer(2).v.data, cache.layer(1).v.data);
  EXPECT_NE(cache.layer(1).k.data, cache.layer(0).k.data);
  EXPECT_EQ(cache.shares_with(0), std::nullopt);
  EXPECT_EQ(cache.shares_with(1), std::nullopt);
  EXPECT_EQ(cache.shares_with(2), 1);
  EXPECT_EQ(cache.shares_with(3), 0);
  EXPECT_EQ(cache.bytes(), 2 * 5 * 4 * 3 * 16 * 4);  // bytes of two layers
  cache.SetScales(3, {.value = 2.0f}, {.value = 3.0f});
  EXPECT_EQ(cache.layer(0).k_scale.value, 2.0f);
  EXPECT_EQ(cache.layer(3).v_scale.value, 3.0f);
  EXPECT_EQ(cache.layer(1).k_scale.value, 1.0f);

  const int unknown[] = {0, 2};
  absl::Status status =
      KvCache::Create(LayoutOf(KvForm::kPair, KvOrder::kNHD), at::kCPU, unknown).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("storage_layers[1] must be a layer of the layout: expected 0 to 1, got 2"));
}

TEST(KvCacheTest, BlocksMayHoldAllLayers) {
  for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
    KvLayoutOptions options = kSmall;
    options.order = order;
    options.layers = KvLayers::kWithinBlock;
    KvCache cache = *KvCache::Create(*KvLayout::Create(options), at::kCPU);
    ASSERT_TRUE(cache.Fill(0).ok());
    at::Tensor(cache.tensors(1)[0][2]).fill_(7);
    EXPECT_EQ(cache.tensors(0)[0].sum().item<float>(), 0);
    EXPECT_EQ(cache.tensors(1)[0].sum().item<float>(), 7 * 4 * 3 * 8);
    const float* const begin = static_cast<const float*>(cache.layer(0).k.data);
    const int64_t block_elements = 2 * 4 * 3 * 8;
    EXPECT_EQ(std::count(begin + 2 * block_elements, begin + 3 * block_elements, 7.0f),
              block_elements / 2);
  }
}

// Two groups that overlap in memory: three layers of 2 heads of 8, of which two share memory, and a
// latent of 32.
KvPageLayout SmallPages() {
  return *KvPageLayout::Create(
      {.num_blocks = 5,
       .block_size = 4,
       .layers = {
           {.group = 0, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 8},
           {.group = 1,
            .num_kv_heads = 1,
            .head_dim_qk = 32,
            .head_dim_v = 24,
            .dtype = DType::kBFloat16,
            .form = KvForm::kLatent},
           {.group = 0, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 8},
           {.group = 0, .shares_with = 2, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 8}}});
}

TEST(KvCacheTest, PagesHoldTheLayersOfAnyOneGroup) {
  KvCache cache = *KvCache::Create(SmallPages(), at::kCPU);
  ASSERT_EQ(cache.num_layers(), 4);
  EXPECT_EQ(cache.bytes_per_block(), 4 * 256);  // 2 layers, k and v of 4*2*8 floats
  EXPECT_EQ(cache.bytes(), 5 * 4 * 256);
  EXPECT_EQ(cache.num_blocks(), 5);
  EXPECT_EQ(cache.block_size(), 4);
  EXPECT_EQ(cache.group(1), 1);
  EXPECT_EQ(cache.group(3), 0);
  // At the same address as layer 0, but in another group.
  EXPECT_EQ(cache.shares_with(1), std::nullopt);
  EXPECT_EQ(cache.shares_with(2), std::nullopt);
  EXPECT_EQ(cache.shares_with(3), 2);
  EXPECT_EQ(cache.layer(1).k.data, cache.layer(0).k.data);

  // Block 2 belongs to group 0 and block 3 to group 1. Other blocks do not change.
  ASSERT_TRUE(cache.Fill(0).ok());
  for (int layer : {0, 2}) {
    for (const at::Tensor& tensor : cache.tensors(layer)) at::Tensor(tensor[2]).fill_(layer + 1);
  }
  at::Tensor(cache.tensors(1)[0][3]).fill_(9);
  EXPECT_EQ(cache.tensors(0)[0].select(0, 2).sum().item<float>(), 1 * 64);
  EXPECT_EQ(cache.tensors(3)[1].select(0, 2).sum().item<float>(), 3 * 64);
  EXPECT_EQ(cache.tensors(1)[0].select(0, 3).to(at::kFloat).sum().item<float>(), 9 * 4 * 32);
  for (int block : {0, 1, 4}) {
    for (int layer = 0; layer < 4; ++layer) {
      EXPECT_EQ(cache.tensors(layer)[0].select(0, block).to(at::kFloat).sum().item<float>(), 0);
    }
  }
}

TEST(KvCacheTest, NanFillsPagesForGroupsOfEveryDType) {
  KvPageLayoutOptions options = {.num_blocks = 3, .block_size = 2};
  const DType dtypes[] = {DType::kBFloat16, DType::kFp8E4M3, DType::kFloat32, DType::kFp8E5M2,
                          DType::kFloat16};
  for (int group = 0; group < 5; ++group) {
    options.layers.push_back({.group = group,
                              .num_kv_heads = 1,
                              .head_dim_qk = 16,
                              .head_dim_v = 16,
                              .dtype = dtypes[group]});
  }
  KvCache cache = *KvCache::Create(*KvPageLayout::Create(options), at::kCPU);
  ASSERT_TRUE(cache.Fill(0).ok());
  EXPECT_EQ(cache.tensors(2)[0].sum().item<float>(), 0);
  ASSERT_TRUE(cache.Fill(std::numeric_limits<float>::quiet_NaN()).ok());
  for (int layer = 0; layer < 5; ++layer) {
    for (const at::Tensor& tensor : cache.tensors(layer)) {
      EXPECT_TRUE(at::isnan(tensor.to(at::kFloat)).all().item<bool>()) << dtypes[layer];
    }
  }
}

TEST(KvCacheTest, LackOfMemoryIsAStatusNotAnException) {
  KvLayoutOptions options = kSmall;
  options.num_blocks = std::numeric_limits<int>::max();
  options.block_size = 1 << 20;
  EXPECT_EQ(KvCache::Create(*KvLayout::Create(options), at::kCPU).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(KvCacheWrapTest, AcceptsTensorsWithAnyStrides) {
  // An engine's separate tensors, parts of larger ones: K in HND, V in NHD. Layer 1 shares the
  // tensors of layer 0.
  const at::Tensor k = Zeros({5, 3, 6, 8}).narrow(2, 1, 4).transpose(1, 2);
  const at::Tensor v = Zeros({5, 4, 3, 16}).narrow(3, 8, 8);
  absl::StatusOr<KvCache> cache =
      KvCache::Wrap(LayoutOf(KvForm::kPair, KvOrder::kNHD), {{k, v}, {k, v}});
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvLayer& layer = cache->layer(1);
  static_cast<float*>(layer.k.data)[layer.k.Offset(4, 3, 2, 7)] = 7;
  static_cast<float*>(layer.v.data)[layer.v.Offset(4, 3, 2, 7)] = 9;
  EXPECT_EQ(k[4][3][2][7].item<float>(), 7);
  EXPECT_EQ(v[4][3][2][7].item<float>(), 9);
}

TEST(KvCacheWrapTest, AcceptsBytesAsFp8) {
  const at::Tensor k = Zeros({5, 4, 3, 8}, at::kByte), v = Zeros({5, 4, 3, 8}, at::kByte);
  absl::StatusOr<KvCache> cache =
      KvCache::Wrap(LayoutOf(KvForm::kPair, KvOrder::kNHD, DType::kFp8E5M2), {{k, v}, {k, v}});
  ASSERT_TRUE(cache.ok()) << cache.status();
  ASSERT_TRUE(cache->Fill(1.0f).ok());
  EXPECT_EQ(k[0][0][0][0].item<uint8_t>(), 0x3c);  // 1.0 in e5m2: exponent 15
}

// A cache of bytes with the x of 16-bit elements.
TEST(KvCacheWrapTest, AcceptsKPackedBytesWithTheLayoutsX) {
  KvLayoutOptions options = {.num_blocks = 5,
                             .block_size = 4,
                             .num_kv_heads = 3,
                             .head_dim_qk = 24,
                             .head_dim_v = 8,
                             .dtype = DType::kFp8E4M3,
                             .form = KvForm::kKPacked,
                             .k_packed_x = 8};
  const at::Tensor k = Zeros({5, 3, 3, 4, 8}, at::kByte), v = Zeros({5, 3, 8, 4}, at::kByte);
  absl::StatusOr<KvCache> cache = KvCache::Wrap(*KvLayout::Create(options), {{k, v}});
  ASSERT_TRUE(cache.ok()) << cache.status();
  const KvLayer& layer = cache->layer(0);
  static_cast<uint8_t*>(layer.k.data)[layer.k.Offset(4, 3, 2, 21)] = 7;
  EXPECT_EQ(k[4][2][2][3][5].item<uint8_t>(), 7);  // dim 21 is the sixth in its chunk of eight
  EXPECT_FALSE(KvCache::Wrap(*KvLayout::Create(options), {{k.reshape({5, 3, 6, 4, 4}), v}}).ok());
}

TEST(KvCacheWrapTest, AcceptsLatentsWithThreeDimensions) {
  KvLayout layout = *KvLayout::Create({.num_blocks = 5,
                                       .block_size = 4,
                                       .num_kv_heads = 1,
                                       .head_dim_qk = 24,
                                       .head_dim_v = 16,
                                       .form = KvForm::kLatent});
  const at::Tensor latent = Zeros({5, 4, 24});
  absl::StatusOr<KvCache> cache = KvCache::Wrap(layout, {{latent}});
  ASSERT_TRUE(cache.ok()) << cache.status();
  static_cast<float*>(cache->layer(0).v.data)[cache->layer(0).v.Offset(4, 3, 0, 15)] = 9;
  EXPECT_EQ(latent[4][3][15].item<float>(), 9);
  EXPECT_FALSE(KvCache::Wrap(layout, {{Zeros({5, 4, 25})}}).ok());
}

TEST(KvCacheWrapTest, RejectsTensorsThatDoNotFitTheLayout) {
  const auto message = [](std::vector<std::vector<at::Tensor>> layers,
                          KvForm form = KvForm::kPair) {
    absl::Status status = KvCache::Wrap(LayoutOf(form, KvOrder::kNHD), std::move(layers)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const at::Tensor good = Zeros({5, 4, 3, 8});
  EXPECT_THAT(message({{good, good}}),
              HasSubstr("layers must have one entry per layer of the layout: expected 2, got 1"));
  EXPECT_THAT(message({{good, good}, {good}}),
              HasSubstr("layer 1 must have as many tensors as the layout: expected 2, got 1"));
  EXPECT_THAT(message({{good, good}, {good, Zeros({5, 4, 3, 9})}}),
              HasSubstr("tensor 1 of layer 1 has the wrong shape: expected [5, 4, 3, 8], got "
                        "[5, 4, 3, 9]"));
  EXPECT_THAT(message({{good, good}, {Zeros({5, 4, 3, 8}, at::kHalf), good}}),
              HasSubstr("tensor 0 of layer 1 has the wrong dtype: expected float32, got float16"));
  EXPECT_THAT(message({{at::Tensor(), good}, {good, good}}),
              HasSubstr("tensor 0 of layer 0 is missing"));
  EXPECT_THAT(message({{Zeros({5, 4, 1, 8}).expand({5, 4, 3, 8}), good}, {good, good}}),
              HasSubstr("tensor 0 of layer 0 must not overlap itself"));
  const at::Tensor v = Zeros({5, 3, 8, 4});
  EXPECT_THAT(message({{Zeros({5, 3, 2, 4, 8}).narrow(4, 0, 4), v},
                       {Zeros({5, 3, 2, 4, 4}).transpose(3, 4), v}},
                      KvForm::kKPacked),
              HasSubstr("tensor 0 of layer 1 must have stride 1 in its last dimension"));
}

TEST(KvCacheWrapTest, RejectsTensorsWithoutStrides) {
  const at::Tensor good = Zeros({5, 4, 3, 8});
  const absl::Status status = KvCache::Wrap(LayoutOf(KvForm::kPair, KvOrder::kNHD),
                                            {{good, good}, {good, good.to_sparse()}})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("tensor 1 of layer 1 must be strided: expected layout Strided, got Sparse"));
  // Latents may have three dimensions.
  KvLayout latents = *KvLayout::Create({.num_blocks = 5,
                                        .block_size = 4,
                                        .num_kv_heads = 1,
                                        .head_dim_qk = 24,
                                        .head_dim_v = 16,
                                        .form = KvForm::kLatent});
  EXPECT_EQ(KvCache::Wrap(latents, {{Zeros({5, 4, 24}).to_sparse()}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(KvCacheWrapTest, ExceptionsOfLibTorchBecomeStatus) {
  const at::Tensor good = Zeros({5, 4, 3, 8}), locked = Zeros({5, 4, 3, 8});
  locked.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
  const absl::StatusOr<KvCache> cache =
      KvCache::Wrap(LayoutOf(KvForm::kPair, KvOrder::kNHD), {{good, good}, {good, locked}});
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kInternal) << cache.status();
}

TEST(KvCacheDeathTest, DiesOnALayerOutOfRange) {
  KvCache cache = *KvCache::Create(LayoutOf(KvForm::kPair, KvOrder::kNHD), at::kCPU);
  EXPECT_DEATH(cache.layer(2), "layer 2 of 2");
  EXPECT_DEATH(cache.tensors(-1), "layer -1 of 2");
}

}  // namespace
}  // namespace reprise
