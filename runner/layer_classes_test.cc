#include "runner/layer_classes.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

LayerSpec Layer() {
  return {.params = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64}};
}

TEST(LayerClassesTest, AlternatingWindowsMakeTwoClasses) {
  std::vector<LayerSpec> layers(5, Layer());
  layers[1].params.window_left = layers[3].params.window_left = 127;
  const LayerClasses classes = CollectLayerClasses(layers);
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(classes.representatives, ElementsAre(0, 1));
}

TEST(LayerClassesTest, WhatTheMapDoesNotLookAtMakesNoClass) {
  std::vector<LayerSpec> layers(3, Layer());
  layers[1].params.softcap = 30.0f;
  layers[2].params.scale = 0.5f;
  EXPECT_THAT(CollectLayerClasses(layers).class_of_layer, ElementsAre(0, 0, 0));
}

TEST(LayerClassesTest, EachFieldTheMapLooksAtMakesAClass) {
  std::vector<LayerSpec> layers(7, Layer());
  layers[1].params.num_q_heads = 16;
  layers[2].params.num_kv_heads = 4;
  layers[3].params.head_dim_qk = 128;
  layers[4].params.head_dim_v = 128;
  layers[5].params.window_left = 0;
  layers[6].params.window_right = 0;
  EXPECT_THAT(CollectLayerClasses(layers).class_of_layer, ElementsAre(0, 1, 2, 3, 4, 5, 6));
}

TEST(LayerClassesTest, NoLayersNoClasses) {
  EXPECT_THAT(CollectLayerClasses({}).representatives, IsEmpty());
}

}  // namespace
}  // namespace reprise
