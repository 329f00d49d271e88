#include "reprise/cache/storage/kv_layout.h"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 5 blocks of 4 tokens, 3 heads of 8 dims.
KvLayoutOptions SmallOptions(KvForm form, KvOrder order) {
  return {.num_blocks = 5,
          .block_size = 4,
          .num_kv_heads = 3,
          .head_dim_qk = 8,
          .head_dim_v = 8,
          .dtype = DType::kFloat16,
          .order = order,
          .form = form};
}

KvLayer LayerOf(const KvLayout& layout, std::vector<void*> data) {
  std::vector<KvTensorRef> refs;
  for (size_t i = 0; i < data.size(); ++i) refs.push_back({data[i], layout.tensors()[i].strides});
  return layout.MakeKvLayer(refs);
}

TEST(KvLayoutTest, PairHasEqualIndicesInBothOrders) {
  KvLayout nhd = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kNHD));
  KvLayout hnd = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kHND));
  ASSERT_EQ(nhd.tensors().size(), 2);
  EXPECT_THAT(nhd.tensors()[0].shape, ElementsAre(5, 4, 3, 8));
  EXPECT_THAT(hnd.tensors()[0].shape, ElementsAre(5, 4, 3, 8));
  EXPECT_THAT(nhd.tensors()[0].strides, ElementsAre(96, 24, 8, 1));  // 4*3*8, 3*8, 8
  EXPECT_THAT(hnd.tensors()[0].strides, ElementsAre(96, 8, 32, 1));  // 4*3*8, 8, 4*8
}

TEST(KvLayoutTest, PackedHasVAfterKInEachBlock) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kPacked, KvOrder::kHND));
  ASSERT_EQ(layout.tensors().size(), 1);
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 2, 4, 3, 8));
  EXPECT_THAT(layout.tensors()[0].strides, ElementsAre(192, 96, 8, 32, 1));
  char memory[1];
  KvLayer layer = LayerOf(layout, {memory});
  EXPECT_EQ(static_cast<char*>(layer.v.data) - memory, 96 * 2);  // 2 bytes per element
}

TEST(KvLayoutTest, DiffKvHasVAfterKInTheLastDimension) {
  KvLayoutOptions options = SmallOptions(KvForm::kDiffKv, KvOrder::kNHD);
  options.head_dim_v = 6;
  KvLayout layout = *KvLayout::Create(options);
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 4, 3, 14));
  char memory[1];
  KvLayer layer = LayerOf(layout, {memory});
  EXPECT_EQ(static_cast<char*>(layer.v.data) - memory, 8 * 2);
  EXPECT_EQ(layer.v.head_stride, 14);
  EXPECT_EQ(layer.v.dim_chunk, 6);
}

TEST(KvLayoutTest, KPackedKeepsSixteenBytesContiguous) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kKPacked, KvOrder::kNHD));
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 3, 1, 4, 8));  // x = 16 / 2
  EXPECT_THAT(layout.tensors()[1].shape, ElementsAre(5, 3, 8, 4));
  char k[1], v[1];
  KvLayer layer = LayerOf(layout, {k, v});
  EXPECT_EQ(layer.k.Offset(1, 2, 1, 5), 96 + 32 + 2 * 8 + 5);
  EXPECT_EQ(layer.v.Offset(1, 2, 1, 5), 96 + 32 + 5 * 4 + 2);
}

TEST(KvLayoutTest, KPackedKeepsTheRequestedDimsContiguous) {
  KvLayoutOptions options = SmallOptions(KvForm::kKPacked, KvOrder::kNHD);
  options.k_packed_x = 4;
  KvLayout layout = *KvLayout::Create(options);
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 3, 2, 4, 4));
  EXPECT_THAT(layout.tensors()[1].shape, ElementsAre(5, 3, 8, 4));
  char k[1], v[1];
  EXPECT_EQ(LayerOf(layout, {k, v}).k.Offset(1, 2, 1, 5), 96 + 32 + 16 + 2 * 4 + 1);
  options.k_packed_x = 3;
  EXPECT_EQ(
      KvLayout::Create(options).status().message(),
      "head_dim_qk must be a multiple of x in a K-packed cache: expected a multiple of 3, got 8");
  options.k_packed_x = -1;
  EXPECT_EQ(KvLayout::Create(options).status().message(),
            "k_packed_x: expected at least 0, got -1");
}

