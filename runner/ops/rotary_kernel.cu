// Rotary embedding of q in place, and of k into the cache together with v (or of k in place,
// without a cache).
//
// A thread takes one chunk: kVector pairs of a head of q or k, or kVector dims that are only
// copied. With a norm, the threads of a head are padded to a power of two, side by side in a warp,
// and add up the squares of their chunks. The chunks of a token lie in one row: q's pairs, k's
// pairs, k's dims past rotary_dim, v. CTAs of a token lie along y.
//
// Bound: bytes. Llama-3.1-8B (32 q heads, 8 kv heads, 128 dims, bfloat16) moves 20 KB a token: 256
// tokens 5 MB, 1.3 us at 4 TB/s. Small batches: the launch and two loads, one after the other
// (position, then its row of the table).
//
//   T         q, k, v: float, __half, __nv_bfloat16
//   C         the cache: T's types, __nv_fp8_e4m3, __nv_fp8_e5m2
//   kVector   elements a thread reads at once: 16 bytes of them, or 1 if heads are not aligned

#include <cuda_fp8.h>

#include "runner/ops/rotary_kernel.h"
#include "runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 128;

// Rounds to nearest; values beyond the largest finite one become it.
template <typename C>
__device__ C ToCache(float value) {
  if constexpr (sizeof(C) == 1) {
    return C(value);
  } else {
    return FromFloat<C>(value);
  }
}

template <typename T, int kVector>
struct Chunk {
  float value[kVector];

  __device__ static Chunk Load(const T* pointer) {
    const Vector<T, kVector> vector = LoadVector<T, kVector>(pointer);
    Chunk chunk;
#pragma unroll
    for (int j = 0; j < kVector; ++j) chunk.value[j] = ToFloat(vector.value[j]);
    return chunk;
  }

  __device__ void Store(T* pointer) const {
    Vector<T, kVector> vector;
#pragma unroll
    for (int j = 0; j < kVector; ++j) vector.value[j] = FromFloat<T>(value[j]);
    StoreVector(pointer, vector);
  }
};

// kVector floats of the table, of which rows are aligned to a chunk.
template <int kVector>
__device__ void LoadTable(const float* pointer, float (&value)[kVector]) {
  constexpr int kPiece = kVector < 4 ? kVector : 4;
#pragma unroll
  for (int i = 0; i < kVector; i += kPiece) {
    const Vector<float, kPiece> piece = LoadVector<float, kPiece>(pointer + i);
#pragma unroll
    for (int j = 0; j < kPiece; ++j) value[i + j] = piece.value[j];
  }
}

// A token's place in the cache.
struct CacheSlot {
  int64_t block;
  int64_t offset;
};

template <typename T, typename C, int kVector>
__device__ void StoreToCache(const KvView& view, bool whole_vectors, const Scale& scale,
                             CacheSlot slot, int head, int dim, const Chunk<T, kVector>& chunk) {
  const float divisor = scale.data != nullptr ? scale.data[head * scale.head_stride] : scale.value;
  C* data = static_cast<C*>(view.data);
  if (whole_vectors) {
    Vector<C, kVector> vector;
#pragma unroll
    for (int j = 0; j < kVector; ++j) vector.value[j] = ToCache<C>(chunk.value[j] / divisor);
    StoreVector(data + view.Offset(slot.block, slot.offset, head, dim), vector);
  } else {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      data[view.Offset(slot.block, slot.offset, head, dim + j)] =
          ToCache<C>(chunk.value[j] / divisor);
    }
  }
}

// Threads of a head's pairs: with a norm, a power of two.
template <int kVector>
__host__ __device__ int PairThreads(const RotaryArgs& args) {
  const int chunks = args.rotary_dim / 2 / kVector;
  if (!args.norm.is_on) return chunks;
  int threads = 1;
  while (threads < chunks) threads *= 2;
  return threads;
}

