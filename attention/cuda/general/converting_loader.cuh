// Loads KV tiles into shared memory through a conversion (KvLoading::kConverted).
//
//   Start()    copies 16-byte chunks from the cache asynchronously, without converting them. A
//              thread converts only its own copies, so no thread waits for another's copies.
//   Fill()     converts the copied chunks into the KV tile. Gathers heads that are not in whole
//              chunks element by element.
//   TakeRope() writes the keys' last dims into the KV tile, if they are in a separate tensor
//   TakeNew()  writes the row's new keys and values, which come from tensors, into the KV tile
//
// The arrival buffer is as large as the KV tile. It holds two KV tiles if the cache's type is at
// most half as wide as the MMA type, and one KV tile otherwise. Keys past the item and dims past
// the head dim become zeros without a read.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_CONVERTING_LOADER_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_CONVERTING_LOADER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/convert.cuh"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/page_lookup.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// K or V of one KV head in the cache.
struct LoadSource {
  const char* head;  // element (0, 0) of the kv head
  KvView view;
  KvAccess access;
  DType dtype;
  int head_dim;
  bool has_place_of_k;  // addressed by KeyOffsets::k, otherwise by KeyOffsets::v

  __device__ __forceinline__ int64_t Offset(const KeyOffsets& offsets) const {
    return has_place_of_k ? offsets.k : offsets.v;
  }
};

template <typename Traits>
class ConvertingLoader {
 public:
  using Element = typename Traits::Element;

  // `end`: PageLookup::end(). `thread`: index in the warp group.
  __device__ __forceinline__ ConvertingLoader(const AttentionKernelParams& p, const WorkUnit& unit,
                                              int end, int thread)
      : p_(p), unit_(unit), end_(end), thread_(thread) {}

  // Maximum number of KV tiles in flight.
  __device__ __forceinline__ int depth() const {
    return 2 * SizeOf(p_.kv_dtype) <= static_cast<int>(sizeof(Element)) ? 2 : 1;
  }

  // Starts copying the KV tile that begins at local key `first`. REQUIRES: its key addresses are in
  // `offsets`.
  __device__ __forceinline__ void Start(uint4* arriving, const KeyOffsets* offsets,
                                        int first) const {
    const int num_keys = end_ - first;
    WithSource([&]<DType kSource>() {
      if (p_.k_access == KvAccess::kChunks) {
        StartChunks<kSource, Traits::kHeadDimQk>(arriving, offsets, Keys(), num_keys);
      }
      if constexpr (!Traits::kValuesInKeys) {
        if (p_.v_access == KvAccess::kChunks) {
          StartChunks<kSource, Traits::kHeadDimV>(arriving + KeyChunksOf<kSource>(), offsets,
                                                  Values(), num_keys);
        }
      }
    });
  }

  // The part of the arrival buffer for KV tile i.
  __device__ __forceinline__ uint4* ArrivalOf(uint4* arriving, int i) const {
    constexpr int kChunks =
        (Traits::kKeyChunks + (Traits::kValuesInKeys ? 0 : Traits::kValueChunks)) * Traits::kKeys;
    return arriving + (depth() == 2 ? i % 2 * (kChunks / 2) : 0);
  }

  __device__ __forceinline__ void Fill(uint4* k, uint4* v, const uint4* arrived,
                                       const KeyOffsets* offsets, int first) const {
    const int num_keys = end_ - first;
    WithSource([&]<DType kSource>() {
      if (p_.k_access == KvAccess::kChunks) {
        Convert<kSource, Traits::kHeadDimQk, Traits::kKeyChunks>(arrived, k);
      }
      if constexpr (!Traits::kValuesInKeys) {
        if (p_.v_access == KvAccess::kChunks) {
          Convert<kSource, Traits::kHeadDimV, Traits::kValuePitch>(arrived + KeyChunksOf<kSource>(),
                                                                   v);
        }
      }
    });
    if (p_.k_access != KvAccess::kChunks) GatherKeys(k, offsets, first);
    if constexpr (!Traits::kValuesInKeys) {
      if (p_.v_access == KvAccess::kTokens) {
        GatherTokens(v, offsets, Values(), num_keys);
      } else if (p_.v_access == KvAccess::kElements) {
        Gather<Traits::kValueChunks, Traits::kValuePitch>(v, offsets, Values(), num_keys);
      }
    }
  }

  // Reloads K after the KV tile in shared memory was modified.
  __device__ __forceinline__ void GatherKeys(uint4* k, const KeyOffsets* offsets, int first) const {
    Gather<Traits::kKeyChunks, Traits::kKeyChunks>(k, offsets, Keys(), end_ - first);
  }

