#include "reprise/cache/storage/kv_page_layout.h"

#include <climits>
#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr KvPageLayer kLocal = {.group = 0,
                                .num_kv_heads = 8,
                                .head_dim_qk = 128,
                                .head_dim_v = 128,
                                .dtype = DType::kBFloat16};
constexpr KvPageLayer kGlobal = {.group = 1,
                                 .num_kv_heads = 4,
                                 .head_dim_qk = 256,
                                 .head_dim_v = 256,
                                 .dtype = DType::kBFloat16};

KvPageLayoutOptions Options(std::vector<KvPageLayer> layers) {
  return {.num_blocks = 10, .block_size = 16, .layers = std::move(layers)};
}

TEST(KvPageLayoutTest, APageIsAsLargeAsTheLargestGroup) {
  KvPageLayout layout = *KvPageLayout::Create(Options({kLocal, kLocal, kGlobal}));
  EXPECT_EQ(layout.num_groups(), 2);
  EXPECT_EQ(layout.group_bytes(0), 2 * 2 * 16 * 8 * 128 * 2);  // 2 layers, k and v, bf16
  EXPECT_EQ(layout.group_bytes(1), 1 * 2 * 16 * 4 * 256 * 2);
  EXPECT_EQ(layout.page_bytes(), layout.group_bytes(0));
  EXPECT_EQ(layout.bytes(), 10 * layout.page_bytes());
}

TEST(KvPageLayoutTest, LayersHaveFixedOffsetsAndAStrideOfPages) {
  KvPageLayout layout = *KvPageLayout::Create(Options({kLocal, kGlobal, kLocal}));
  constexpr int64_t kTensor = 16 * 8 * 128 * 2;
  EXPECT_EQ(layout.tensors(0)[0].offset_bytes, 0);
  EXPECT_EQ(layout.tensors(0)[1].offset_bytes, kTensor);
  EXPECT_EQ(layout.tensors(2)[0].offset_bytes, 2 * kTensor);
  EXPECT_EQ(layout.tensors(1)[0].offset_bytes, 0);  // another group in the same page
  EXPECT_EQ(layout.tensors(1)[1].offset_bytes, 16 * 4 * 256 * 2);
  EXPECT_THAT(layout.tensors(2)[0].spec.shape, ElementsAre(10, 16, 8, 128));
  EXPECT_THAT(layout.tensors(2)[0].spec.strides,
              ElementsAre(layout.page_bytes() / 2, 8 * 128, 128, 1));
  char pages[1];
  KvLayer layer = layout.MakeKvLayer(2, pages);
  EXPECT_EQ(static_cast<char*>(layer.v.data) - pages, 3 * kTensor);
  EXPECT_EQ(layer.v.block_stride * 2, layout.page_bytes());
  EXPECT_EQ(layer.num_blocks, 10);
  EXPECT_EQ(layer.block_size, 16);
}

TEST(KvPageLayoutTest, SharedLayerUsesNoMemory) {
  KvPageLayer sharing = kLocal;
  sharing.shares_with = 0;
  KvPageLayer further = kLocal;
  further.shares_with = 1;
  KvPageLayout layout = *KvPageLayout::Create(Options({kLocal, sharing, further}));
  EXPECT_EQ(layout.page_bytes(), 2 * 16 * 8 * 128 * 2);
  EXPECT_EQ(layout.storage_layer(0), 0);
  EXPECT_EQ(layout.storage_layer(1), 0);
  EXPECT_EQ(layout.storage_layer(2), 0);
  char pages[1];
  EXPECT_EQ(layout.MakeKvLayer(2, pages).v.data, layout.MakeKvLayer(0, pages).v.data);
}

TEST(KvPageLayoutTest, EveryTensorIsAligned) {
  KvPageLayout layout = *KvPageLayout::Create(
      {.num_blocks = 3,
       .block_size = 1,
       .layers = {{.num_kv_heads = 1, .head_dim_qk = 3, .head_dim_v = 5, .dtype = DType::kFp8E4M3},
                  {.num_kv_heads = 3, .head_dim_qk = 80, .head_dim_v = 80}}});
  for (int layer : {0, 1}) {
    for (const KvPageTensor& tensor : layout.tensors(layer)) {
      EXPECT_EQ(tensor.offset_bytes % 256, 0);
    }
  }
  EXPECT_EQ(layout.page_bytes(), 256 + 256 + 1024 + 1024);  // 3*80*4 = 960
}