TEST(KvLayoutTest, LatentKeepsVWithinK) {
  KvLayoutOptions options = SmallOptions(KvForm::kLatent, KvOrder::kNHD);
  options.num_kv_heads = 1;
  options.head_dim_qk = 576;
  options.head_dim_v = 512;
  KvLayout layout = *KvLayout::Create(options);
  ASSERT_EQ(layout.tensors().size(), 1);
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 4, 1, 576));
  EXPECT_EQ(layout.bytes_per_block(), 4 * 576 * 2);
  char memory[1];
  KvLayer layer = LayerOf(layout, {memory});
  EXPECT_TRUE(IsLatent(layer));
  EXPECT_EQ(layer.v.data, layer.k.data);
  EXPECT_EQ(layer.v.dim_chunk, 512);
  EXPECT_EQ(layer.v.Offset(3, 2, 0, 511), layer.k.Offset(3, 2, 0, 511));
  EXPECT_FALSE(
      IsLatent(LayerOf(*KvLayout::Create(SmallOptions(KvForm::kPacked, KvOrder::kNHD)), {memory})));
}

// The order of vLLM: NHD (num_blocks, num_layers, block_size, heads, dim), HND (num_blocks, heads,
// num_layers, block_size, dim). A packed cache has its dimension of 2 before the block_size.
TEST(KvLayoutTest, LayersWithinABlockHaveTheStridesOfTheirOrder) {
  const auto layout = [](KvForm form, KvOrder order) {
    KvLayoutOptions options = SmallOptions(form, order);
    options.num_layers = 7;
    options.layers = KvLayers::kWithinBlock;
    return *KvLayout::Create(options);
  };
  KvLayout nhd = layout(KvForm::kDiffKv, KvOrder::kNHD);
  EXPECT_THAT(nhd.tensors()[0].strides, ElementsAre(7 * 192, 48, 16, 1));  // 192 = 4*3*16
  EXPECT_EQ(nhd.layer_stride(0), 192);
  KvLayout hnd = layout(KvForm::kDiffKv, KvOrder::kHND);
  EXPECT_THAT(hnd.tensors()[0].strides, ElementsAre(7 * 192, 16, 7 * 64, 1));  // 64 = 4*16
  EXPECT_EQ(hnd.layer_stride(0), 64);
  KvLayout packed = layout(KvForm::kPacked, KvOrder::kHND);
  EXPECT_THAT(packed.tensors()[0].strides, ElementsAre(7 * 192, 32, 8, 7 * 64, 1));
  EXPECT_EQ(packed.layer_stride(0), 64);
  KvLayout k_packed = layout(KvForm::kKPacked, KvOrder::kHND);
  EXPECT_THAT(k_packed.tensors()[1].strides, ElementsAre(7 * 96, 32, 4, 1));
  EXPECT_EQ(k_packed.layer_stride(1), 96);
}

TEST(KvLayoutTest, SeparateLayersBeginAligned) {
  KvLayoutOptions options = SmallOptions(KvForm::kPair, KvOrder::kNHD);
  options.num_layers = 3;
  options.head_dim_v = 1;
  KvLayout layout = *KvLayout::Create(options);
  // 5*4*3*8 = 480 elements, rounded up to a multiple of 128.
  EXPECT_EQ(layout.layer_stride(0), 512);
  EXPECT_EQ(layout.allocation_elements(0), 3 * 512);
  EXPECT_EQ(layout.layer_stride(1), 128);
  EXPECT_EQ(layout.allocation_elements(1), 3 * 128);
}

