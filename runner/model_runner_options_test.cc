#include "runner/model_runner_options.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

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

ModelRunnerOptions Resolved(ModelRunnerOptions options) {
  options.block_size = 4;
  auto resolved = ResolveRunnerOptions(options, Spec());
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

TEST(ModelRunnerOptionsTest, DefaultsFollowTheModelAndTheDevice) {
  const ModelRunnerOptions on_cpu = Resolved({});
  EXPECT_EQ(on_cpu.max_seq_len, 64);
  EXPECT_EQ(on_cpu.kv_dtype, DType::kBFloat16);
  EXPECT_EQ(on_cpu.graphs, GraphSetOptions::Mode::kLazy);
  EXPECT_EQ(on_cpu.max_steps_in_flight, 1);

  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  const auto on_gpu = ResolveRunnerOptions({}, spec);
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_EQ(on_gpu->graphs, GraphSetOptions::Mode::kEager);
  EXPECT_EQ(on_gpu->max_steps_in_flight, 2);
}

TEST(ModelRunnerOptionsTest, RefusesOptionsByNameAndValue) {
  const auto refused = [](ModelRunnerOptions options) {
    const auto resolved = ResolveRunnerOptions(options, Spec());
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(resolved.status().message());
  };
  EXPECT_THAT(refused({.max_num_seqs = 0}), HasSubstr("max_num_seqs"));
  EXPECT_THAT(refused({.max_num_seqs = 8, .max_num_tokens = 7}),
              HasSubstr("max_num_tokens is too small: expected at least 8, got 7"));
  EXPECT_THAT(refused({.max_seq_len = 65}), HasSubstr("expected at most 64, got 65"));
  EXPECT_THAT(refused({.max_seq_len = 0}), HasSubstr("max_seq_len"));
  EXPECT_THAT(refused({.block_size = 0}), HasSubstr("block_size"));
  EXPECT_THAT(refused({.num_blocks = 1}), HasSubstr("num_blocks"));
  EXPECT_THAT(refused({.num_blocks = 4, .kv_memory_bytes = 9}), HasSubstr("exclude each other"));
  EXPECT_THAT(refused({.max_steps_in_flight = 0}), HasSubstr("max_steps_in_flight"));
}

TEST(ModelRunnerOptionsTest, RefusesSpecsByField) {
  const auto refused = [](const std::function<void(ModelSpec&)>& spoil) {
    ModelSpec spec = Spec();
    spoil(spec);
    return std::string(ResolveRunnerOptions({}, spec).status().message());
  };
  EXPECT_THAT(refused([](ModelSpec& s) { s.layers.clear(); }), HasSubstr("no attention layer"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.vocab_size = 0; }), HasSubstr("vocab_size"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.max_position = -1; }), HasSubstr("max_position"));
}

TEST(ModelRunnerOptionsTest, LayersWithOtherCachesAreRefusedByIndex) {
  ModelSpec spec = Spec();
  spec.layers[2].params.num_kv_heads = 4;
  const auto layout = CacheLayoutFor(Resolved({}), spec, 2);
  EXPECT_EQ(layout.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(layout.status().message()), HasSubstr("layer 2"));
}

TEST(ModelRunnerOptionsTest, TheCacheHoldsEveryRowAtFullLengthIfNothingIsAsked) {
  // ceil(64 / 4) blocks for each of 2 sequences, and the null block.
  const auto num_blocks = ChooseNumBlocks(Resolved({.max_num_seqs = 2}), Spec(), std::nullopt, 0);
  ASSERT_TRUE(num_blocks.ok()) << num_blocks.status();
  EXPECT_EQ(*num_blocks, 1 + 2 * 16);
}

TEST(ModelRunnerOptionsTest, TheCacheKeepsWithinTheBytesAskedFor) {
  const auto choose = [](int64_t bytes) {
    return ChooseNumBlocks(Resolved({.kv_memory_bytes = bytes}), Spec(), std::nullopt, 0);
  };
  EXPECT_EQ(choose(7 * kBlockBytes + 1).value(), 7);
  EXPECT_EQ(choose(2 * kBlockBytes - 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModelRunnerOptionsTest, TheCacheLeavesRoomForGraphsOnAGpu) {
  const ModelRunnerOptions options = Resolved({.max_num_seqs = 2});
  // (100 - 50 blocks' bytes) * 9/10 = 45 blocks would fit, 33 are enough; of 30 blocks' bytes, 27.
  EXPECT_EQ(ChooseNumBlocks(options, Spec(), 100 * kBlockBytes, 50 * kBlockBytes).value(), 33);
  EXPECT_EQ(ChooseNumBlocks(options, Spec(), 40 * kBlockBytes, 10 * kBlockBytes).value(), 27);
  const auto none = ChooseNumBlocks(options, Spec(), 10 * kBlockBytes, 9 * kBlockBytes);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace reprise
