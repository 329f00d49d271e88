#include "reprise/cache/storage/block_extents.h"

#include <climits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/storage/kv_page_layout.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr KvLayoutOptions kSmall = {.num_layers = 3,
                                    .num_blocks = 5,
                                    .block_size = 4,
                                    .num_kv_heads = 2,
                                    .head_dim_qk = 8,
                                    .head_dim_v = 8,
                                    .dtype = DType::kFloat16};

// The layers of a cache in newly allocated memory, one allocation per tensor.
struct Cache {
  explicit Cache(const KvLayoutOptions& options) {
    KvLayout layout = *KvLayout::Create(options);
    for (size_t i = 0; i < layout.tensors().size(); ++i) {
      memory.emplace_back(layout.allocation_elements(static_cast<int>(i)) * SizeOf(options.dtype));
    }
    for (int l = 0; l < options.num_layers; ++l) {
      std::vector<KvTensorRef> refs;
      for (size_t i = 0; i < memory.size(); ++i) {
        const int64_t offset = l * layout.layer_stride(static_cast<int>(i)) * SizeOf(options.dtype);
        refs.push_back({memory[i].data() + offset, layout.tensors()[i].strides});
      }
      layers.push_back(layout.MakeKvLayer(refs));
    }
  }

  std::vector<std::vector<std::byte>> memory;
  std::vector<KvLayer> layers;
};

std::vector<int64_t> Sizes(const std::vector<BlockExtent>& extents) {
  std::vector<int64_t> sizes;
  for (const BlockExtent& extent : extents) sizes.push_back(extent.bytes);
  return sizes;
}

TEST(BlockExtentsTest, PairHasOneExtentPerSideAndLayer) {
  const Cache cache(kSmall);
  std::vector<BlockExtent> extents = *BlockExtentsOf(cache.layers, KvSides::kBoth);
  EXPECT_THAT(Sizes(extents), ElementsAre(128, 128, 128, 128, 128, 128));  // 4*2*8*2
  EXPECT_EQ(extents[0].data, cache.layers[0].k.data);
  EXPECT_EQ(extents[1].data, cache.layers[0].v.data);
  EXPECT_EQ(extents[4].data, cache.layers[2].k.data);
  EXPECT_EQ(extents[4].block_stride, 128);
  extents = *BlockExtentsOf(cache.layers, KvSides::kValues);
  ASSERT_EQ(extents.size(), 3);
  EXPECT_EQ(extents[2].data, cache.layers[2].v.data);
}

TEST(BlockExtentsTest, ContiguousRangesAreJoined) {
  KvLayoutOptions options = kSmall;
  for (KvForm form : {KvForm::kPacked, KvForm::kDiffKv}) {
    options.form = form;
    options.layers = KvLayers::kApart;
    EXPECT_THAT(Sizes(*BlockExtentsOf(Cache(options).layers, KvSides::kBoth)),
                ElementsAre(256, 256, 256));
    options.layers = KvLayers::kWithinBlock;
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      options.order = order;
      EXPECT_THAT(Sizes(*BlockExtentsOf(Cache(options).layers, KvSides::kBoth)), ElementsAre(768));
    }
  }
}

TEST(BlockExtentsTest, OneSideOfJoinedTensorsHasSeveralExtents) {
  KvLayoutOptions options = kSmall;
  options.num_layers = 1;
  options.form = KvForm::kDiffKv;  // [.., token, head, k then v]
  EXPECT_THAT(Sizes(*BlockExtentsOf(Cache(options).layers, KvSides::kKeys)),
              ElementsAre(16, 16, 16, 16, 16, 16, 16, 16));
  options.form = KvForm::kPacked;
  EXPECT_THAT(Sizes(*BlockExtentsOf(Cache(options).layers, KvSides::kKeys)), ElementsAre(128));
}

TEST(BlockExtentsTest, LatentCountsAsKeys) {
  KvLayoutOptions options = kSmall;
  options.form = KvForm::kLatent;
  options.num_kv_heads = 1;
  const Cache cache(options);
  EXPECT_EQ(BlockExtentsOf(cache.layers, KvSides::kKeys)->size(), 3);
  EXPECT_EQ(BlockExtentsOf(cache.layers, KvSides::kValues)->size(), 0);
}

TEST(BlockExtentsTest, SeparateRopePartCountsAsKeys) {
  KvLayoutOptions options = kSmall;
  options.form = KvForm::kLatent;
  options.num_kv_heads = 1;
  const Cache cache(options);
  std::vector<std::byte> memory(5 * 4 * 3 * 4);
  KvLayer layer = cache.layers[0];
  layer.rope_dim = 3;
  layer.head_dim_qk += 3;
  layer.rope_dtype = DType::kFloat32;
  layer.rope = {.data = memory.data(), .block_stride = 12, .token_stride = 3, .dim_chunk = 3};
  const std::vector<BlockExtent> extents = *BlockExtentsOf({layer}, KvSides::kBoth);
  EXPECT_THAT(Sizes(extents), ElementsAre(4 * 8 * 2, 4 * 3 * 4));
  EXPECT_EQ(extents[0].data, layer.k.data);
  EXPECT_EQ(extents[1].data, memory.data());
  EXPECT_EQ(extents[1].block_stride, 48);
  EXPECT_EQ(BlockExtentsOf({layer}, KvSides::kValues)->size(), 0);
}

