#include "runner/ops/few_rows/rotary_end.h"

#include <functional>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

alignas(16) char memory[1 << 16];  // no element is read

// 4 heads of q, 2 of k and of v, of 64 dims, and a cache [10, 16, 2, 64] each.
RotaryArgs Good() {
  RotaryArgs args;
  args.dtype = DType::kBFloat16;
  args.num_tokens = 3;
  const auto heads = [](int first, int count) -> HeadsView {
    return {.data = memory + 2 * first * 64,
            .token_stride = 8 * 64,
            .head_stride = 64,
            .num_heads = count};
  };
  args.q = heads(0, 4);
  args.k = heads(4, 2);
  args.v = heads(6, 2);
  args.head_dim_qk = args.head_dim_v = args.rotary_dim = 64;
  args.positions = reinterpret_cast<const int32_t*>(memory);
  args.table = reinterpret_cast<const float*>(memory);
  args.max_positions = 100;
  args.slot_mapping = reinterpret_cast<const int64_t*>(memory);
  args.num_slots = 2;
  const KvView view = {.data = memory,
                       .block_stride = 16 * 2 * 64,
                       .token_stride = 2 * 64,
                       .head_stride = 64,
                       .dim_chunk = 64};
  args.kv = {.k = view,
             .v = view,
             .dtype = DType::kBFloat16,
             .num_blocks = 10,
             .block_size = 16,
             .num_kv_heads = 2,
             .head_dim_qk = 64,
             .head_dim_v = 64};
  return args;
}

TEST(RotaryEndTest, HasWhatTheKernelNeeds) {
  const RotaryArgs args = Good();
  const std::optional<RotaryEnd> end = RotaryEndOf(args);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->is_on());
  EXPECT_EQ(end->head_dim, 64);
  EXPECT_EQ(end->num_heads(), 8);
  EXPECT_EQ(end->num_pieces(), 4);
  EXPECT_EQ(end->positions, args.positions);
  EXPECT_EQ(end->num_slots, 2);
  EXPECT_EQ(end->max_positions, 100);
  EXPECT_EQ(end->places.num_slots(), 160);
  EXPECT_FALSE(RotaryEnd().is_on());
}

TEST(RotaryEndTest, OneHeadHasAnyStride) {
  RotaryArgs args = Good();
  args.k.num_heads = args.v.num_heads = args.kv.num_kv_heads = 1;
  args.v.data = memory + 2 * 5 * 64;
  args.k.head_stride = args.v.head_stride = 7;
  EXPECT_TRUE(RotaryEndOf(args).has_value());
}

TEST(RotaryEndTest, OtherProductsHaveNone) {
  static const float scale = 1;
  const std::vector<std::function<void(RotaryArgs&)>> changes = {
      [](RotaryArgs& args) { args.dtype = args.kv.dtype = DType::kFloat32; },
      [](RotaryArgs& args) { args.kv.dtype = DType::kFloat16; },
      [](RotaryArgs& args) { args.kv.dtype = DType::kFp8E4M3; },
      [](RotaryArgs& args) { args.norm.is_on = true; },
      [](RotaryArgs& args) { args.slot_mapping = nullptr; },
      [](RotaryArgs& args) { args.rotary_dim = 32; },
      [](RotaryArgs& args) { args.head_dim_v = 32; },
      [](RotaryArgs& args) { args.head_dim_qk = args.head_dim_v = args.rotary_dim = 56; },
      [](RotaryArgs& args) { args.kv.k_scale.value = 0.5f; },
      [](RotaryArgs& args) { args.kv.v_scale.data = &scale; },
      [](RotaryArgs& args) { args.kv.k.dim_chunk = 8; },  // K-packed
      [](RotaryArgs& args) { args.kv.v.dim_chunk = 1; },
      [](RotaryArgs& args) { args.kv.k.data = memory + 8; },
      [](RotaryArgs& args) { args.kv.v.token_stride = 132; },
      [](RotaryArgs& args) { args.kv.k.head_stride = 65; },
      [](RotaryArgs& args) { args.kv.k.block_stride += 4; },
      [](RotaryArgs& args) { args.q.head_stride = 72; },
      [](RotaryArgs& args) { args.k.data = memory; },  // not behind q
      [](RotaryArgs& args) { args.v.data = args.k.data; },
      [](RotaryArgs& args) { args.v.token_stride = 0; },
      [](RotaryArgs& args) {
        args.q.token_stride = args.k.token_stride = args.v.token_stride = 516;
      },
      [](RotaryArgs& args) { args.table += 1; },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    RotaryArgs args = Good();
    changes[i](args);
    EXPECT_FALSE(RotaryEndOf(args).has_value()) << i;
  }
}

}  // namespace
}  // namespace reprise
