// Loads KV tiles into shared memory unconverted (KvLoading::kDirect, kFp8). All threads of a warp
// group copy 16-byte chunks asynchronously while earlier keys are in use. Keys past the item and
// dims past the head dim become zeros without a read.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_KEY_LOADER_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_KEY_LOADER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

template <typename Traits>
class KeyLoader {
 public:
  __device__ __forceinline__ KeyLoader(const AttentionKernelParams& p, const WorkUnit& unit,
                                       int thread)
      : p_(p), unit_(unit), thread_(thread) {
    constexpr int64_t kBytes = Traits::kStoredBytes;
    const char* k = static_cast<const char*>(p.k.data) + unit.kv_head * p.k.head_stride * kBytes;
    const char* v = static_cast<const char*>(p.v.data) + unit.kv_head * p.v.head_stride * kBytes;
#pragma unroll
    for (int c = 0; c < kPointers; ++c) {
      const int dim = DimOf(c);
      k_[c] = dim < p.head_dim_qk ? k + DimOffset(p.k, dim) * kBytes : k;
      v_[c] = dim < p.head_dim_v ? v + DimOffset(p.v, dim) * kBytes : v;
    }
  }

  // Starts copying the KV tile that begins at local key `first`. REQUIRES: its key addresses are in
  // `offsets`, with a group barrier since they were recorded. To use the tile, each thread waits
  // for its copies, followed by a group barrier.
  __device__ __forceinline__ void Load(uint4* k, uint4* v, const KeyOffsets* offsets,
                                       int first) const {
    const int num_keys = unit_.item.key_end - first;      // may exceed a KV tile
    const int first_key = thread_ / Traits::kLanesOfKey;  // below kKeysPerPass
    const uint32_t k_to = SharedAddress(k + first_key * Traits::kStoredKeyChunks);
    const uint32_t v_to = SharedAddress(v + first_key * Traits::kStoredValuePitch);
#pragma unroll
    for (int begin = 0; begin < kPasses; begin += kBatch) {
      KeyOffsets batch[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        batch[i] = offsets[(begin + i) * Traits::kKeysPerPass + first_key];
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int pass = begin + i;
        const KeyOffsets& offset = batch[i];
        const bool is_key = pass * Traits::kKeysPerPass + first_key < num_keys;
#pragma unroll
        for (int c = 0; c < Traits::kChunkPasses; ++c) {
          // The chunk of row pass * kKeysPerPass + first_key; the bits of the two do not overlap.
          const int chunk = (c * Traits::kLanesOfKey + thread_ % Traits::kLanesOfKey) ^
                            Traits::StoredPermutation(first_key) ^
                            Traits::StoredPermutation(pass * Traits::kKeysPerPass);
          const uint32_t at = (pass * Traits::kKeysPerPass * Traits::kStoredKeyChunks + chunk) * 16;
          CopyAsync16(k_to + at, From(k_, c) + offset.k, is_key && DimOf(c) < p_.head_dim_qk);
          if constexpr (!Traits::kValuesInKeys) {
            CopyAsync16(v_to + at, From(v_, c) + offset.v, is_key && DimOf(c) < p_.head_dim_v);
          }
        }
      }
    }
  }

 private:
  static constexpr int kPasses = Traits::kKeys / Traits::kKeysPerPass;
  // Number of key addresses read at a time: a read waits for copies that were started before it.
  static constexpr int kBatch = kPasses % 4 == 0 ? 4 : kPasses % 2 == 0 ? 2 : 1;

  // Only tiles with V in K have more than two chunk passes. Their dims are contiguous, so one
  // pointer serves all chunks of a thread.
  static constexpr bool kOnePointer = Traits::kChunkPasses > 2;
  static constexpr int kPointers = kOnePointer ? 1 : Traits::kChunkPasses;

  // The first dim of this thread's chunk in chunk pass `c`.
  __device__ __forceinline__ int DimOf(int c) const {
    return (c * Traits::kLanesOfKey + thread_ % Traits::kLanesOfKey) * Traits::kStoredChunk;
  }

  static __device__ __forceinline__ const char* From(const char* const (&pointers)[kPointers],
                                                     int c) {
    return kOnePointer ? pointers[0] + c * Traits::kLanesOfKey * 16 : pointers[c];
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const int thread_;  // index in the warp group
  // Addresses of this thread's chunks at the kv head's element (0, 0).
  const char* k_[kPointers];
  const char* v_[kPointers];
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_KEY_LOADER_CUH_
