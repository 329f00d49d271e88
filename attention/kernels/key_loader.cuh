// Brings Q, and steps of K and V, into shared memory: through the block table, or, for ragged
// batches, as one block of all keys.
//
// A step of a group of warps goes through three hands: a thread a key reads the table (Find), notes
// the key's place in shared memory (Note), and then all threads copy chunks of 16 bytes (Load).
// Keys beyond the item and dims beyond the head dim become zeros, without a read.

#ifndef ATTENTION_KERNELS_KEY_LOADER_CUH_
#define ATTENTION_KERNELS_KEY_LOADER_CUH_

#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/device_primitives.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/work_unit.cuh"

namespace reprise {

__device__ __forceinline__ int64_t DimOffset(const KvView& view, int dim) {
  if (dim < view.dim_chunk) return dim;
  return dim / view.dim_chunk * view.dim_chunk_stride + dim % view.dim_chunk;
}

// Bytes of the chunk that begins at `dim` that are within the head.
template <typename Traits>
__device__ __forceinline__ int ChunkBytes(int dim, int head_dim) {
  return min(max(head_dim - dim, 0), Traits::kChunk) *
         static_cast<int>(sizeof(typename Traits::Element));
}

template <typename Traits>
class KeyLoader {
 public:
  using Element = typename Traits::Element;

  struct Place {
    int block;
    int token;  // in the block; -1: no key
  };

  __device__ __forceinline__ KeyLoader(const AttentionKernelParams& p, const WorkUnit& unit,
                                       int thread)
      : p_(p),
        unit_(unit),
        thread_(thread),
        table_(p.block_table + static_cast<int64_t>(unit.table_row) * p.block_table_stride),
        k_(static_cast<const Element*>(p.k.data) + unit.kv_head * p.k.head_stride),
        v_(static_cast<const Element*>(p.v.data) + unit.kv_head * p.v.head_stride) {}

  // The place of this thread's key of the step that begins at local key `first`.
  __device__ __forceinline__ Place Find(int first) const {
    const int key = first + thread_;
    if (thread_ >= Traits::kKeys || key >= unit_.item.key_end) return {0, -1};
    const int token = unit_.first_key + key;
    if (p_.block_table == nullptr) return {0, token};
    const int column = token / p_.block_size;
    const int block = table_[column];
    // A key that no query sees may stand in a block that is none.
    const bool is_block = static_cast<unsigned>(block) < static_cast<unsigned>(p_.num_blocks);
    return {is_block ? block : 0, token - column * p_.block_size};
  }

  __device__ __forceinline__ void Note(KeyOffsets* offsets, const Place& place) const {
    if (thread_ >= Traits::kKeys) return;
    KeyOffsets at{-1, -1};
    if (place.token >= 0) {
      at.k = place.block * p_.k.block_stride + place.token * p_.k.token_stride;
      at.v = place.block * p_.v.block_stride + place.token * p_.v.token_stride;
    }
    offsets[thread_] = at;
  }

  // Starts copying one step. The group meets between Note() and this, and waits and meets after it.
  __device__ __forceinline__ void Load(uint4* k, uint4* v, const KeyOffsets* offsets) const {
    if (p_.k_is_aligned && p_.v_is_aligned) {
      LoadAligned(k, v, offsets);
    } else {
      LoadElements(k, offsets, &KeyOffsets::k, k_, p_.k, p_.head_dim_qk);
      LoadElements(v, offsets, &KeyOffsets::v, v_, p_.v, p_.head_dim_v);
    }
  }

 private:
  __device__ __forceinline__ void LoadAligned(uint4* k, uint4* v, const KeyOffsets* offsets) const {
#pragma unroll
    for (int i = 0; i < Traits::kKeys * Traits::kChunks / Traits::kGroupThreads; ++i) {
      const int at = i * Traits::kGroupThreads + thread_;
      const int key = at / Traits::kChunks;
      const int chunk = at % Traits::kChunks;
      const int dim = chunk * Traits::kChunk;
      const KeyOffsets offset = offsets[key];
      const int to = Traits::ChunkAt(key, chunk);
      const int k_bytes = offset.k < 0 ? 0 : ChunkBytes<Traits>(dim, p_.head_dim_qk);
      const int v_bytes = offset.v < 0 ? 0 : ChunkBytes<Traits>(dim, p_.head_dim_v);
      CopyAsync16(k + to, k_bytes > 0 ? k_ + offset.k + DimOffset(p_.k, dim) : k_, k_bytes);
      CopyAsync16(v + to, v_bytes > 0 ? v_ + offset.v + DimOffset(p_.v, dim) : v_, v_bytes);
    }
  }

  // Any strides, element by element.
  __device__ __forceinline__ void LoadElements(uint4* to, const KeyOffsets* offsets,
                                               int64_t KeyOffsets::*which, const Element* from,
                                               const KvView& view, int head_dim) const {
#pragma unroll 1
    for (int at = thread_; at < Traits::kKeys * Traits::kChunks; at += Traits::kGroupThreads) {
      const int key = at / Traits::kChunks;
      const int chunk = at % Traits::kChunks;
      const int64_t offset = offsets[key].*which;
      __align__(16) Element elements[Traits::kChunk];
#pragma unroll
      for (int e = 0; e < Traits::kChunk; ++e) {
        const int dim = chunk * Traits::kChunk + e;
        const bool is_there = offset >= 0 && dim < head_dim;
        elements[e] = is_there ? from[offset + DimOffset(view, dim)] : FromFloat<Element>(0.0f);
      }
      to[Traits::ChunkAt(key, chunk)] = *reinterpret_cast<const uint4*>(elements);
    }
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const int thread_;  // of the group
  const int32_t* table_;
  const Element* k_;
  const Element* v_;
};

// Starts copying the tile's rows of q; rows beyond the last become zeros.
template <typename Traits>
__device__ __forceinline__ void LoadQueries(const AttentionKernelParams& p, const WorkUnit& unit,
                                            uint4* to) {
  using Element = typename Traits::Element;
  const Element* q = static_cast<const Element*>(p.q);
#pragma unroll 1
  for (int at = threadIdx.x; at < Traits::kRows * Traits::kChunks; at += Traits::kThreads) {
    const int row = at / Traits::kChunks;
    const int chunk = at % Traits::kChunks;
    const int dim = chunk * Traits::kChunk;
    uint4* const place = to + Traits::ChunkAt(row, chunk);
    const Element* source = q;
    if (row < unit.num_rows) {
      const TileRow tile_row = RowAt(p, unit, row);
      source += tile_row.token * p.q_token_stride + tile_row.q_head * p.q_head_stride;
    }
    if (p.q_is_aligned) {
      const int bytes = row < unit.num_rows ? ChunkBytes<Traits>(dim, p.head_dim_qk) : 0;
      CopyAsync16(place, bytes > 0 ? source + dim : q, bytes);
    } else {
      __align__(16) Element elements[Traits::kChunk];
#pragma unroll
      for (int e = 0; e < Traits::kChunk; ++e) {
        const bool is_there = row < unit.num_rows && dim + e < p.head_dim_qk;
        elements[e] = is_there ? source[dim + e] : FromFloat<Element>(0.0f);
      }
      *place = *reinterpret_cast<const uint4*>(elements);
    }
  }
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_KEY_LOADER_CUH_
