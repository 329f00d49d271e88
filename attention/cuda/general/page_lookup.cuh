// Page lookup: computes the addresses of a KV tile's keys through the block table, or, for ragged
// batches, in a single block of all keys.
//
// One thread per key reads the block table (Find) and records the key's address in shared memory
// (Note) for the loaders. In the loop over KV tiles, Find() runs one KV tile earlier than Note(),
// which hides the latency of the block table. A group barrier separates Note() from the copies.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_PAGE_LOOKUP_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_PAGE_LOOKUP_CUH_

#include <climits>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// Offset of a dim from the first of its head, in elements.
__device__ __forceinline__ int64_t DimOffset(const KvView& view, int dim) {
  if (dim < view.dim_chunk) return dim;
  return dim / view.dim_chunk * view.dim_chunk_stride + dim % view.dim_chunk;
}

struct KeyAddress {
  int block;
  int token;  // within the block
};

// The first local key of the row that comes from new_k and new_v; INT_MAX if there is none.
__device__ __forceinline__ int FirstNewKey(const AttentionKernelParams& p, const WorkItem& item) {
  if (p.new_k == nullptr || item.row == kSharedRow) return INT_MAX;
  return item.prefix_len + item.tail_len - item.query_len;
}

template <typename Traits>
class PageLookup {
 public:
  // `thread`: index in the warp group.
  __device__ __forceinline__ PageLookup(const AttentionKernelParams& p, const WorkItem& item,
                                        int thread)
      : p_(p), thread_(thread), first_key_(item.first_key), end_(item.key_end) {
    if (p.block_table) table_ = p.block_table + item.table_row * p.block_table_stride;
    if constexpr (Traits::kConverts) end_ = min(end_, FirstNewKey(p, item));
  }

  // The end of the item's local keys that are read from the cache. The item's keys after it are new
  // keys.
  __device__ __forceinline__ int end() const { return end_; }

  // Looks up the location of this thread's key in the KV tile that begins at local key `first`.
  // Returns {0, 0} without a read if the thread has no key before end().
  __device__ __forceinline__ KeyAddress Find(int first) const {
    const int key = first + thread_;
    if (thread_ >= Traits::kKeys || key >= end_) return {0, 0};
    const int token = first_key_ + key;
    if (table_ == nullptr) return {0, token};
    const int column = static_cast<int>(p_.by_block_size.Divide(token));
    return {table_[column], token - column * p_.block_size};
  }

  __device__ __forceinline__ void Note(KeyOffsets* offsets, const KeyAddress& place) const {
    if (thread_ >= Traits::kKeys) return;
    int64_t bytes = Traits::kLoading == KvLoading::kFp8 ? 1 : sizeof(typename Traits::Element);
    if constexpr (Traits::kConverts) bytes = SizeOf(p_.kv_dtype);
    // The block id of a key that no query sees may be invalid. The check is here rather than in
    // Find(), which must not wait for the block table.
    const bool is_block = static_cast<unsigned>(place.block) < static_cast<unsigned>(p_.num_blocks);
    const int block = is_block ? place.block : 0;
    offsets[thread_] = {(block * p_.k.block_stride + place.token * p_.k.token_stride) * bytes,
                        (block * p_.v.block_stride + place.token * p_.v.token_stride) * bytes};
    if constexpr (Traits::kConverts) {
      // If the rope part is a separate tensor, V has K's offset.
      if (p_.rope_dim == 0) return;
      offsets[thread_].v = (block * p_.rope.block_stride + place.token * p_.rope.token_stride) *
                           SizeOf(p_.rope_dtype);
    }
  }

 private:
  const AttentionKernelParams& p_;
  const int thread_;
  const int32_t* table_ = nullptr;  // the row's table; null: a single block holds all keys
  const int first_key_;
  int end_;
};

// The KV tiles of a warp group in an item: every kWarpsN-th KV tile. The group's first KV tile
// begins at local key `first`, and its KV tiles are kStride keys apart.
template <typename Traits>
struct GroupSteps {
  static constexpr int kStride = Traits::kWarpsN * Traits::kKeys;

  __device__ __forceinline__ explicit GroupSteps(const WorkItem& item)
      : group(threadIdx.x / Traits::kGroupThreads),
        thread(threadIdx.x % Traits::kGroupThreads),
        first(item.key_begin + group * Traits::kKeys),
        count(max(0, (item.key_end - first + kStride - 1) / kStride)) {}

  int group;
  int thread;  // index in the warp group
  int first;
  int count;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_PAGE_LOOKUP_CUH_
