#include "reprise/attention/testing/move_case.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "reprise/attention/speculation/move_kv.h"

namespace reprise {
namespace {

// Returns the strides of [num_blocks, ...], with `block` elements from block to block.
KvView Nhd(int64_t block, int heads, int dim, int64_t token) {
  return {.block_stride = block,
          .token_stride = token,
          .head_stride = token / heads,
          .dim_chunk = dim,
          .dim_chunk_stride = dim};
}

}  // namespace

MoveCase::MoveCase(Random& random) {
  const int block_size = random.Pick({1, 2, 4, 16});
  const int heads = random.Int(1, 4);
  const int dim_k = random.Pick({8, 16, 64, 5});
  const int dim_v = random.OneIn(3) ? random.Pick({8, 24, 3}) : dim_k;
  const DType dtype = random.Pick({DType::kFloat32, DType::kBFloat16, DType::kFp8E4M3});
  const int num_blocks = random.Int(5, 20);
  const int num_layers = random.Pick({1, 2, 7});
  const int layout = random.Int(0, 4);
  const int64_t t = block_size;
  layer_ = {.dtype = dtype,
            .num_blocks = num_blocks,
            .block_size = block_size,
            .num_kv_heads = heads,
            .head_dim_qk = dim_k,
            .head_dim_v = dim_v};
  int64_t v_offset = 0;  // elements
  int64_t elements = 0;
  if (layout == 0) {  // NHD, K before V
    layer_.k = Nhd(t * heads * dim_k, heads, dim_k, heads * dim_k);
    layer_.v = Nhd(t * heads * dim_v, heads, dim_v, heads * dim_v);
    v_offset = num_blocks * layer_.k.block_stride;
    elements = v_offset + num_blocks * layer_.v.block_stride;
  } else if (layout == 1) {  // K and V of a head side by side (diffkv)
    const int64_t both = dim_k + dim_v;
    layer_.k = Nhd(t * heads * both, heads, dim_k, heads * both);
    layer_.v = Nhd(t * heads * both, heads, dim_v, heads * both);
    v_offset = dim_k;
    elements = num_blocks * layer_.k.block_stride;
  } else if (layout == 2) {  // HND
    layer_.k = {nullptr, t * heads * dim_k, dim_k, t * dim_k, dim_k, dim_k};
    layer_.v = {nullptr, t * heads * dim_v, dim_v, t * dim_v, dim_v, dim_v};
    v_offset = num_blocks * layer_.k.block_stride;
    elements = v_offset + num_blocks * layer_.v.block_stride;
  } else if (layout == 3) {  // MLA: V within K
    layer_.head_dim_v = std::min(dim_v, dim_k);
    layer_.num_kv_heads = 1;
    layer_.k = Nhd(t * dim_k, 1, dim_k, dim_k);
    layer_.v = layer_.k;
    elements = num_blocks * layer_.k.block_stride;
  } else {  // K-packed, x = 4; V with a token a column
    const int64_t dim = 8;
    layer_.head_dim_qk = layer_.head_dim_v = static_cast<int>(dim);
    layer_.k = {nullptr, heads * dim * t, 4, dim * t, 4, t * 4};
    layer_.v = {nullptr, heads * dim * t, 1, dim * t, 1, t};
    v_offset = num_blocks * layer_.k.block_stride;
    elements = 2 * v_offset;
  }
  v_offset_bytes_ = v_offset * SizeOf(dtype);
  memory_.resize(num_layers);
  for (std::vector<uint8_t>& bytes : memory_) {
    bytes.resize(elements * SizeOf(dtype));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.Bits());
  }
  expected_ = memory_;

  // Rows have disjoint slots. Moves are like those of accepted paths: sources ascend, and no source
  // precedes its destination.
  num_rows_ = random.Int(1, 4);
  max_moves_ = random.Int(1, 8);
  std::vector<int64_t> slots(num_blocks * t);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  random.Shuffle(slots);
  const int of_row = static_cast<int>(slots.size()) / num_rows_;
  move_from_.assign(num_rows_ * max_moves_, -1);
  move_to_.assign(num_rows_ * max_moves_, -1);
  for (int r = 0; r < num_rows_; ++r) {
    int node = -1;
    for (int j = 0; j < max_moves_; ++j) {
      node = std::max(node + 1, j) + random.Pick({0, 0, 1, 3});
      if (node >= of_row) break;
      move_from_[r * max_moves_ + j] = random.OneIn(9) ? INT64_MAX : slots[r * of_row + node];
      move_to_[r * max_moves_ + j] = random.OneIn(9) ? -1 : slots[r * of_row + j];
    }
  }
  std::ostringstream text;
  text << "layout " << layout << ", " << dtype << ", " << num_layers << " layers, " << num_blocks
       << " blocks of " << block_size << ", heads " << heads << ", dims " << layer_.head_dim_qk
       << " and " << layer_.head_dim_v << ", " << num_rows_ << " rows of " << max_moves_;
  description_ = text.str();
}

absl::StatusOr<MoveKvArgs> MoveCase::Args(const Placement& place) const {
  std::vector<KvLayer> layers;
  for (const std::vector<uint8_t>& bytes : memory_) {
    KvLayer layer = layer_;
    layer.k.data = place(bytes.data(), bytes.size());
    layer.v.data = static_cast<uint8_t*>(layer.k.data) + v_offset_bytes_;
    layers.push_back(layer);
  }
  absl::StatusOr<MoveKvArgs> args = MakeMoveKvArgs(layers);
  if (!args.ok()) return args;
  const auto of = [&](const std::vector<int64_t>& moves) {
    return static_cast<const int64_t*>(place(moves.data(), moves.size() * sizeof(int64_t)));
  };
  args->move_from = of(move_from_);
  args->move_to = of(move_to_);
  args->row_stride = max_moves_;
  args->num_rows = num_rows_;
  args->max_moves = max_moves_;
  return args;
}

void MoveCase::MoveByDefinition() {
  const int64_t num_slots = int64_t{layer_.num_blocks} * layer_.block_size;
  const auto move = [&](uint8_t* data, const KvView& view, int head_dim, int64_t from, int64_t to) {
    for (int head = 0; head < layer_.num_kv_heads; ++head) {
      for (int dim = 0; dim < head_dim; ++dim) {
        const auto at = [&](int64_t slot) {
          return data + view.Offset(slot / layer_.block_size, slot % layer_.block_size, head, dim) *
                            SizeOf(layer_.dtype);
        };
        std::memmove(at(to), at(from), SizeOf(layer_.dtype));
      }
    }
  };
  for (size_t i = 0; i < move_from_.size(); ++i) {
    if (move_from_[i] < 0 || move_from_[i] >= num_slots || move_to_[i] < 0) continue;
    for (std::vector<uint8_t>& bytes : expected_) {
      move(bytes.data(), layer_.k, layer_.head_dim_qk, move_from_[i], move_to_[i]);
      if (v_offset_bytes_ == 0) continue;  // V is part of K
      move(bytes.data() + v_offset_bytes_, layer_.v, layer_.head_dim_v, move_from_[i], move_to_[i]);
    }
  }
}

std::string MoveCase::FirstDifference() const {
  for (size_t layer = 0; layer < memory_.size(); ++layer) {
    const auto [got, wanted] = std::ranges::mismatch(memory_[layer], expected_[layer]);
    if (got == memory_[layer].end()) continue;
    return "layer " + std::to_string(layer) + ", byte " +
           std::to_string(got - memory_[layer].begin());
  }
  return "";
}

}  // namespace reprise