  // REQUIRES: p.rope_dim > 0; a group barrier since Fill().
  __device__ __noinline__ void TakeRope(uint4* k, const KeyOffsets* offsets, int first) const {
    const int num_keys = min(end_ - first, Traits::kKeys);
    const int first_dim = p_.head_dim_qk - p_.rope_dim;
    const char* const head = static_cast<const char*>(p_.rope.data) +
                             unit_.kv_head * p_.rope.head_stride * SizeOf(p_.rope_dtype);
#pragma unroll 4
    for (int at = thread_; at < num_keys * p_.rope_dim; at += Traits::kGroupThreads) {
      const int key = at / p_.rope_dim;
      const int dim = at % p_.rope_dim;
      const float value = LoadFloat(head + offsets[key].v, p_.rope_dtype, DimOffset(p_.rope, dim));
      const int chunk = (first_dim + dim) / Traits::kChunk;
      uint4* const place = k + key * Traits::kKeyChunks + (chunk ^ (key & 7));
      reinterpret_cast<Element*>(place)[(first_dim + dim) % Traits::kChunk] =
          FromFloat<Element>(value);
    }
  }

  // REQUIRES: a group barrier since Fill().
  __device__ __noinline__ void TakeNew(uint4* k, uint4* v, int first) const {
    const int num_keys = min(unit_.item.key_end - first, Traits::kKeys);
    const int64_t row_token = unit_.item.first_token - unit_.item.query_begin;
    for (int key = max(0, end_ - first); key < num_keys; ++key) {
      const int64_t token = row_token + first + key - FirstNewKey(p_, unit_.item);
      TakeRow<Traits::kKeyChunks>(
          k + key * Traits::kKeyChunks, key, p_.new_k,
          token * p_.new_k_token_stride + unit_.kv_head * p_.new_k_head_stride, p_.head_dim_qk);
      if constexpr (!Traits::kValuesInKeys) {
        TakeRow<Traits::kValueChunks>(
            v + key * Traits::kValuePitch, key, p_.new_v,
            token * p_.new_v_token_stride + unit_.kv_head * p_.new_v_head_stride, p_.head_dim_v);
      }
    }
  }

 private:
  __device__ __forceinline__ LoadSource Keys() const {
    return {HeadOf(p_.k), p_.k, p_.k_access, p_.kv_dtype, p_.head_dim_qk - p_.rope_dim, true};
  }
  __device__ __forceinline__ LoadSource Values() const {
    // If the rope part of K is a separate tensor, V is the first columns of k.
    const bool has_place_of_k = p_.rope_dim > 0;
    return {HeadOf(p_.v), p_.v, p_.v_access, p_.kv_dtype, p_.head_dim_v, has_place_of_k};
  }
  __device__ __forceinline__ const char* HeadOf(const KvView& view) const {
    return static_cast<const char*>(view.data) +
           unit_.kv_head * view.head_stride * SizeOf(p_.kv_dtype);
  }

  // Calls body.operator()<kSource>() for the cache's type. REQUIRES: Element holds its values.
  template <typename Body>
  __device__ __forceinline__ void WithSource(const Body& body) const {
    switch (p_.kv_dtype) {
      case DType::kFp8E4M3:
        body.template operator()<DType::kFp8E4M3>();
        return;
      case DType::kFp8E5M2:
        body.template operator()<DType::kFp8E5M2>();
        return;
      default:
        break;
    }
    if constexpr (Traits::kTile.dtype == DType::kFloat32) {
      if (p_.kv_dtype == DType::kFloat16) {
        body.template operator()<DType::kFloat16>();
        return;
      }
      if (p_.kv_dtype == DType::kBFloat16) {
        body.template operator()<DType::kBFloat16>();
        return;
      }
    }
    body.template operator()<Traits::kTile.dtype>();
  }

  // Number of chunks of a KV tile's K in the arrival buffer.
  template <DType kSource>
  static constexpr int KeyChunksOf() {
    return Traits::kKeys * Traits::kHeadDimQk * SizeOf(kSource) / 16;
  }

  template <DType kSource, int kHeadDim>
  __device__ __forceinline__ void StartChunks(uint4* arriving, const KeyOffsets* offsets,
                                              const LoadSource& source, int num_keys) const {
    constexpr int kElements = 16 / SizeOf(kSource);
    constexpr int kChunks = kHeadDim / kElements;
#pragma unroll 2
    for (int at = thread_; at < Traits::kKeys * kChunks; at += Traits::kGroupThreads) {
      const int key = at / kChunks;
      const int dim = at % kChunks * kElements;
      const bool is_there = key < num_keys && dim < source.head_dim;
      const char* from = source.head;
      if (is_there) {
        from += source.Offset(offsets[key]) + DimOffset(source.view, dim) * SizeOf(kSource);
      }
      CopyAsync16(SharedAddress(arriving + at), from, is_there);
    }
  }