// Normalises a head of which each of the `num_threads` threads has two chunks; zeros where it has
// none. Rounds as NormaliseHeads() does.
template <typename T, int kVector>
__device__ void Normalise(const RotaryArgs& args, const void* weights, int num_threads, int dim,
                          bool is_there, Chunk<T, kVector>& first, Chunk<T, kVector>& second) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sum += first.value[j] * first.value[j] + second.value[j] * second.value[j];
  }
  const unsigned lane = threadIdx.x % 32;
  const unsigned head_lanes = 0xffffffffu >> (32 - num_threads) << lane / num_threads * num_threads;
  for (int offset = num_threads / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(head_lanes, sum, offset);
  }
  const float scale = 1.0f / sqrtf(sum / static_cast<float>(args.head_dim_qk) + args.norm.eps);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    first.value[j] = RoundTo<T>(first.value[j] * scale);
    second.value[j] = RoundTo<T>(second.value[j] * scale);
  }
  if (weights == nullptr || !is_there) return;
  const T* weight = static_cast<const T*>(weights) + dim;
  const auto first_weight = Chunk<T, kVector>::Load(weight);
  const auto second_weight = Chunk<T, kVector>::Load(weight + args.rotary_dim / 2);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    first.value[j] = RoundTo<T>(first.value[j] * first_weight.value[j]);
    second.value[j] = RoundTo<T>(second.value[j] * second_weight.value[j]);
  }
}

template <typename T, typename C, int kVector>
__global__ void __launch_bounds__(kThreads)
    RotaryKernel(RotaryArgs args, bool k_whole_vectors, bool v_whole_vectors) {
  const int token = blockIdx.x;
  const int half = args.rotary_dim / 2;
  const int pair_threads = PairThreads<kVector>(args);
  const int tail_chunks = (args.head_dim_qk - args.rotary_dim) / kVector;
  const int v_chunks = args.head_dim_v / kVector;
  int index = blockIdx.y * kThreads + threadIdx.x;

  const bool writes_cache = args.slot_mapping != nullptr;
  const auto head_of = [&](const HeadsView& view, int head) {
    return static_cast<T*>(view.data) + token * view.token_stride + head * view.head_stride;
  };
  const auto find_slot = [&](CacheSlot& slot) {
    const int64_t mapped = token < args.num_slots ? args.slot_mapping[token] : -1;
    slot = {mapped / args.kv.block_size, mapped % args.kv.block_size};
    return mapped >= 0 && slot.block < args.kv.num_blocks;
  };

  const int num_pairs = (args.q.num_heads + args.k.num_heads) * pair_threads;
  if (index < num_pairs) {
    const int position = min(max(args.positions[token], 0), args.max_positions - 1);
    const float* row = args.table + static_cast<int64_t>(position) * args.rotary_dim;
    const int head = index / pair_threads;
    const int dim = index % pair_threads * kVector;
    const bool is_there = dim < half;
    const bool is_q = head < args.q.num_heads;
    T* x = is_q ? head_of(args.q, head) : head_of(args.k, head - args.q.num_heads);

    float cos[kVector], sin[kVector];
    Chunk<T, kVector> first = {}, second = {};
    if (is_there) {
      LoadTable<kVector>(row + dim, cos);
      LoadTable<kVector>(row + half + dim, sin);
      first = Chunk<T, kVector>::Load(x + dim);
      second = Chunk<T, kVector>::Load(x + half + dim);
    }
    if (args.norm.is_on) {
      Normalise(args, is_q ? args.norm.q_weight : args.norm.k_weight, pair_threads, dim, is_there,
                first, second);
    }
    if (!is_there) return;
    Chunk<T, kVector> low, high;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      low.value[j] = first.value[j] * cos[j] - second.value[j] * sin[j];
      high.value[j] = second.value[j] * cos[j] + first.value[j] * sin[j];
    }
    if (is_q || !writes_cache) {
      low.Store(x + dim);
      high.Store(x + half + dim);
    } else if (CacheSlot slot; find_slot(slot)) {
      const int kv_head = head - args.q.num_heads;
      StoreToCache<T, C>(args.kv.k, k_whole_vectors, args.kv.k_scale, slot, kv_head, dim, low);
      StoreToCache<T, C>(args.kv.k, k_whole_vectors, args.kv.k_scale, slot, kv_head, half + dim,
                         high);
    }
    return;
  }
  if (!writes_cache) return;

  index -= num_pairs;
  CacheSlot slot;
  const int num_tails = args.k.num_heads * tail_chunks;
  if (index < num_tails) {
    const int head = index / tail_chunks;
    const int dim = args.rotary_dim + index % tail_chunks * kVector;
    if (!find_slot(slot)) return;
    StoreToCache<T, C>(args.kv.k, k_whole_vectors, args.kv.k_scale, slot, head, dim,
                       Chunk<T, kVector>::Load(head_of(args.k, head) + dim));
    return;
  }
  index -= num_tails;
  if (index < args.v.num_heads * v_chunks) {
    const int head = index / v_chunks;
    const int dim = index % v_chunks * kVector;
    if (!find_slot(slot)) return;
    StoreToCache<T, C>(args.kv.v, v_whole_vectors, args.kv.v_scale, slot, head, dim,
                       Chunk<T, kVector>::Load(head_of(args.v, head) + dim));
  }
}

