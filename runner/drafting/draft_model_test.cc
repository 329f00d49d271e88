#include "reprise/runner/drafting/draft_model.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

LayerSpec Layer() {
  return {.params = {.num_q_heads = 8, .num_kv_heads = 2, .head_dim_qk = 64, .head_dim_v = 64}};
}

LayerSpec Window(int window_left) {
  LayerSpec layer = Layer();
  layer.params.window_left = window_left;
  return layer;
}

LayerSpec Chunks(int chunk_size) {
  LayerSpec layer = Layer();
  layer.chunk_size = chunk_size;
  return layer;
}

LayerClasses ClassesOf(const std::vector<LayerSpec>& layers, int first_draft_layer) {
  absl::StatusOr<LayerClasses> classes = CollectClassesWithDrafter(layers, first_draft_layer);
  EXPECT_TRUE(classes.ok()) << classes.status();
  return classes.ok() ? *std::move(classes) : LayerClasses{};
}

TEST(ClassesWithDrafterTest, DraftLayersRetainAllKeysAndKeepTheirWindows) {
  const LayerClasses classes =
      ClassesOf({Window(9), Layer(), Window(9), Layer(), Chunks(16)}, /*first_draft_layer=*/2);
  EXPECT_THAT(classes.groups,
              ElementsAre(KvGroupSpec{.retention = KvRetention::kSlidingWindow, .span = 10},
                          KvGroupSpec{}));
  EXPECT_THAT(classes.group_of_layer,
              ElementsAre(Optional(0), Optional(1), Optional(1), Optional(1), Optional(1)));
  // The draft layer has the same window as the model's layer, but a different block table.
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 1, 2, 1, 3));
  ASSERT_EQ(classes.num_classes(), 4);
  EXPECT_EQ(classes.classes[2].first_layer, 2);
  EXPECT_EQ(classes.classes[2].batch, ClassBatch::kRows);
  EXPECT_THAT(classes.classes[2].kv_group, Optional(1));
  EXPECT_EQ(classes.classes[3].batch, ClassBatch::kLocalRows);
  EXPECT_THAT(classes.classes[3].chunk_size, Optional(16));
  EXPECT_THAT(classes.classes[3].kv_group, Optional(1));
}

TEST(ClassesWithDrafterTest, ModelWithOnlyWindowsGetsAGroupForItsDrafter) {
  const LayerClasses classes =
      ClassesOf({Window(9), Window(4), Window(4)}, /*first_draft_layer=*/1);
  EXPECT_THAT(classes.groups,
              ElementsAre(KvGroupSpec{.retention = KvRetention::kSlidingWindow, .span = 10},
                          KvGroupSpec{}));
  EXPECT_THAT(classes.class_of_layer, ElementsAre(0, 1, 1));
}

TEST(ClassesWithDrafterTest, WithoutADrafterClassesEqualTheModelsClasses) {
  std::vector<LayerSpec> layers = {Window(9), Layer(), Chunks(16), Window(9), Layer()};
  layers[4].shares_kv_with = 1;
  const LayerClasses classes = ClassesOf(layers, /*first_draft_layer=*/5);
  const auto plain = CollectLayerClasses(layers);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(classes.class_of_layer, plain->class_of_layer);
  EXPECT_EQ(classes.groups, plain->groups);
  EXPECT_EQ(classes.group_of_layer, plain->group_of_layer);
  EXPECT_EQ(classes.cache_of_layer, plain->cache_of_layer);
  ASSERT_EQ(classes.num_classes(), plain->num_classes());
  for (int i = 0; i < classes.num_classes(); ++i) {
    EXPECT_EQ(classes.classes[i].first_layer, plain->classes[i].first_layer);
    EXPECT_EQ(classes.classes[i].kv_group, plain->classes[i].kv_group);
  }
}

TEST(ClassesWithDrafterTest, RejectsInvalidLayers) {
  std::vector<LayerSpec> layers = {Layer(), Chunks(0)};
  const absl::Status status = CollectClassesWithDrafter(layers, 1).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), testing::HasSubstr("chunk_size"));
}

}  // namespace
}  // namespace reprise