// Builds random models. Within a group, no byte belongs to two elements or is outside the page.
TEST(KvPageLayoutTest, LayersOfAGroupDoNotOverlapInRandomModels) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % n); };
  for (int round = 0; round < 60; ++round) {
    KvPageLayoutOptions options = {.num_blocks = 1 + below(3), .block_size = 1 + below(5)};
    const int num_groups = 1 + below(3);
    for (int layer = 0; layer < num_groups + below(4); ++layer) {
      KvPageLayer of = {.group = layer < num_groups ? layer : below(num_groups),
                        .num_kv_heads = 1 + below(3),
                        .head_dim_qk = 8 * (1 + below(3)),
                        .head_dim_v = 8,
                        .dtype = below(2) == 0 ? DType::kFloat16 : DType::kFloat32,
                        .order = below(2) == 0 ? KvOrder::kNHD : KvOrder::kHND,
                        .form = static_cast<KvForm>(below(5))};
      if (of.form == KvForm::kPacked) of.head_dim_v = of.head_dim_qk;
      if (of.form == KvForm::kLatent) of.num_kv_heads = 1;
      options.layers.push_back(of);
    }
    absl::StatusOr<KvPageLayout> layout = KvPageLayout::Create(options);
    ASSERT_TRUE(layout.ok()) << layout.status();
    std::vector<std::byte> pages(layout->bytes());
    for (int group = 0; group < layout->num_groups(); ++group) {
      std::map<int64_t, int> element_sizes;  // element size by byte offset
      for (int l = 0; l < layout->num_layers(); ++l) {
        if (options.layers[l].group != group) continue;
        const KvLayer layer = layout->MakeKvLayer(l, pages.data());
        const int size = SizeOf(layer.dtype);
        const auto add = [&](const KvView& view, int head_dim) {
          const int64_t base = static_cast<std::byte*>(view.data) - pages.data();
          for (int block = 0; block < layer.num_blocks; ++block) {
            for (int token = 0; token < layer.block_size; ++token) {
              for (int head = 0; head < layer.num_kv_heads; ++head) {
                for (int dim = 0; dim < head_dim; ++dim) {
                  const int64_t at = base + size * view.Offset(block, token, head, dim);
                  ASSERT_TRUE(element_sizes.emplace(at, size).second);
                  ASSERT_EQ(at / layout->page_bytes(), block);
                  ASSERT_LE(at % layout->page_bytes() + size, layout->group_bytes(group));
                }
              }
            }
          }
        };
        add(layer.k, layer.head_dim_qk);
        if (!IsLatent(layer)) add(layer.v, layer.head_dim_v);
      }
      int64_t end = 0;
      for (const auto& [at, size] : element_sizes) {
        ASSERT_GE(at, end);
        end = at + size;
      }
    }
  }
}

TEST(KvPageLayoutTest, BudgetIsRoundedDownToWholePages) {
  const KvPageLayoutOptions options = Options({kLocal, kGlobal});
  const int64_t page = KvPageLayout::Create(options)->page_bytes();
  EXPECT_EQ(*NumBlocksForBytes(options, 10 * page + page - 1), 10);
  EXPECT_EQ(*NumBlocksForBytes(options, INT64_MAX), INT_MAX);
  EXPECT_THAT(std::string(NumBlocksForBytes(options, 2 * page - 1).status().message()),
              HasSubstr("budget_bytes must hold the null block and one more"));
}

TEST(KvPageLayoutTest, RejectsInvalidOptions) {
  const auto message = [](const KvPageLayoutOptions& options) {
    absl::Status status = KvPageLayout::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const auto changed = [](auto change) {
    KvPageLayer layer = kLocal;
    change(layer);
    return Options({kLocal, layer});
  };
  EXPECT_THAT(message(Options({})), HasSubstr("layers: expected at least 1, got 0"));
  EXPECT_THAT(message(changed([](auto& l) { l.num_kv_heads = 0; })),
              HasSubstr("layer 1: num_kv_heads: expected at least 1, got 0"));
  EXPECT_THAT(message(changed([](auto& l) { l.form = KvForm::kLatent; })),
              HasSubstr("layer 1: num_kv_heads must be 1 in a latent cache"));
  EXPECT_THAT(message(changed([](auto& l) { l.group = -1; })),
              HasSubstr("layer 1: group must be numbered from 0: expected 0 to 1, got -1"));
  EXPECT_THAT(message(changed([](auto& l) { l.group = 2; })), HasSubstr("got 2"));
  EXPECT_THAT(message(Options({kGlobal, kGlobal})),
              HasSubstr("expected a layer of group 0, got none"));
  EXPECT_THAT(message(changed([](auto& l) { l.shares_with = 1; })),
              HasSubstr("layer 1: shares_with must be an earlier layer: expected 0 to 0, got 1"));
  EXPECT_THAT(message(changed([](auto& l) {
                l.shares_with = 0;
                l.head_dim_v = 64;
              })),
              HasSubstr("layer 1: shares_with must name a layer of the same group"));
  KvPageLayoutOptions options = Options({kLocal});
  options.num_blocks = 0;
  EXPECT_THAT(message(options), HasSubstr("num_blocks: expected at least 1, got 0"));
  options.num_blocks = INT_MAX;
  options.block_size = INT_MAX;
  EXPECT_THAT(message(options), HasSubstr("too large"));
  options = Options({kLocal, kLocal, kLocal, kLocal});
  options.num_blocks = 1;
  for (KvPageLayer& layer : options.layers) {
    layer.head_dim_qk = layer.head_dim_v = layer.num_kv_heads = 1 << 15;
  }
  options.block_size = 1 << 30;  // 2^62 bytes per layer
  EXPECT_THAT(message(options), HasSubstr("too large"));
}

}  // namespace
}  // namespace reprise
