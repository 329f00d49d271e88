#include "cache/kv_layout.h"

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

TEST(KvLayoutTest, PairIsIndexedAlikeInBothOrders) {
  KvLayout nhd = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kNHD));
  KvLayout hnd = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kHND));
  ASSERT_EQ(nhd.tensors().size(), 2);
  EXPECT_THAT(nhd.tensors()[0].shape, ElementsAre(5, 4, 3, 8));
  EXPECT_THAT(hnd.tensors()[0].shape, ElementsAre(5, 4, 3, 8));
  EXPECT_THAT(nhd.tensors()[0].strides, ElementsAre(96, 24, 8, 1));  // 4*3*8, 3*8, 8
  EXPECT_THAT(hnd.tensors()[0].strides, ElementsAre(96, 8, 32, 1));  // 4*3*8, 8, 4*8
}

TEST(KvLayoutTest, PackedHoldsVBesideKInEachBlock) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kPacked, KvOrder::kHND));
  ASSERT_EQ(layout.tensors().size(), 1);
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 2, 4, 3, 8));
  EXPECT_THAT(layout.tensors()[0].strides, ElementsAre(192, 96, 8, 32, 1));
  char memory[1];
  KvLayer layer = LayerOf(layout, {memory});
  EXPECT_EQ(static_cast<char*>(layer.v.data) - memory, 96 * 2);  // elements of 2 bytes
}

TEST(KvLayoutTest, DiffKvPutsVBehindKInTheLastDimension) {
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

TEST(KvLayoutTest, KPackedKeepsSixteenBytesTogether) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kKPacked, KvOrder::kNHD));
  EXPECT_THAT(layout.tensors()[0].shape, ElementsAre(5, 3, 1, 4, 8));  // x = 16 / 2
  EXPECT_THAT(layout.tensors()[1].shape, ElementsAre(5, 3, 8, 4));
  char k[1], v[1];
  KvLayer layer = LayerOf(layout, {k, v});
  EXPECT_EQ(layer.k.Offset(1, 2, 1, 5), 96 + 32 + 2 * 8 + 5);
  EXPECT_EQ(layer.v.Offset(1, 2, 1, 5), 96 + 32 + 5 * 4 + 2);
}

TEST(KvLayoutTest, EveryLayoutGivesEachElementAPlaceOfItsOwn) {
  for (KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked}) {
    for (KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      SCOPED_TRACE(testing::Message() << form << " " << order);
      KvLayoutOptions options = SmallOptions(form, order);
      if (form != KvForm::kPacked) options.head_dim_v = 5;
      KvLayout layout = *KvLayout::Create(options);
      std::vector<std::byte> memory(layout.bytes());
      std::vector<void*> tensors = {memory.data()};
      if (layout.tensors().size() == 2) {
        tensors.push_back(memory.data() + 5 * 4 * 3 * 8 * 2);  // behind all of k
      }
      KvLayer layer = LayerOf(layout, tensors);

      std::set<int64_t> places;  // bytes from the beginning
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

TEST(KvLayoutTest, CallersStridesReplaceItsOwn) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kNHD));
  char k[1], v[1];
  // k is transposed to [.., dim, head]: dims are 3 apart and stand in chunks of one.
  const std::vector<int64_t> k_strides = {1000, 24, 1, 3}, v_strides = {2000, 24, 8, 1};
  KvLayer layer = layout.MakeKvLayer({{k, k_strides}, {v, v_strides}});
  EXPECT_EQ(layer.k.Offset(2, 1, 2, 7), 2000 + 24 + 2 + 7 * 3);
  EXPECT_EQ(layer.v.Offset(2, 1, 2, 7), 4000 + 24 + 16 + 7);
  EXPECT_EQ(layer.v.dim_chunk, 8);
}

TEST(KvLayoutTest, CountsTheBytesOfAllLayers) {
  KvLayoutOptions options = SmallOptions(KvForm::kPair, KvOrder::kNHD);
  options.num_layers = 7;
  KvLayout layout = *KvLayout::Create(options);
  EXPECT_EQ(layout.bytes_per_block(), 7 * 4 * 3 * (8 + 8) * 2);
  EXPECT_EQ(layout.bytes(), 5 * layout.bytes_per_block());
}

TEST(KvLayoutTest, ABudgetBuysWholeBlocks) {
  KvLayoutOptions options = SmallOptions(KvForm::kPair, KvOrder::kNHD);  // 384 bytes a block
  EXPECT_EQ(*NumBlocksForBytes(options, 384 * 10 + 383), 10);
  EXPECT_EQ(*NumBlocksForBytes(options, 384 * 2), 2);
  EXPECT_EQ(*NumBlocksForBytes(options, INT64_MAX), INT_MAX);
  EXPECT_THAT(std::string(NumBlocksForBytes(options, 767).status().message()),
              HasSubstr("expected at least 768, got 767"));
  EXPECT_FALSE(NumBlocksForBytes(options, -1).ok());
}

TEST(KvLayoutTest, OptionsOutOfRangeAreNamed) {
  const auto message = [](auto change, KvForm form = KvForm::kPair) {
    KvLayoutOptions options = SmallOptions(form, KvOrder::kNHD);
    change(options);
    absl::Status status = KvLayout::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& o) { o.block_size = 0; }), HasSubstr("block_size must be positive"));
  EXPECT_THAT(message([](auto& o) { o.num_layers = 0; }), HasSubstr("num_layers"));
  EXPECT_THAT(message([](auto& o) { o.num_blocks = 0; }), HasSubstr("num_blocks"));
  EXPECT_THAT(message([](auto& o) { o.num_kv_heads = -1; }), HasSubstr("num_kv_heads"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_qk = 0; }), HasSubstr("head_dim_qk"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_v = 0; }), HasSubstr("head_dim_v"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_v = 4; }, KvForm::kPacked),
              HasSubstr("head_dim_v must be head_dim_qk in a packed cache: expected 8, got 4"));
  EXPECT_THAT(message([](auto& o) { o.head_dim_qk = 12; }, KvForm::kKPacked),
              HasSubstr("expected a multiple of 8, got 12"));
  EXPECT_THAT(message([](auto& o) { o.num_blocks = o.block_size = o.num_kv_heads = INT_MAX; }),
              HasSubstr("too large"));
  EXPECT_THAT(message([](auto& o) { o.num_layers = o.block_size = o.head_dim_qk = INT_MAX; }),
              HasSubstr("a block is too large"));
}

TEST(KvLayoutTest, NamesParseAndUnknownOnesAreRefused) {
  EXPECT_EQ(*ParseKvOrder("NHD"), KvOrder::kNHD);
  EXPECT_EQ(*ParseKvOrder("HND"), KvOrder::kHND);
  EXPECT_THAT(std::string(ParseKvOrder("nhd").status().message()),
              HasSubstr("expected NHD or HND, got \"nhd\""));
  EXPECT_FALSE(ParseKvOrder("").ok());
}

TEST(KvLayoutDeathTest, ARefATensor) {
  KvLayout layout = *KvLayout::Create(SmallOptions(KvForm::kPair, KvOrder::kNHD));
  EXPECT_DEATH(layout.MakeKvLayer({{nullptr, layout.tensors()[0].strides}}), "that many tensors");
}

}  // namespace
}  // namespace reprise
