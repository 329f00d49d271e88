// Host memory for one layer's KV cache, in any layout of cache/storage/kv_layer.h, for tests.
// Elements that have not been set are NaN.
//
//   KvMemory memory({.layout = KvMemoryLayout::kHnd, .num_blocks = 9, .block_size = 4, ...});
//   memory.SetK(block, token, head, dim, 0.5);
//   KvLayer kv = memory.View(OnHost);
//
// Thread safety: not thread-safe; one owner. The object owns the memory.

#ifndef REPRISE_ATTENTION_TESTING_KV_MEMORY_H_
#define REPRISE_ATTENTION_TESTING_KV_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <vector>

#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Returns the address at which the reader of a fixture finds these host bytes: the same address on
// the host, or the address of a copy on a device. Called once per array and View(), not for absent
// arrays.
using Placement = std::function<void*(const void* host, size_t num_bytes)>;

void* OnHost(const void* host, size_t num_bytes);

enum class KvMemoryLayout {
  kNhd,        // two tensors [num_blocks, block_size, heads, dim]
  kHnd,        // two tensors [num_blocks, heads, block_size, dim]
  kPackedNhd,  // one tensor [num_blocks, 2, block_size, heads, dim]; one head_dim
  kPackedHnd,  // one tensor [num_blocks, 2, heads, block_size, dim]; one head_dim
  kDiffKv,     // one tensor [num_blocks, block_size, heads, head_dim_qk + head_dim_v]
  kDiffKvHnd,  // one tensor [num_blocks, heads, block_size, head_dim_qk + head_dim_v]
  kKPacked,    // vLLM PagedAttention's K and V; k_chunk divides head_dim_qk
  kMla,        // one tensor [num_blocks, block_size, dim_qk], V in its first dim_v columns; one
               // head
  // Two tensors: [num_blocks, block_size, dim_v], which is also V, and [num_blocks, block_size,
  // dim_qk - dim_v] of rope_dtype; one head.
  kMlaParts,
};

// Whether V is the first columns of K.
constexpr bool IsLatent(KvMemoryLayout layout) {
  return layout == KvMemoryLayout::kMla || layout == KvMemoryLayout::kMlaParts;
}

std::ostream& operator<<(std::ostream& out, KvMemoryLayout layout);

struct KvMemoryOptions {
  KvMemoryLayout layout = KvMemoryLayout::kNhd;
  DType dtype = DType::kFloat32;
  DType rope_dtype = DType::kFloat32;  // kMlaParts only
  int num_blocks = 0;
  int block_size = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int k_chunk = 0;    // kKPacked: contiguous dims of K (x); 0: 16 bytes
  int block_gap = 0;  // unused elements between two blocks
  // Unused elements after each head and token. For NHD, HND, their packed forms and diffkv; for
  // kMlaParts, token_gap only.
  int head_gap = 0;
  int token_gap = 0;
  // Number of layers that share each block, like vLLM's num_layers dimension: after the block, or
  // in HND forms after the head. `layer` is the layer of this object; other layers are NaN.
  int num_layers = 1;
  int layer = 0;
};

class KvMemory {
 public:
  explicit KvMemory(const KvMemoryOptions& options);

  // Returns the cache with all scales 1.
  KvLayer View(const Placement& place) const;

  // Stores a value, rounded to the dtype. Does not apply scales.
  void SetK(int block, int token, int head, int dim, double value);
  void SetV(int block, int token, int head, int dim, double value);

  // Appends blocks of NaN. Invalidates earlier views. REQUIRES: num_blocks does not decrease.
  void Grow(int num_blocks);
  // The constructor's options with the current number of blocks.
  const KvMemoryOptions& options() const { return options_; }

 private:
  bool has_rope() const { return layer_.rope_dim > 0; }
  bool v_within_k() const { return has_rope() || v_memory_.empty(); }

  KvMemoryOptions options_;
  KvLayer layer_;  // pointers null
  // Offset in elements of (0, 0, 0, 0) in its tensor. V may be in K's tensor.
  int64_t k_offset_ = 0;
  int64_t v_offset_ = 0;
  std::vector<uint8_t> k_memory_;
  std::vector<uint8_t> v_memory_;  // kMlaParts: the rope parts
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_KV_MEMORY_H_