TEST(BlockExtentsTest, SharedLayersCountOnce) {
  Cache cache(kSmall);
  cache.layers.push_back(cache.layers[1]);
  EXPECT_EQ(BlockExtentsOf(cache.layers, KvSides::kBoth)->size(), 6);
}

TEST(BlockExtentsTest, PagesHaveOneExtentForDifferentGroups) {
  KvPageLayout layout = *KvPageLayout::Create(
      {.num_blocks = 3,
       .block_size = 4,
       .layers = {{.group = 0, .num_kv_heads = 2, .head_dim_qk = 32, .head_dim_v = 32},
                  {.group = 1, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 64},
                  {.group = 1, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 64}}});
  std::vector<std::byte> pages(layout.bytes());
  std::vector<KvLayer> layers;
  for (int l = 0; l < 3; ++l) layers.push_back(layout.MakeKvLayer(l, pages.data()));
  EXPECT_THAT(*BlockExtentsOf(layers, KvSides::kBoth),
              ElementsAre(BlockExtent{pages.data(), layout.page_bytes(), layout.page_bytes()}));
}

// Extents cover every byte of every element of a block once, and no other byte.
TEST(BlockExtentsTest, ExtentsCoverExactlyTheElements) {
  for (KvForm form :
       {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked, KvForm::kLatent}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      for (KvLayers placement : {KvLayers::kApart, KvLayers::kWithinBlock}) {
        for (KvSides sides : {KvSides::kBoth, KvSides::kKeys, KvSides::kValues}) {
          SCOPED_TRACE(testing::Message() << form << " " << order << " " << placement << " "
                                          << static_cast<int>(sides));
          KvLayoutOptions options = kSmall;
          options.form = form;
          options.order = order;
          options.layers = placement;
          if (form == KvForm::kLatent) options.num_kv_heads = 1;
          const Cache cache(options);
          std::set<const std::byte*> expected;
          const auto add = [&](const KvView& view) {
            for (int token = 0; token < 4; ++token)
              for (int head = 0; head < options.num_kv_heads; ++head)
                for (int dim = 0; dim < 8; ++dim)
                  for (int byte = 0; byte < 2; ++byte)
                    expected.insert(static_cast<std::byte*>(view.data) +
                                    2 * view.Offset(3, token, head, dim) + byte);
          };
          for (const KvLayer& layer : cache.layers) {
            if (sides != KvSides::kValues) add(layer.k);
            if (sides != KvSides::kKeys && form != KvForm::kLatent) add(layer.v);
          }
          std::set<const std::byte*> got;
          const std::vector<BlockExtent> extents = *BlockExtentsOf(cache.layers, sides);
          for (const BlockExtent& extent : extents) {
            for (int64_t byte = 0; byte < extent.bytes; ++byte) {
              EXPECT_TRUE(got.insert(extent.data + 3 * extent.block_stride + byte).second);
            }
          }
          EXPECT_EQ(got, expected);
        }
      }
    }
  }
}

TEST(BlockExtentsTest, CachesOfOneLayoutHaveEqualExtentSizes) {
  KvLayoutOptions options = kSmall;
  options.head_dim_v = 24;
  const Cache one(options);
  options.num_blocks = 2;
  const Cache two(options);
  EXPECT_EQ(Sizes(*BlockExtentsOf(one.layers, KvSides::kBoth)),
            Sizes(*BlockExtentsOf(two.layers, KvSides::kBoth)));
}

TEST(BlockExtentsTest, RejectsInvalidLayers) {
  const auto message = [](std::vector<KvLayer> layers) {
    absl::Status status = BlockExtentsOf(layers, KvSides::kBoth).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const Cache cache(kSmall);
  EXPECT_THAT(message({}), HasSubstr("layers: expected at least 1, got 0"));
  std::vector<KvLayer> layers = cache.layers;
  layers[1].num_blocks = 6;
  EXPECT_THAT(message(layers), HasSubstr("expected 5, got 6"));
  layers = cache.layers;
  layers[2].k.dim_chunk = 3;
  EXPECT_THAT(message(layers), HasSubstr("expected a multiple of 3, got 8"));
  layers[2].k.dim_chunk = 0;
  EXPECT_THAT(message(layers), HasSubstr("layer.dim_chunk: expected at least 1, got 0"));
}

}  // namespace
}  // namespace reprise