  template <DType kSource, int kHeadDim, int kPitch>
  __device__ __forceinline__ void Convert(const uint4* arrived, uint4* to) const {
    constexpr int kElements = 16 / SizeOf(kSource);
    constexpr int kChunks = kHeadDim / kElements;
    constexpr int kParts = sizeof(Element) / SizeOf(kSource);
#pragma unroll 2
    for (int at = thread_; at < Traits::kKeys * kChunks; at += Traits::kGroupThreads) {
      const int key = at / kChunks;
      uint4 parts[kParts];
      ConvertChunk<kSource, Element>(arrived[at], parts);
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        to[key * kPitch + ((at % kChunks * kParts + i) ^ (key & 7))] = parts[i];
      }
    }
  }

  // Gathers heads with any strides.
  template <int kChunks, int kPitch>
  __device__ __noinline__ void Gather(uint4* to, const KeyOffsets* offsets,
                                      const LoadSource& source, int num_keys) const {
#pragma unroll 1
    for (int at = thread_; at < Traits::kKeys * kChunks; at += Traits::kGroupThreads) {
      const int key = at / kChunks;
      const int chunk = at % kChunks;
      const char* from = source.head + (key < num_keys ? source.Offset(offsets[key]) : 0);
      __align__(16) Element elements[Traits::kChunk];
#pragma unroll
      for (int e = 0; e < Traits::kChunk; ++e) {
        const int dim = chunk * Traits::kChunk + e;
        const bool is_there = key < num_keys && dim < source.head_dim;
        elements[e] = FromFloat<Element>(
            is_there ? LoadFloat(from, source.dtype, DimOffset(source.view, dim)) : 0.0f);
      }
      to[key * kPitch + (chunk ^ (key & 7))] = *reinterpret_cast<const uint4*>(elements);
    }
  }

  // Gathers heads with contiguous tokens per dim (KvAccess::kTokens). Adjacent threads read
  // adjacent memory, several dims at a time.
  __device__ __noinline__ void GatherTokens(uint4* to, const KeyOffsets* offsets,
                                            const LoadSource& source, int num_keys) const {
    constexpr int kBatch = 8;  // loads in flight
    constexpr int kTotal = Traits::kKeys * Traits::kHeadDimV;
    static_assert(kTotal % (kBatch * Traits::kGroupThreads) == 0);
#pragma unroll 1
    for (int begin = thread_; begin < kTotal; begin += kBatch * Traits::kGroupThreads) {
      float values[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = begin + i * Traits::kGroupThreads;
        const int key = at % Traits::kKeys;
        const int dim = at / Traits::kKeys;
        values[i] = 0.0f;
        if (key < num_keys && dim < source.head_dim) {
          values[i] = LoadFloat(source.head + source.Offset(offsets[key]), source.dtype,
                                DimOffset(source.view, dim));
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int at = begin + i * Traits::kGroupThreads;
        const int key = at % Traits::kKeys;
        const int dim = at / Traits::kKeys;
        uint4* const chunk = to + Traits::ValueChunkAt(key, dim / Traits::kChunk);
        reinterpret_cast<Element*>(chunk)[dim % Traits::kChunk] = FromFloat<Element>(values[i]);
      }
    }
  }

  // Loads one key from a tensor of Element. `to`: the key's row of the KV tile.
  template <int kChunks>
  __device__ __forceinline__ void TakeRow(uint4* to, int key, const void* tensor, int64_t at,
                                          int head_dim) const {
    const Element* from = static_cast<const Element*>(tensor) + at;
    for (int chunk = thread_; chunk < kChunks; chunk += Traits::kGroupThreads) {
      const int dim = chunk * Traits::kChunk;
      uint4* const place = to + (chunk ^ (key & 7));
      if (p_.new_is_aligned && dim < head_dim) {
        *place = *reinterpret_cast<const uint4*>(from + dim);
        continue;
      }
      __align__(16) Element elements[Traits::kChunk];
#pragma unroll
      for (int e = 0; e < Traits::kChunk; ++e) {
        elements[e] = dim + e < head_dim ? from[dim + e] : FromFloat<Element>(0.0f);
      }
      *place = *reinterpret_cast<const uint4*>(elements);
    }
  }

  const AttentionKernelParams& p_;
  const WorkUnit& unit_;
  const int end_;
  const int thread_;  // index in the warp group
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_CONVERTING_LOADER_CUH_
