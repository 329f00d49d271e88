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

// Offset of a dim from the first of its head, in elements.
__device__ __forceinline__ int64_t DimOffset(const KvView& view, int dim) {
  if (dim < view.dim_chunk) return dim;
  return dim / view.dim_chunk * view.dim_chunk_stride + dim % view.dim_chunk;
}

// A step of K or V with any strides, element by element. `head`: its kv head's element (0, 0).
template <typename Traits>
__device__ __noinline__ void LoadElements(uint4* to, const KeyOffsets* offsets,
                                          int64_t KeyOffsets::*which, const char* head,
                                          const KvView& view, int head_dim, int num_keys,
                                          int thread) {
  using Element = typename Traits::Element;
#pragma unroll 1
  for (int at = thread; at < Traits::kKeys * Traits::kChunks; at += Traits::kGroupThreads) {
    const int key = at / Traits::kChunks;
    const int chunk = at % Traits::kChunks;
    const auto* from = reinterpret_cast<const Element*>(head + offsets[key].*which);
    __align__(16) Element elements[Traits::kChunk];
#pragma unroll
    for (int e = 0; e < Traits::kChunk; ++e) {
      const int dim = chunk * Traits::kChunk + e;
      const bool is_there = key < num_keys && dim < head_dim;
      elements[e] = is_there ? from[DimOffset(view, dim)] : FromFloat<Element>(0.0f);
    }
    to[Traits::ChunkAt(key, chunk)] = *reinterpret_cast<const uint4*>(elements);
  }
}

template <typename Traits>
class KeyLoader {
 public:
  using Element = typename Traits::Element;

  struct Place {
    int block;
    int token;  // in the block
  };

  __device__ __forceinline__ KeyLoader(const AttentionKernelParams& p, const WorkUnit& unit,
                                       int thread)
      : p_(p), unit_(unit), thread_(thread) {
    constexpr int64_t kBytes = sizeof(Element);
    const char* k = static_cast<const char*>(p.k.data) + unit.kv_head * p.k.head_stride * kBytes;
    const char* v = static_cast<const char*>(p.v.data) + unit.kv_head * p.v.head_stride * kBytes;
#pragma unroll
    for (int c = 0; c < kChunkPasses; ++c) {
      const int dim = DimOf(c);
      k_[c] = dim < p.head_dim_qk ? k + DimOffset(p.k, dim) * kBytes : k;
      v_[c] = dim < p.head_dim_v ? v + DimOffset(p.v, dim) * kBytes : v;
    }
  }

  // The place of this thread's key of the step that begins at local key `first`.
  __device__ __forceinline__ Place Find(int first) const {
    const int key = first + thread_;
    if (thread_ >= Traits::kKeys || key >= unit_.item.key_end) return {0, 0};
    const int token = unit_.item.first_key + key;
    if (p_.block_table == nullptr) return {0, token};
    const int column = token / p_.block_size;
    const int block = p_.block_table[unit_.item.table_row * p_.block_table_stride + column];
    return {block, token - column * p_.block_size};
  }

  __device__ __forceinline__ void Note(KeyOffsets* offsets, const Place& place) const {
    if (thread_ >= Traits::kKeys) return;
    constexpr int64_t kBytes = sizeof(Element);
    // A key that no query sees may stand in a block that is none. (Not looked at in Find(), which
    // must not wait for the table.)
    const bool is_block = static_cast<unsigned>(place.block) < static_cast<unsigned>(p_.num_blocks);
    const int block = is_block ? place.block : 0;
    offsets[thread_] = {(block * p_.k.block_stride + place.token * p_.k.token_stride) * kBytes,
                        (block * p_.v.block_stride + place.token * p_.v.token_stride) * kBytes};
  }

  // Starts copying the step that begins at local key `first`. The group meets between Note() and
  // this, and waits and meets after it.
  __device__ __forceinline__ void Load(uint4* k, uint4* v, const KeyOffsets* offsets,
                                       int first) const {
    const int num_keys = unit_.item.key_end - first;  // or more than a step
    if (p_.kv_is_aligned) {
      LoadAligned(k, v, offsets, num_keys);
    } else {
      constexpr int64_t kBytes = sizeof(Element);
      const int head = unit_.kv_head;
      LoadElements<Traits>(k, offsets, &KeyOffsets::k,
                           static_cast<const char*>(p_.k.data) + head * p_.k.head_stride * kBytes,
                           p_.k, p_.head_dim_qk, num_keys, thread_);
      LoadElements<Traits>(v, offsets, &KeyOffsets::v,
                           static_cast<const char*>(p_.v.data) + head * p_.v.head_stride * kBytes,
                           p_.v, p_.head_dim_v, num_keys, thread_);
    }
  }

 private:
  // A thread copies the same chunk of a row at every pass, and where rows are longer than the
  // group, the same few chunks.
  static constexpr int kChunkPasses =
      Traits::kChunks > Traits::kGroupThreads ? Traits::kChunks / Traits::kGroupThreads : 1;
  static constexpr int kKeysPerPass = Traits::kGroupThreads * kChunkPasses / Traits::kChunks;
  static_assert(kKeysPerPass == 1 || kKeysPerPass % 2 == 0);

  // The first dim of this thread's chunk at a pass.
  __device__ __forceinline__ int DimOf(int chunk_pass) const {
    return (chunk_pass * Traits::kGroupThreads + thread_ % Traits::kChunks) * Traits::kChunk;
  }

  __device__ __forceinline__ void LoadAligned(uint4* k, uint4* v, const KeyOffsets* offsets,
                                              int num_keys) const {
    const int first_key = thread_ / Traits::kChunks;  // below kKeysPerPass
    const uint32_t k_to = SharedAddress(k + first_key * Traits::kChunks);
    const uint32_t v_to = SharedAddress(v + first_key * Traits::kChunks);
#pragma unroll
    for (int pass = 0; pass < Traits::kKeys / kKeysPerPass; ++pass) {
      const KeyOffsets offset = offsets[pass * kKeysPerPass + first_key];
      const bool is_key = pass * kKeysPerPass + first_key < num_keys;
#pragma unroll
      for (int c = 0; c < kChunkPasses; ++c) {
        // ChunkAt() of row pass * kKeysPerPass + first_key, in which no bits overlap.
        const int chunk = (c * Traits::kGroupThreads + thread_ % Traits::kChunks) ^
                          (first_key & 7) ^ (pass * kKeysPerPass & 7);
        const uint32_t at = (pass * kKeysPerPass * Traits::kChunks + chunk) * 16;
        CopyAsync16(k_to + at, k_[c] + offset.k, is_key && DimOf(c) < p_.head_dim_qk);
        CopyAsync16(v_to + at, v_[c] + offset.v, is_key && DimOf(c) < p_.head_dim_v);
      }
    }
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const int thread_;  // of the group
  // This thread's chunks of the kv head's element (0, 0).
  const char* k_[kChunkPasses];
  const char* v_[kChunkPasses];
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
      const bool is_there = row < unit.num_rows && dim < p.head_dim_qk;
      CopyAsync16(SharedAddress(place), is_there ? source + dim : q, is_there);
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
