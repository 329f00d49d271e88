#include "attention/move_kv.h"

#include <cstdint>
#include <string>
#include <vector>

#include "attention/testing/move_case.h"
#include "attention/testing/random.h"
#include "base/allocation_counter.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

TEST(MoveKvTest, TokensMoveInAllLayoutsDtypesAndLayers) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    MoveCase moves(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << moves.description());
    const absl::StatusOr<MoveKvParams> params = moves.Params(OnHost);
    ASSERT_TRUE(params.ok()) << params.status();
    moves.MoveByDefinition();
    const AllocationCounter allocations;
    MoveKvOnHost(*params);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_EQ(moves.FirstDifference(), "");
  }
}

TEST(MoveKvTest, LayersThatDifferNeedALaunchOfTheirOwn) {
  float memory[64] = {};
  const KvView view = {.data = memory,
                       .block_stride = 8,
                       .token_stride = 4,
                       .head_stride = 4,
                       .dim_chunk = 4,
                       .dim_chunk_stride = 4};
  KvLayer layer = {.k = view,
                   .v = view,
                   .num_blocks = 2,
                   .block_size = 2,
                   .num_kv_heads = 1,
                   .head_dim_qk = 4,
                   .head_dim_v = 4};
  layer.v.data = memory + 16;
  KvLayer other = layer;
  other.k.head_stride = 5;
  EXPECT_THAT(std::string(MakeMoveKvParams({layer, other}).status().message()),
              HasSubstr("layers[1]: expected the dtype, sizes and strides of layers[0]"));
  EXPECT_EQ(MakeMoveKvParams({}).status().message(), "num_layers: expected 1 to 160, got 0");
  const std::vector<KvLayer> many(161, layer);
  EXPECT_EQ(MakeMoveKvParams(many).status().message(), "num_layers: expected 1 to 160, got 161");
  EXPECT_FALSE(MakeMoveKvParams({layer})->v_within_k);
}

TEST(MoveKvTest, SlotsOutsideTheCacheAreNoMoves) {
  MoveKvParams params;
  params.block_size = 4;
  params.num_blocks = 3;
  EXPECT_TRUE(IsMove(params, 11, 0));
  EXPECT_FALSE(IsMove(params, 12, 0));
  EXPECT_FALSE(IsMove(params, 0, 12));
  EXPECT_FALSE(IsMove(params, -1, 3));
  EXPECT_FALSE(IsMove(params, 3, INT64_MIN));
  EXPECT_FALSE(IsMove(params, 5, 5));
}

}  // namespace
}  // namespace reprise
