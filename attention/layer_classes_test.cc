#include "reprise/attention/layer_classes.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;

LayerSpec Layer() {
  return {.params = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64}};
}

LayerClasses ClassesOf(const std::vector<LayerSpec>& layers) {
  absl::StatusOr<LayerClasses> classes = CollectLayerClasses(layers);
  EXPECT_TRUE(classes.ok()) << classes.status();
  return classes.ok() ? *std::move(classes) : LayerClasses{};
}

TEST(LayerClassesTest, AlternatingWindowsMakeTwoClassesAndTwoGroups) {
  std::vector<LayerSpec> layers(5, Layer());
  layers[1].params.window_left = layers[3].params.window_left = 127;
  const LayerClasses classes = ClassesOf(layers);
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 1, 0, 1, 0));
  ASSERT_EQ(classes.num_classes(), 2);
  EXPECT_EQ(classes.classes[0].first_layer, 0);
  EXPECT_EQ(classes.classes[1].first_layer, 1);
  EXPECT_THAT(classes.groups,
              ElementsAre(KvGroupSpec{},
                          KvGroupSpec{.retention = KvRetention::kSlidingWindow, .span = 128}));
  EXPECT_THAT(classes.group_of_layer, ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(classes.cache_of_layer, ElementsAre(0, 1, 2, 3, 4));
}

TEST(LayerClassesTest, LlamaFourHasChunkedClassesWithAChunkedGroup) {
  std::vector<LayerSpec> layers(4, Layer());
  layers[0].chunk_size = layers[1].chunk_size = layers[2].chunk_size = 8192;
  const LayerClasses classes = ClassesOf(layers);
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 0, 0, 1));
  EXPECT_EQ(classes.classes[0].batch, ClassBatch::kLocalRows);
  EXPECT_EQ(classes.classes[0].chunk_size, 8192);
  EXPECT_EQ(classes.classes[1].batch, ClassBatch::kRows);
  EXPECT_THAT(classes.groups,
              ElementsAre(KvGroupSpec{.retention = KvRetention::kChunkedLocal, .span = 8192},
                          KvGroupSpec{}));
}

TEST(LayerClassesTest, EncodersHaveNoCacheAndCrossAttentionHasASeparateGroup) {
  std::vector<LayerSpec> layers(4, Layer());
  layers[0].kind = AttentionKind::kEncoder;
  layers[2].kind = AttentionKind::kEncoderDecoder;
  layers[3].kind = AttentionKind::kEncoderOnly;
  const LayerClasses classes = ClassesOf(layers);
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(classes.classes[0].batch, ClassBatch::kContiguous);
  EXPECT_EQ(classes.classes[0].kv_group, std::nullopt);
  EXPECT_EQ(classes.classes[2].batch, ClassBatch::kEncoderKeys);
  EXPECT_EQ(classes.classes[2].kv_group, 1);
  EXPECT_EQ(classes.classes[3].batch, ClassBatch::kContiguous);
  EXPECT_THAT(classes.groups,
              ElementsAre(KvGroupSpec{}, KvGroupSpec{.retention = KvRetention::kCross}));
  EXPECT_THAT(classes.group_of_layer,
              ElementsAre(Eq(std::nullopt), Eq(0), Eq(1), Eq(std::nullopt)));
  EXPECT_THAT(classes.cache_of_layer,
              ElementsAre(Eq(std::nullopt), Eq(1), Eq(2), Eq(std::nullopt)));
}

TEST(LayerClassesTest, ALayerThatSharesACacheIsInItsOwnersGroup) {
  std::vector<LayerSpec> layers(3, Layer());
  layers[1].params.window_left = 99;  // needs fewer keys than the full cache that it reads
  layers[1].shares_kv_with = 0;
  layers[2].params.window_left = 99;
  const LayerClasses classes = ClassesOf(layers);
  EXPECT_THAT(classes.group_of_layer, ElementsAre(0, 0, 1));
  EXPECT_THAT(classes.cache_of_layer, ElementsAre(0, 0, 2));
  // The last two classes differ only in the block table.
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 1, 2));
}

TEST(LayerClassesTest, PerLayerParametersDoNotSplitAClass) {
  std::vector<LayerSpec> layers(4, Layer());
  const float sinks[8] = {};
  layers[1].params.softcap = 30.0f;
  layers[2].params.scale = 0.5f;
  layers[3].params.sinks = sinks;
  EXPECT_THAT(ClassesOf(layers).class_of_layer, ElementsAre(0, 0, 0, 0));
}

