#include "reprise/attention/speculation/move_kv.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/move_case.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

TEST(MoveKvTest, MovesTokensInAllLayoutsDtypesAndLayers) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Random random(seed);
    MoveCase moves(random);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << moves.description());
    const absl::StatusOr<MoveKvArgs> args = moves.Args(OnHost);
    ASSERT_TRUE(args.ok()) << args.status();
    moves.MoveByDefinition();
    const AllocationCounter allocations;
    MoveKvOnHost(*args);
    ASSERT_EQ(allocations.count(), 0);
    ASSERT_EQ(moves.FirstDifference(), "");
  }
}

TEST(MoveKvTest, RejectsLayersThatDiffer) {
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
  EXPECT_THAT(std::string(MakeMoveKvArgs({layer, other}).status().message()),
              HasSubstr("layers[1]: expected the dtype, sizes and strides of layers[0]"));
  EXPECT_EQ(MakeMoveKvArgs({}).status().message(), "num_layers: expected 1 to 160, got 0");
  const std::vector<KvLayer> many(161, layer);
  EXPECT_EQ(MakeMoveKvArgs(many).status().message(), "num_layers: expected 1 to 160, got 161");
  EXPECT_FALSE(MakeMoveKvArgs({layer})->v_within_k);
}

TEST(MoveKvTest, RopePartMovesWithTheLatent) {
  float latents[12], ropes[8];
  for (int i = 0; i < 12; ++i) latents[i] = static_cast<float>(i);
  for (int i = 0; i < 8; ++i) ropes[i] = static_cast<float>(100 + i);
  const KvView latent = {.data = latents, .block_stride = 6, .token_stride = 3, .dim_chunk = 3};
  KvLayer layer = {.k = latent,
                   .v = latent,
                   .num_blocks = 2,
                   .block_size = 2,
                   .num_kv_heads = 1,
                   .head_dim_qk = 5,
                   .head_dim_v = 3,
                   .rope_dim = 2,
                   .rope = {.data = ropes, .block_stride = 4, .token_stride = 2, .dim_chunk = 2}};
  MoveKvArgs args = *MakeMoveKvArgs({layer});
  const int64_t from = 3, to = 1;
  args.move_from = &from;
  args.move_to = &to;
  args.row_stride = args.num_rows = args.max_moves = 1;
  ASSERT_TRUE(MoveKv(args).ok());
  EXPECT_THAT(std::vector<float>(latents, latents + 12),
              testing::ElementsAre(0, 1, 2, 9, 10, 11, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(std::vector<float>(ropes, ropes + 8),
              testing::ElementsAre(100, 101, 106, 107, 104, 105, 106, 107));
  layer.rope_dtype = DType::kBFloat16;
  EXPECT_THAT(std::string(MakeMoveKvArgs({layer}).status().message()),
              HasSubstr("layers[0].rope_dtype: expected elements of 4 bytes"));
}

TEST(MoveKvTest, SkipsMovesWithSlotsOutsideTheCache) {
  MoveKvArgs args;
  args.block_size = 4;
  args.num_blocks = 3;
  EXPECT_TRUE(IsMove(args, 11, 0));
  EXPECT_FALSE(IsMove(args, 12, 0));
  EXPECT_FALSE(IsMove(args, 0, 12));
  EXPECT_FALSE(IsMove(args, -1, 3));
  EXPECT_FALSE(IsMove(args, 3, INT64_MIN));
  EXPECT_FALSE(IsMove(args, 5, 5));
}

}  // namespace
}  // namespace reprise