// Places all layers of a tensor in one allocation, in both ways.
TEST(KvLayoutTest, LayersDoNotOverlap) {
  for (KvForm form :
       {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked, KvForm::kLatent}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      for (KvLayers layers : {KvLayers::kApart, KvLayers::kWithinBlock}) {
        SCOPED_TRACE(testing::Message() << form << " " << order << " " << layers);
        KvLayoutOptions options = SmallOptions(form, order);
        options.num_layers = 3;
        options.layers = layers;
        if (form == KvForm::kLatent) options.num_kv_heads = 1;
        KvLayout layout = *KvLayout::Create(options);
        std::vector<std::vector<std::byte>> memory;
        for (size_t i = 0; i < layout.tensors().size(); ++i) {
          memory.emplace_back(layout.allocation_elements(static_cast<int>(i)) * 2);
        }
        std::set<const void*> places;
        for (int l = 0; l < 3; ++l) {
          std::vector<void*> tensors;
          for (size_t i = 0; i < memory.size(); ++i) {
            tensors.push_back(&memory[i][layout.layer_stride(static_cast<int>(i)) * l * 2]);
          }
          KvLayer layer = LayerOf(layout, tensors);
          const auto add = [&](const KvView& view, int head_dim) {
            for (int block = 0; block < 5; ++block)
              for (int token = 0; token < 4; ++token)
                for (int head = 0; head < layer.num_kv_heads; ++head)
                  for (int dim = 0; dim < head_dim; ++dim) {
                    places.insert(static_cast<std::byte*>(view.data) +
                                  2 * view.Offset(block, token, head, dim));
                  }
          };
          add(layer.k, layer.head_dim_qk);
          add(layer.v, layer.head_dim_v);
        }
        EXPECT_EQ(places.size() * 2, layout.bytes());
        for (const void* place : places) {
          EXPECT_TRUE(std::any_of(memory.begin(), memory.end(), [&](const auto& m) {
            return place >= m.data() && place < m.data() + m.size();
          }));
        }
      }
    }
  }
}

TEST(KvLayoutTest, EveryElementHasADistinctAddressInEveryLayout) {
  for (KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      SCOPED_TRACE(testing::Message() << form << " " << order);
      KvLayoutOptions options = SmallOptions(form, order);
      if (form != KvForm::kPacked) options.head_dim_v = 5;
      KvLayout layout = *KvLayout::Create(options);
      std::vector<std::byte> memory(layout.bytes());
      std::vector<void*> tensors = {memory.data()};
      if (layout.tensors().size() == 2) {
        tensors.push_back(memory.data() + 5 * 4 * 3 * 8 * 2);  // after all of k
      }
      KvLayer layer = LayerOf(layout, tensors);

      std::set<int64_t> places;  // byte offsets from the beginning
      const auto add = [&](const KvView& view, int head_dim) {
        const int64_t base = static_cast<std::byte*>(view.data) - memory.data();
        for (int block = 0; block < 5; ++block)
          for (int token = 0; token < 4; ++token)
            for (int head = 0; head < 3; ++head)
              for (int dim = 0; dim < head_dim; ++dim)
                places.insert(base + 2 * view.Offset(block, token, head, dim));
      };
      add(layer.k, options.head_dim_qk);
      add(layer.v, options.head_dim_v);
      EXPECT_EQ(places.size() * 2, layout.bytes());
      EXPECT_EQ(*places.begin(), 0);
      EXPECT_EQ(*places.rbegin() + 2, layout.bytes());
    }
  }
}

TEST(KvLayoutTest, StridesOfTheCallerAreUsed) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kNHD));
  char k[1], v[1];
  // k is transposed to [.., dim, head]: dims have stride 3, in chunks of one.
  const std::vector<int64_t> k_strides = {1000, 24, 1, 3}, v_strides = {2000, 24, 8, 1};
  KvLayer layer = layout.MakeKvLayer({{k, k_strides}, {v, v_strides}});
  EXPECT_EQ(layer.k.Offset(2, 1, 2, 7), 2000 + 24 + 2 + 7 * 3);
  EXPECT_EQ(layer.v.Offset(2, 1, 2, 7), 4000 + 24 + 16 + 7);
  EXPECT_EQ(layer.v.dim_chunk, 8);
}

TEST(KvLayoutTest, ReportsTheBytesOfAllLayers) {
  KvLayoutOptions options = SmallOptions(KvForm::kPair, KvOrder::kNHD);
  options.num_layers = 7;
  KvLayout layout = *KvLayout::Create(options);
  EXPECT_EQ(layout.bytes_per_block(), 7 * 4 * 3 * (8 + 8) * 2);
  EXPECT_EQ(layout.bytes(), 5 * layout.bytes_per_block());
}

