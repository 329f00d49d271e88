#include "reprise/attention/testing/kv_memory.h"

#include <glog/logging.h>

#include <string_view>

#include "reprise/base/element_access.h"

namespace reprise {
namespace {

// All bits set is NaN in every dtype.
std::vector<uint8_t> NaNs(int64_t num_elements, DType dtype) {
  return std::vector<uint8_t>(num_elements * SizeOf(dtype), 0xff);
}

}  // namespace

void* OnHost(const void* host, size_t) { return const_cast<void*>(host); }

std::ostream& operator<<(std::ostream& out, KvMemoryLayout layout) {
  constexpr std::string_view kNames[] = {"nhd",        "hnd",     "packed_nhd",
                                         "packed_hnd", "diff_kv", "diff_kv_hnd",
                                         "k_packed",   "mla",     "mla_parts"};
  return out << kNames[static_cast<int>(layout)];
}

KvMemory::KvMemory(const KvMemoryOptions& options) : options_(options) {
  layer_ = {.dtype = options.dtype,
            .num_blocks = options.num_blocks,
            .block_size = options.block_size,
            .num_kv_heads = options.num_kv_heads,
            .head_dim_qk = options.head_dim_qk,
            .head_dim_v = options.head_dim_v};
  const int64_t tokens = options.block_size;
  const int64_t heads = options.num_kv_heads;
  const int64_t dim_qk = options.head_dim_qk;
  const int64_t dim_v = options.head_dim_v;
  KvView& k = layer_.k;
  KvView& v = layer_.v;
  k.dim_chunk = options.head_dim_qk;
  v.dim_chunk = options.head_dim_v;
  const int64_t num_layers = options.num_layers;
  const bool is_packed =
      options.layout == KvMemoryLayout::kPackedNhd || options.layout == KvMemoryLayout::kPackedHnd;
  bool one_tensor = is_packed;
  // Contiguous elements of a layer: a block, or in HND forms a head of a block.
  int64_t k_piece = 0;
  int64_t v_piece = 0;
  const auto set_hnd = [&](KvView& view, int64_t dim, int64_t& piece) {
    view.token_stride = dim + options.token_gap;
    piece = tokens * view.token_stride + options.head_gap;
  };
  const auto set_nhd = [&](KvView& view, int64_t dim, int64_t& piece) {
    view.head_stride = dim + options.head_gap;
    view.token_stride = heads * view.head_stride + options.token_gap;
    piece = tokens * view.token_stride;
  };
  bool is_hnd = false;
  switch (options.layout) {
    case KvMemoryLayout::kNhd:
    case KvMemoryLayout::kPackedNhd:
      set_nhd(k, dim_qk, k_piece);
      set_nhd(v, dim_v, v_piece);
      break;
    case KvMemoryLayout::kHnd:
    case KvMemoryLayout::kPackedHnd:
      is_hnd = true;
      set_hnd(k, dim_qk, k_piece);
      set_hnd(v, dim_v, v_piece);
      break;
    case KvMemoryLayout::kDiffKv:
      set_nhd(k, dim_qk + dim_v, k_piece);
      set_nhd(v, dim_qk + dim_v, v_piece);
      break;
    case KvMemoryLayout::kDiffKvHnd:
      is_hnd = true;
      set_hnd(k, dim_qk + dim_v, k_piece);
      set_hnd(v, dim_qk + dim_v, v_piece);
      break;
    case KvMemoryLayout::kKPacked:
      k.dim_chunk = options.k_chunk > 0 ? options.k_chunk : 16 / SizeOf(options.dtype);
      k.token_stride = k.dim_chunk;
      k.dim_chunk_stride = tokens * k.dim_chunk;
      k.head_stride = dim_qk * tokens;
      v.dim_chunk = 1;
      v.token_stride = 1;
      v.dim_chunk_stride = tokens;
      v.head_stride = dim_v * tokens;
      CHECK_EQ(dim_qk % k.dim_chunk, 0);
      k_piece = heads * k.head_stride;
      v_piece = heads * v.head_stride;
      break;
    case KvMemoryLayout::kMla:
      CHECK_EQ(heads, 1);
      CHECK_LE(dim_v, dim_qk);
      k.token_stride = v.token_stride = dim_qk;
      k_piece = v_piece = tokens * dim_qk;
      one_tensor = true;
      break;
    case KvMemoryLayout::kMlaParts:
      CHECK_EQ(heads, 1);
      CHECK_LT(dim_v, dim_qk);
      layer_.rope_dim = options.head_dim_qk - options.head_dim_v;
      layer_.rope_dtype = options.rope_dtype;
      k.dim_chunk = layer_.key_dim();
      k.token_stride = v.token_stride = dim_v + options.token_gap;
      k_piece = v_piece = tokens * k.token_stride;
      layer_.rope = {.block_stride = tokens * layer_.rope_dim + options.block_gap,
                     .token_stride = layer_.rope_dim,
                     .dim_chunk = layer_.rope_dim};
      break;
  }
  // Offset of V in contiguous elements that hold both K and V.
  int64_t v_after_k = 0;
  if (is_packed) {
    CHECK_EQ(dim_qk, dim_v);
    // V follows K within each block. If several layers share a block in an HND form, V follows K
    // within each head.
    v_after_k = is_hnd && num_layers == 1 ? heads * k_piece : k_piece;
    if (!is_hnd || num_layers > 1) k_piece = v_piece = 2 * k_piece;
  } else if (options.layout == KvMemoryLayout::kDiffKv ||
             options.layout == KvMemoryLayout::kDiffKvHnd) {
    v_after_k = dim_qk;
    one_tensor = true;
  }
  k_offset_ = options.layer * k_piece;
  v_offset_ = options.layer * v_piece + v_after_k;
  int64_t k_block = num_layers * k_piece;
  int64_t v_block = num_layers * v_piece;
  if (is_hnd) {
    k.head_stride = k_block;
    v.head_stride = v_block;
    k_block *= heads;
    v_block *= heads;
    if (is_packed && num_layers == 1) k_block = v_block = 2 * k_block;
  }
  k.block_stride = k_block + options.block_gap;
  v.block_stride = v_block + options.block_gap;
  k_memory_ = NaNs(options.num_blocks * k.block_stride, options.dtype);
  if (has_rope()) {
    v_memory_ = NaNs(options.num_blocks * layer_.rope.block_stride, options.rope_dtype);
  } else if (!one_tensor)
    v_memory_ = NaNs(options.num_blocks * v.block_stride, options.dtype);
}

KvLayer KvMemory::View(const Placement& place) const {
  KvLayer layer = layer_;
  const int64_t size = SizeOf(layer.dtype);
  char* const k = static_cast<char*>(place(k_memory_.data(), k_memory_.size()));
  char* const v = v_within_k() ? k : static_cast<char*>(place(v_memory_.data(), v_memory_.size()));
  layer.k.data = k + k_offset_ * size;
  layer.v.data = v + v_offset_ * size;
  if (has_rope()) layer.rope.data = place(v_memory_.data(), v_memory_.size());
  return layer;
}

void KvMemory::Grow(int num_blocks) {
  CHECK_GE(num_blocks, layer_.num_blocks);
  layer_.num_blocks = options_.num_blocks = num_blocks;
  const int64_t size = SizeOf(layer_.dtype);
  k_memory_.resize(num_blocks * layer_.k.block_stride * size, 0xff);
  if (!v_within_k()) v_memory_.resize(num_blocks * layer_.v.block_stride * size, 0xff);
  if (has_rope()) {
    v_memory_.resize(num_blocks * layer_.rope.block_stride * SizeOf(layer_.rope_dtype), 0xff);
  }
}

void KvMemory::SetK(int block, int token, int head, int dim, double value) {
  if (dim >= layer_.key_dim()) {
    StoreElement(v_memory_.data(), layer_.rope_dtype,
                 layer_.rope.Offset(block, token, head, dim - layer_.key_dim()), value);
    return;
  }
  StoreElement(k_memory_.data(), layer_.dtype, k_offset_ + layer_.k.Offset(block, token, head, dim),
               value);
}

void KvMemory::SetV(int block, int token, int head, int dim, double value) {
  std::vector<uint8_t>& memory = v_within_k() ? k_memory_ : v_memory_;
  StoreElement(memory.data(), layer_.dtype, v_offset_ + layer_.v.Offset(block, token, head, dim),
               value);
}

}  // namespace reprise