// Whether chunks of kVector elements are contiguous and aligned in the cache.
template <typename C, int kVector>
bool HoldsWholeVectors(const KvView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % (sizeof(C) * kVector) == 0 &&
         view.dim_chunk % kVector == 0 && view.dim_chunk_stride % kVector == 0 &&
         view.block_stride % kVector == 0 && view.token_stride % kVector == 0 &&
         view.head_stride % kVector == 0;
}

template <typename T>
bool IsAligned(const HeadsView& view) {
  return IsAlignedForVectors<T>(view.data, view.token_stride) &&
         view.head_stride % kFullVector<T> == 0;
}

template <typename T, typename C, int kVector>
cudaError_t Launch(const RotaryArgs& args, cudaStream_t stream) {
  const bool writes_cache = args.slot_mapping != nullptr;
  int num_chunks = (args.q.num_heads + args.k.num_heads) * PairThreads<kVector>(args);
  if (writes_cache) {
    num_chunks += args.k.num_heads * ((args.head_dim_qk - args.rotary_dim) / kVector);
    num_chunks += args.v.num_heads * (args.head_dim_v / kVector);
  }
  if (num_chunks == 0) return cudaSuccess;
  const dim3 grid(args.num_tokens, (num_chunks + kThreads - 1) / kThreads);
  RotaryKernel<T, C, kVector><<<grid, kThreads, 0, stream>>>(
      args, HoldsWholeVectors<C, kVector>(args.kv.k), HoldsWholeVectors<C, kVector>(args.kv.v));
  return cudaGetLastError();
}

template <typename T>
bool IsAligned(const RotaryArgs& args) {
  constexpr int kVector = kFullVector<T>;
  return args.rotary_dim / 2 % kVector == 0 && args.head_dim_qk % kVector == 0 &&
         args.head_dim_v % kVector == 0 && reinterpret_cast<uintptr_t>(args.table) % 16 == 0 &&
         IsAligned<T>(args.q) && IsAligned<T>(args.k) && IsAligned<T>(args.v);
}

template <typename T, typename C>
cudaError_t LaunchForAlignment(const RotaryArgs& args, cudaStream_t stream) {
  return IsAligned<T>(args) ? Launch<T, C, kFullVector<T>>(args, stream)
                            : Launch<T, C, 1>(args, stream);
}

template <typename T>
bool CanNormalise(const RotaryArgs& args) {
  return IsAligned<T>(args) && args.rotary_dim == args.head_dim_qk &&
         PairThreads<kFullVector<T>>(args) <= 32 && IsAlignedForVectors<T>(args.norm.q_weight, 0) &&
         IsAlignedForVectors<T>(args.norm.k_weight, 0);
}

}  // namespace

bool CanNormaliseWhileRotating(const RotaryArgs& args) {
  switch (args.dtype) {
    case DType::kFloat32:
      return CanNormalise<float>(args);
    case DType::kFloat16:
      return CanNormalise<__half>(args);
    default:
      return CanNormalise<__nv_bfloat16>(args);
  }
}

cudaError_t LaunchRotary(const RotaryArgs& args, cudaStream_t stream) {
  if (args.num_tokens <= 0) return cudaSuccess;
  return VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (args.slot_mapping == nullptr) return LaunchForAlignment<T, T>(args, stream);
    switch (args.kv.dtype) {
      case DType::kFp8E4M3:
        return LaunchForAlignment<T, __nv_fp8_e4m3>(args, stream);
      case DType::kFp8E5M2:
        return LaunchForAlignment<T, __nv_fp8_e5m2>(args, stream);
      default:
        return VisitDeviceType(args.kv.dtype, [&](auto cache_zero) {
          return LaunchForAlignment<T, decltype(cache_zero)>(args, stream);
        });
    }
  });
}

}  // namespace reprise
