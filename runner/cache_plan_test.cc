#include "reprise/runner/cache_plan.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

ModelSpec Spec() {
  return {
      .layers = std::vector<LayerSpec>(
          3, {.params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 8}}),
      .vocab_size = 10,
      .max_position = 64,
      .dtype = DType::kBFloat16};
}

// A block of 4 tokens: 3 layers x 2 tensors x 4 tokens x 2 heads x 8 dims x 2 bytes.
constexpr int64_t kBlockBytes = 3 * 2 * 4 * 2 * 8 * 2;

CachePlan PlanFor(ModelRunnerOptions options, const ModelSpec& spec) {
  options.cache.block_size = 4;
  const auto resolved = ResolveRunnerOptions(options, spec);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  const auto classes = CollectLayerClasses(spec.layers);
  EXPECT_TRUE(classes.ok()) << classes.status();
  const auto plan = CachePlan::Create(*resolved, spec, *classes);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(CachePlanTest, DefaultSizeHoldsEveryRowAtFullLength) {
  // ceil(64 / 4) blocks for each of 2 sequences, and the null block.
  const auto num_blocks = PlanFor({.max_num_seqs = 2}, Spec()).ChooseNumBlocks(std::nullopt, 0);
  ASSERT_TRUE(num_blocks.ok()) << num_blocks.status();
  EXPECT_EQ(*num_blocks, 1 + 2 * 16);
}

TEST(CachePlanTest, GroupsWithWindowsNeedFewerBlocks) {
  ModelSpec spec = Spec();
  spec.layers[0].params.window_left = 7;
  // Full attention: 16 blocks. A window of 8 tokens, a step of 4 and a block of 4: ceil(16 / 4)
  // blocks.
  const auto num_blocks =
      PlanFor({.max_num_seqs = 2, .max_num_tokens = 4}, spec).ChooseNumBlocks(std::nullopt, 0);
  ASSERT_TRUE(num_blocks.ok()) << num_blocks.status();
  EXPECT_EQ(*num_blocks, 1 + 2 * (16 + 4));
}

TEST(CachePlanTest, CacheStaysWithinTheRequestedBytes) {
  const auto choose = [](int64_t bytes) {
    return PlanFor({.cache = {.size = NumBytes{bytes}}}, Spec()).ChooseNumBlocks(std::nullopt, 0);
  };
  EXPECT_EQ(choose(7 * kBlockBytes + 1).value(), 7);
  EXPECT_EQ(choose(2 * kBlockBytes - 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CachePlanTest, TheCacheLeavesRoomForGraphsOnAGpu) {
  const CachePlan plan = PlanFor({.max_num_seqs = 2}, Spec());
  // (100 - 50 blocks) * 9/10 = 45 blocks would fit, and 33 are enough. With 30 blocks free: 27.
  EXPECT_EQ(plan.ChooseNumBlocks(100 * kBlockBytes, 50 * kBlockBytes).value(), 33);
  EXPECT_EQ(plan.ChooseNumBlocks(40 * kBlockBytes, 10 * kBlockBytes).value(), 27);
  const auto none = plan.ChooseNumBlocks(10 * kBlockBytes, 9 * kBlockBytes);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(CachePlanTest, IdenticalLayersHaveSeparateTensors) {
  const CachePlan plan = PlanFor({}, Spec());
  EXPECT_FALSE(plan.has_pages());
  EXPECT_EQ(plan.bytes_per_block(), kBlockBytes);
  const auto cache = plan.Allocate(5, c10::kCPU);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ(plan.LayersOf(*cache).size(), 3u);
}

TEST(CachePlanTest, AnyDifferenceBetweenLayersRequiresPages) {
  const auto has_pages = [](const std::function<void(ModelSpec&)>& spoil) {
    ModelSpec spec = Spec();
    spoil(spec);
    const CachePlan plan = PlanFor({}, spec);
    const auto cache = plan.Allocate(3, c10::kCPU);
    EXPECT_TRUE(cache.ok()) << cache.status();
    for (const KvLayer& kv : plan.LayersOf(*cache)) EXPECT_EQ(kv.num_blocks, 3);
    return plan.has_pages();
  };
  EXPECT_TRUE(has_pages([](ModelSpec& s) { s.layers[2].params.num_kv_heads = 4; }));
  EXPECT_TRUE(has_pages([](ModelSpec& s) { s.layers[2].params.head_dim_v = 16; }));
  EXPECT_TRUE(has_pages([](ModelSpec& s) { s.layers[1].params.window_left = 3; }));
  EXPECT_TRUE(has_pages([](ModelSpec& s) { s.layers[1].chunk_size = 8; }));
  EXPECT_TRUE(has_pages([](ModelSpec& s) { s.layers[2].shares_kv_with = 0; }));
  // All layers have the same window: one group.
  EXPECT_FALSE(has_pages([](ModelSpec& s) {
    for (LayerSpec& layer : s.layers) layer.params.window_left = 3;
  }));
}

TEST(CachePlanTest, SharingLayersShareMemoryAndEncoderLayersHaveNoCache) {
  // Layer 0 has no cache; layers 1 and 2 share their memory.
  ModelSpec spec = Spec();
  spec.layers[0].kind = AttentionKind::kEncoder;
  spec.layers[2].shares_kv_with = 1;
  const CachePlan plan = PlanFor({}, spec);
  const auto cache = plan.Allocate(3, c10::kCPU);
  ASSERT_TRUE(cache.ok()) << cache.status();
  const std::vector<KvLayer> layers = plan.LayersOf(*cache);
  EXPECT_EQ(layers[0].k.data, nullptr);
  EXPECT_EQ(layers[1].k.data, layers[2].k.data);
  EXPECT_EQ(layers[1].v.data, layers[2].v.data);
  // The keys and the values of one layer take 128 bytes each, but tensors begin at multiples of
  // 256.
  EXPECT_EQ(plan.bytes_per_block(), 2 * 256);
}

TEST(CachePlanTest, MlaStoresOneLatent) {
  ModelSpec spec = Spec();
  for (LayerSpec& layer : spec.layers) {
    layer = {.params = {.num_q_heads = 4, .num_kv_heads = 1, .head_dim_qk = 12, .head_dim_v = 8},
             .v_in_k = true};
  }
  const CachePlan plan = PlanFor({}, spec);
  EXPECT_EQ(plan.bytes_per_block(), 3 * 4 * 12 * 2);
  const auto cache = plan.Allocate(3, c10::kCPU);
  ASSERT_TRUE(cache.ok()) << cache.status();
  for (const KvLayer& kv : plan.LayersOf(*cache)) EXPECT_TRUE(IsLatent(kv));
}

}  // namespace
}  // namespace reprise