TEST(LayerClassesTest, EachMetadataParameterSplitsAClass) {
  std::vector<LayerSpec> layers(10, Layer());
  layers[1].params.num_q_heads = 16;
  layers[2].params.num_kv_heads = 4;
  layers[3].params.head_dim_qk = 128;
  layers[4].params.head_dim_v = 32;
  layers[5].params.window_left = 0;
  layers[6].params.window_right = 0;
  layers[7].chunk_size = 64;
  layers[8].v_in_k = true;
  layers[9].q_dtype = DType::kFp8E4M3;
  EXPECT_THAT(ClassesOf(layers).class_of_layer, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(LayerClassesTest, WindowOfIntMaxKeepsAllKeys) {
  std::vector<LayerSpec> layers(1, Layer());
  layers[0].params.window_left = INT32_MAX;
  EXPECT_THAT(ClassesOf(layers).groups, ElementsAre(KvGroupSpec{}));
}

std::string RefusalOf(const std::vector<LayerSpec>& layers) {
  const absl::Status status = CollectLayerClasses(layers).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(LayerClassesTest, RejectsAnEmptySetOfLayers) {
  EXPECT_EQ(RefusalOf({}), "layers: expected at least one attention layer, got none");
}

TEST(LayerClassesTest, RejectsInvalidLayersByNameAndValue) {
  const auto refusal = [](auto change) {
    std::vector<LayerSpec> layers(2, Layer());
    change(layers[1]);
    return RefusalOf(layers);
  };
  EXPECT_EQ(refusal([](LayerSpec& layer) { layer.params.num_q_heads = 7; }),
            "layers[1].params.num_q_heads: expected a multiple of num_kv_heads (2), got 7");
  EXPECT_EQ(refusal([](LayerSpec& layer) { layer.chunk_size = 0; }),
            "layers[1].chunk_size: expected at least 1, got 0");
  EXPECT_EQ(refusal([](LayerSpec& layer) {
              layer.chunk_size = 8;
              layer.kind = AttentionKind::kEncoderDecoder;
            }),
            "layers[1].chunk_size: expected none for kind encoder-decoder, got 8");
  EXPECT_EQ(refusal([](LayerSpec& layer) {
              layer.v_in_k = true;
              layer.params.head_dim_v = 65;
            }),
            "layers[1].params.head_dim_v: expected at most 64 (head_dim_qk) with v_in_k, got 65");
}

// Cross attention works next to layers with windows, but must not have a window.
TEST(LayerClassesTest, RejectsAWindowOnCrossAttention) {
  std::vector<LayerSpec> layers(2, Layer());
  layers[0].params.window_left = 7;
  layers[1].kind = AttentionKind::kEncoderDecoder;
  EXPECT_THAT(ClassesOf(layers).class_of_layer, ElementsAre(0, 1));
  layers[1].params.window_left = 7;
  EXPECT_EQ(RefusalOf(layers),
            "layers[1].params.window_left: expected none for kind encoder-decoder, whose queries "
            "and keys have no positions in common, got 7");
  layers[1].params.window_left.reset();
  layers[1].params.window_right = 0;
  EXPECT_THAT(RefusalOf(layers), HasSubstr("layers[1].params.window_right: expected none"));
}

TEST(LayerClassesTest, RejectsInvalidSharingWithTheReason) {
  const auto refusal = [](auto change) {
    std::vector<LayerSpec> layers(3, Layer());
    layers[2].shares_kv_with = 1;
    change(layers);
    return RefusalOf(layers);
  };
  using Layers = std::vector<LayerSpec>&;
  EXPECT_EQ(refusal([](Layers layers) { layers[2].shares_kv_with = 2; }),
            "layers[2].shares_kv_with: expected an earlier layer, 0 to 1, got 2");
  EXPECT_THAT(refusal([](Layers layers) { layers[2].shares_kv_with = -1; }), HasSubstr("got -1"));
  EXPECT_EQ(refusal([](Layers layers) { layers[1].shares_kv_with = 0; }),
            "layers[2].shares_kv_with: expected a layer that owns its cache, got 1, which "
            "shares the cache of layer 0");
  EXPECT_EQ(refusal([](Layers layers) { layers[1].kind = AttentionKind::kEncoder; }),
            "layers[2].shares_kv_with: expected a layer of kind decoder, got 1 of kind encoder");
  EXPECT_EQ(refusal([](Layers layers) { layers[2].kind = AttentionKind::kEncoderOnly; }),
            "layers[2].shares_kv_with: expected none for kind encoder-only, got 1");
  EXPECT_THAT(refusal([](Layers layers) { layers[2].params.head_dim_v = 32; }),
              HasSubstr("the same num_kv_heads, head_dim_qk, head_dim_v and v_in_k"));
  EXPECT_EQ(refusal([](Layers layers) { layers[1].params.window_left = 63; }),
            "layers[2].shares_kv_with: expected a layer that keeps all keys, got 1, which keeps a "
            "window of 64 tokens");
  EXPECT_THAT(refusal([](Layers layers) {
                layers[1].chunk_size = 64;
                layers[2].params.window_left = 3;
              }),
              HasSubstr("which keeps a chunk of 64 tokens"));
}

// By the definition of the groups: the owner keeps every key that the sharer needs, at every
// length.
TEST(LayerClassesTest, AcceptsSharingOnlyIfTheOwnerKeepsAllNeededKeys) {
  std::vector<LayerSpec> kinds;
  kinds.push_back(Layer());
  for (int span : {1, 2, 3, 4, 6, 8}) {
    kinds.push_back(Layer());
    kinds.back().params.window_left = span - 1;
    kinds.push_back(Layer());
    kinds.back().chunk_size = span;
  }
  for (const LayerSpec& owner : kinds) {
    for (LayerSpec sharer : kinds) {
      const KvGroupSpec kept = ClassesOf({owner}).groups[0];
      const KvGroupSpec needed = ClassesOf({sharer}).groups[0];
      bool is_enough = true;
      for (int64_t n = 0; n < 100; ++n) {
        // No key after the last token is kept or needed.
        is_enough &= std::min(FirstNeededPosition(kept, n), n) <=
                     std::min(FirstNeededPosition(needed, n), n);
      }
      sharer.shares_kv_with = 0;
      EXPECT_EQ(CollectLayerClasses(std::vector<LayerSpec>{owner, sharer}).ok(), is_enough)
          << "owner's span " << kept.span << ", sharer's " << needed.span;
    }
  }
}

}  // namespace
}  // namespace reprise
