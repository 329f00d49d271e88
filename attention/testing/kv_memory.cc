#include "attention/testing/kv_memory.h"

#include <glog/logging.h>

#include <string_view>

#include "base/element_access.h"

namespace reprise {
namespace {

// All bits set is NaN in every dtype.
std::vector<uint8_t> NaNs(int64_t num_elements, DType dtype) {
  return std::vector<uint8_t>(num_elements * SizeOf(dtype), 0xff);
}

}  // namespace

void* OnHost(const void* host, size_t) { return const_cast<void*>(host); }

std::ostream& operator<<(std::ostream& out, KvMemoryLayout layout) {
  constexpr std::string_view kNames[] = {"nhd",     "hnd",      "packed_nhd", "packed_hnd",
                                         "diff_kv", "k_packed", "mla"};
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
  int64_t k_block = tokens * heads * dim_qk;
  int64_t v_block = tokens * heads * dim_v;
  bool one_tensor = true;
  switch (options.layout) {
    case KvMemoryLayout::kNhd:
    case KvMemoryLayout::kPackedNhd:
      k.head_stride = dim_qk + options.head_gap;
      v.head_stride = dim_v + options.head_gap;
      k.token_stride = heads * k.head_stride + options.token_gap;
      v.token_stride = heads * v.head_stride + options.token_gap;
      k_block = tokens * k.token_stride;
      v_block = tokens * v.token_stride;
      break;
    case KvMemoryLayout::kHnd:
    case KvMemoryLayout::kPackedHnd:
      k.token_stride = dim_qk + options.token_gap;
      v.token_stride = dim_v + options.token_gap;
      k.head_stride = tokens * k.token_stride + options.head_gap;
      v.head_stride = tokens * v.token_stride + options.head_gap;
      k_block = heads * k.head_stride;
      v_block = heads * v.head_stride;
      break;
    case KvMemoryLayout::kDiffKv:
      k.token_stride = v.token_stride = heads * (dim_qk + dim_v);
      k.head_stride = v.head_stride = dim_qk + dim_v;
      k_block = v_block = tokens * heads * (dim_qk + dim_v);
      v_offset_ = dim_qk;
      break;
    case KvMemoryLayout::kKPacked:
      k.dim_chunk = 16 / SizeOf(options.dtype);
      k.token_stride = k.dim_chunk;
      k.dim_chunk_stride = tokens * k.dim_chunk;
      k.head_stride = dim_qk * tokens;
      v.dim_chunk = 1;
      v.token_stride = 1;
      v.dim_chunk_stride = tokens;
      v.head_stride = dim_v * tokens;
      CHECK_EQ(dim_qk % k.dim_chunk, 0);
      break;
    case KvMemoryLayout::kMla:
      CHECK_EQ(heads, 1);
      CHECK_LE(dim_v, dim_qk);
      k.token_stride = v.token_stride = dim_qk;
      v_block = k_block;
      break;
  }
  if (options.layout == KvMemoryLayout::kPackedNhd ||
      options.layout == KvMemoryLayout::kPackedHnd) {
    CHECK_EQ(dim_qk, dim_v);
    v_offset_ = k_block;
    k_block = v_block = 2 * k_block;
  } else if (options.layout != KvMemoryLayout::kDiffKv && options.layout != KvMemoryLayout::kMla) {
    one_tensor = false;
  }
  k.block_stride = k_block + options.block_gap;
  v.block_stride = v_block + options.block_gap;
  k_memory_ = NaNs(options.num_blocks * k.block_stride, options.dtype);
  if (!one_tensor) v_memory_ = NaNs(options.num_blocks * v.block_stride, options.dtype);
}

KvLayer KvMemory::View(const Placement& place) const {
  KvLayer layer = layer_;
  layer.k.data = place(k_memory_.data(), k_memory_.size());
  layer.v.data = v_within_k() ? static_cast<char*>(layer.k.data) + v_offset_ * SizeOf(layer.dtype)
                              : place(v_memory_.data(), v_memory_.size());
  return layer;
}

void KvMemory::Grow(int num_blocks) {
  CHECK_GE(num_blocks, layer_.num_blocks);
  layer_.num_blocks = options_.num_blocks = num_blocks;
  const int64_t size = SizeOf(layer_.dtype);
  k_memory_.resize(num_blocks * layer_.k.block_stride * size, 0xff);
  if (!v_within_k()) v_memory_.resize(num_blocks * layer_.v.block_stride * size, 0xff);
}

void KvMemory::SetK(int block, int token, int head, int dim, double value) {
  StoreElement(k_memory_.data(), layer_.dtype, layer_.k.Offset(block, token, head, dim), value);
}

void KvMemory::SetV(int block, int token, int head, int dim, double value) {
  std::vector<uint8_t>& memory = v_within_k() ? k_memory_ : v_memory_;
  StoreElement(memory.data(), layer_.dtype, v_offset_ + layer_.v.Offset(block, token, head, dim),
               value);
}

}  // namespace reprise