TEST(KvLayoutTest, BudgetIsRoundedDownToWholeBlocks) {
  KvLayoutOptions options = SmallOptions(KvForm::kPair, KvOrder::kNHD);  // 384 bytes per block
  EXPECT_EQ(*NumBlocksForBytes(options, 384 * 10 + 383), 10);
  EXPECT_EQ(*NumBlocksForBytes(options, 384 * 2), 2);
  EXPECT_EQ(*NumBlocksForBytes(options, INT64_MAX), INT_MAX);
  EXPECT_THAT(std::string(NumBlocksForBytes(options, 767).status().message()),
              HasSubstr("expected at least 768, got 767"));
  EXPECT_FALSE(NumBlocksForBytes(options, -1).ok());
}

TEST(KvLayoutTest, RejectsOptionsOutOfRange) {
  const auto message = [](auto change, KvForm form = KvForm::kPair) {
    KvLayoutOptions options = SmallOptions(form, KvOrder::kNHD);
    change(options);
    absl::Status status = KvLayout::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& o) { o.block_size = 0; }),
              HasSubstr("block_size: expected at least 1, got 0"));
  EXPECT_THAT(message([](auto& o) { o.num_layers = 0; }), HasSubstr("num_layers"));
  EXPECT_THAT(message([](auto& o) { o.num_blocks = 0; }), HasSubstr("num_blocks"));
  EXPECT_THAT(message([](auto& o) { o.num_kv_heads = -1; }), HasSubstr("num_kv_heads"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_qk = 0; }), HasSubstr("head_dim_qk"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_v = 0; }), HasSubstr("head_dim_v"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_v = 4; }, KvForm::kPacked),
              HasSubstr("head_dim_v must equal head_dim_qk in a packed cache: expected 8, got 4"));
  EXPECT_THAT(message([](auto&) {}, KvForm::kLatent),
              HasSubstr("num_kv_heads must be 1 in a latent cache: expected 1, got 3"));
  EXPECT_THAT(
      message(
          [](auto& o) {
            o.num_kv_heads = 1;
            o.head_dim_v = 9;
          },
          KvForm::kLatent),
      HasSubstr("head_dim_v must not exceed head_dim_qk in a latent cache: expected at most "
                "8, got 9"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_qk = 12; }, KvForm::kKPacked),
              HasSubstr("expected a multiple of 8, got 12"));
  EXPECT_THAT(message([](auto& o) { o.num_blocks = o.block_size = o.num_kv_heads = INT_MAX; }),
              HasSubstr("too large"));
  EXPECT_THAT(message([](auto& o) { o.num_layers = o.block_size = o.head_dim_qk = INT_MAX; }),
              HasSubstr("a block is too large"));
}

TEST(KvLayoutTest, CacheDTypesHaveNames) {
  EXPECT_EQ(*ParseKvCacheDType("auto", DType::kFloat16), DType::kFloat16);
  EXPECT_EQ(*ParseKvCacheDType("fp8", DType::kFloat16), DType::kFp8E4M3);
  EXPECT_EQ(*ParseKvCacheDType("fp8_e4m3", DType::kFloat16), DType::kFp8E4M3);
  EXPECT_EQ(*ParseKvCacheDType("fp8_e5m2", DType::kFloat16), DType::kFp8E5M2);
  EXPECT_EQ(*ParseKvCacheDType("bfloat16", DType::kFloat16), DType::kBFloat16);
  EXPECT_THAT(std::string(ParseKvCacheDType("int8", DType::kFloat16).status().message()),
              HasSubstr("expected auto, float32, float16, bfloat16, fp8, fp8_e4m3 or fp8_e5m2, got "
                        "\"int8\""));
  EXPECT_FALSE(ParseKvCacheDType("", DType::kFloat16).ok());
}

TEST(KvLayoutTest, ParsesNamesAndRejectsUnknownNames) {
  EXPECT_EQ(*ParseKvOrder("NHD"), KvOrder::kNHD);
  EXPECT_EQ(*ParseKvOrder("HND"), KvOrder::kHND);
  EXPECT_THAT(std::string(ParseKvOrder("nhd").status().message()),
              HasSubstr("expected NHD or HND, got \"nhd\""));
  EXPECT_FALSE(ParseKvOrder("").ok());
}

TEST(KvLayoutDeathTest, DiesUnlessEveryTensorHasARef) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kNHD));
  EXPECT_DEATH(layout.MakeKvLayer({{nullptr, layout.tensors()[0].strides}}),
               "one entry per tensor");
}

}  // namespace
}  // namespace reprise
