// Rotates q in place. Writes rotated k, and v, to the cache; without a cache, rotates k in place.
//
// A thread processes one chunk: kVector pairs of a head of q or k, or kVector dims that are only
// copied. With a norm, the number of threads per head is rounded up to a power of two, so that the
// threads of a head are neighbours in one warp and can add the squares of their chunks. The threads
// of a token are numbered through q's pairs, k's pairs, k's dims >= rotary_dim and v. Tokens are on
// the grid's x, the CTAs of a token on y.
//
// Bound: bytes. Llama-3.1-8B (32 q heads, 8 kv heads, 128 dims, bfloat16) moves 24 KB per token:
// 256 tokens are 6 MB, 1.6 us at 4 TB/s. Small batches cost the launch and two dependent loads (the
// position, then its row of the table); slots, scales and weights are loaded at the same time.
//
//   T         q, k, v: float, __half, __nv_bfloat16
//   C         the cache: T's types, __nv_fp8_e4m3, __nv_fp8_e5m2
//   kVector   elements per load: a vector of 16 bytes, or 1 element if heads are not aligned

#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/base/divisor.h"
#include "reprise/cache/ops/kv_elements.cuh"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/runner/ops/rotary_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 128;

struct KernelParams {
  RotaryArgs args;
  SlotAddresses places;
  int num_pair_threads = 0;   // all heads of q and k
  int num_tail_threads = 0;   // all heads of k
  int num_v_threads = 0;      // all heads
  Divisor threads_per_pairs;  // per head
  Divisor threads_per_tail;
  Divisor threads_per_v;
  Divisor k_dim_chunk;
  Divisor v_dim_chunk;
  bool k_whole_vectors = false;  // kVector elements are contiguous and aligned in the cache
  bool v_whole_vectors = false;
};

// The kind of elements that a thread processes. Work::dim is the first dim.
enum class Part { kQ, kK, kTail, kV, kNone };

struct Work {
  Part part;
  int head;
  int dim;
};

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

// Loads kVector floats of the table, whose rows are aligned to a chunk.
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

// A token's address in K or V of the cache, and the scale to divide by.
template <typename C>
struct Destination {
  C* data;  // dim 0 of the head
  int64_t dim_chunk_stride;
  Divisor dim_chunk;
  float scale;
  bool whole_vectors;

  __device__ C* At(int dim) const {
    const auto chunk = static_cast<int>(dim_chunk.Divide(dim));
    return data + chunk * dim_chunk_stride + (dim - chunk * static_cast<int>(dim_chunk.value()));
  }

  template <int kVector>
  __device__ void Store(int dim, float (&values)[kVector]) const {
    const Elements<C, kVector> stored = Quantise<C, false>(values, scale);
    if (whole_vectors) {
      *reinterpret_cast<Elements<C, kVector>*>(At(dim)) = stored;
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) *At(dim + j) = stored.data[j];
    }
  }
};

template <typename C>
__device__ Destination<C> DestinationOf(const KernelParams& params, Part part, int head,
                                        const SlotAddress& place, float scale) {
  const bool is_v = part == Part::kV;
  const KvView& view = is_v ? params.args.kv.v : params.args.kv.k;
  return {.data = static_cast<C*>(view.data) + place.Offset(view) + head * view.head_stride,
          .dim_chunk_stride = view.dim_chunk_stride,
          .dim_chunk = is_v ? params.v_dim_chunk : params.k_dim_chunk,
          .scale = scale,
          .whole_vectors = is_v ? params.v_whole_vectors : params.k_whole_vectors};
}

// Returns the number of threads for a head's pairs. With a norm, it is a power of two.
template <int kVector>
int PairThreads(const RotaryArgs& args) {
  const int chunks = args.rotary_dim / 2 / kVector;
  if (!args.norm.is_on) return chunks;
  int threads = 1;
  while (threads < chunks) threads *= 2;
  return threads;
}

// The norm's weights for the two chunks of a thread.
template <typename T, int kVector>
struct NormWeights {
  Chunk<T, kVector> first;
  Chunk<T, kVector> second;
  bool are_there = false;
};

// Normalises a head. Each of its `num_threads` threads passes two chunks; padding threads pass
// zeros. Rounds elements as NormaliseHeads() does; only the scale, here float32, may differ in its
// last bits.
template <typename T, int kVector>
__device__ void Normalise(const RotaryArgs& args, const NormWeights<T, kVector>& weights,
                          int num_threads, Chunk<T, kVector>& first, Chunk<T, kVector>& second) {
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
  if (weights.are_there && args.norm.form == NormWeight::kOnePlus) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      first.value[j] = RoundTo<T>(first.value[j] * scale * (1.0f + weights.first.value[j]));
      second.value[j] = RoundTo<T>(second.value[j] * scale * (1.0f + weights.second.value[j]));
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    first.value[j] = RoundTo<T>(first.value[j] * scale);
    second.value[j] = RoundTo<T>(second.value[j] * scale);
  }
  if (!weights.are_there) return;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    first.value[j] = RoundTo<T>(first.value[j] * weights.first.value[j]);
    second.value[j] = RoundTo<T>(second.value[j] * weights.second.value[j]);
  }
}

template <int kVector>
__device__ Work WorkOf(const KernelParams& params, int index) {
  const int num_q_heads = params.args.q.num_heads;
  const auto split = [](const Divisor& divisor, int i, Part part) -> Work {
    const auto head = static_cast<int>(divisor.Divide(i));
    return {part, head, (i - head * static_cast<int>(divisor.value())) * kVector};
  };
  if (index < params.num_pair_threads) {
    Work work = split(params.threads_per_pairs, index, Part::kQ);
    if (work.head >= num_q_heads) work = {Part::kK, work.head - num_q_heads, work.dim};
    return work;
  }
  index -= params.num_pair_threads;
  if (index < params.num_tail_threads) {
    Work work = split(params.threads_per_tail, index, Part::kTail);
    work.dim += params.args.rotary_dim;
    return work;
  }
  index -= params.num_tail_threads;
  if (index < params.num_v_threads) return split(params.threads_per_v, index, Part::kV);
  return {Part::kNone, 0, 0};
}

template <typename T, typename C, int kVector, bool kNorm>
__global__ void __launch_bounds__(kThreads)
    RotaryKernel(const __grid_constant__ KernelParams params) {
  TriggerDependents();
  const RotaryArgs& args = params.args;
  const int token = blockIdx.x;
  const int half = args.rotary_dim / 2;
  const auto [part, head, dim] =
      WorkOf<kVector>(params, static_cast<int>(blockIdx.y * kThreads + threadIdx.x));
  const HeadsView& view = part == Part::kQ ? args.q : part == Part::kV ? args.v : args.k;
  T* const x = static_cast<T*>(view.data) + token * view.token_stride + head * view.head_stride;
  const bool is_cached = args.slot_mapping != nullptr && part != Part::kQ;
  const Scale& scale_of = part == Part::kV ? args.kv.v_scale : args.kv.k_scale;

  GridDependencySync();
  if (part == Part::kNone) return;
  int64_t slot = -1;
  float scale = 1;
  if (is_cached) {
    if (token < args.num_slots) slot = args.slot_mapping[token];
    scale = ScaleOfHead(scale_of, head);
  }

  if (part == Part::kTail || part == Part::kV) {
    auto chunk = Chunk<T, kVector>::Load(x + dim);
    const SlotAddress place = params.places.Find(slot);
    if (!place.is_there) return;
    DestinationOf<C>(params, part, head, place, scale).Store(dim, chunk.value);
    return;
  }

  const bool is_there = dim < half;
  const int position = min(max(args.positions[token], 0), args.max_positions - 1);
  Chunk<T, kVector> first = {}, second = {};
  [[maybe_unused]] NormWeights<T, kVector> weights;  // used with a norm only
  if (is_there) {
    first = Chunk<T, kVector>::Load(x + dim);
    second = Chunk<T, kVector>::Load(x + half + dim);
    if constexpr (kNorm) {
      const void* const all = part == Part::kQ ? args.norm.q_weight : args.norm.k_weight;
      if (all != nullptr) {
        const T* const weight = static_cast<const T*>(all) + dim;
        weights = {Chunk<T, kVector>::Load(weight), Chunk<T, kVector>::Load(weight + half), true};
      }
    }
  }
  float cos[kVector], sin[kVector];
  if (is_there) {
    const float* const row = args.table + static_cast<int64_t>(position) * args.rotary_dim;
    LoadTable<kVector>(row + dim, cos);
    LoadTable<kVector>(row + half + dim, sin);
  }
  if constexpr (kNorm) {
    Normalise(args, weights, static_cast<int>(params.threads_per_pairs.value()), first, second);
  }
  if (!is_there) return;
  Chunk<T, kVector> low, high;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    low.value[j] = first.value[j] * cos[j] - second.value[j] * sin[j];
    high.value[j] = second.value[j] * cos[j] + first.value[j] * sin[j];
  }
  if (!is_cached) {
    low.Store(x + dim);
    high.Store(x + half + dim);
    return;
  }
  const SlotAddress place = params.places.Find(slot);
  if (!place.is_there) return;
  const Destination<C> to = DestinationOf<C>(params, part, head, place, scale);
  to.Store(dim, low.value);
  to.Store(half + dim, high.value);
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
  const int per_pairs = PairThreads<kVector>(args);
  const int per_tail = writes_cache ? (args.head_dim_qk - args.rotary_dim) / kVector : 0;
  const int per_v = writes_cache ? args.head_dim_v / kVector : 0;
  const KernelParams params = {
      .args = args,
      .places = writes_cache ? SlotAddresses(args.kv) : SlotAddresses(),
      .num_pair_threads = (args.q.num_heads + args.k.num_heads) * per_pairs,
      .num_tail_threads = args.k.num_heads * per_tail,
      .num_v_threads = args.v.num_heads * per_v,
      .threads_per_pairs = Divisor(std::max(per_pairs, 1)),
      .threads_per_tail = Divisor(std::max(per_tail, 1)),
      .threads_per_v = Divisor(std::max(per_v, 1)),
      .k_dim_chunk = Divisor(std::max(args.kv.k.dim_chunk, 1)),
      .v_dim_chunk = Divisor(std::max(args.kv.v.dim_chunk, 1)),
      .k_whole_vectors = HoldsWholeVectors<C, kVector>(args.kv.k),
      .v_whole_vectors = HoldsWholeVectors<C, kVector>(args.kv.v)};
  const int num_threads = params.num_pair_threads + params.num_tail_threads + params.num_v_threads;
  if (num_threads == 0) return cudaSuccess;
  const dim3 grid(args.num_tokens, (num_threads + kThreads - 1) / kThreads);
  if constexpr (kVector > 1) {  // see CanNormaliseWhileRotating()
    if (args.norm.is_on) {
      return LaunchDependent(RotaryKernel<T, C, kVector, true>, grid, kThreads, 0, stream, params);
    }
  }
  return LaunchDependent(RotaryKernel<T, C, kVector, false>, grid, kThreads, 0, stream, params);
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

absl::Status LaunchRotary(const RotaryArgs& args, cudaStream_t stream) {
  if (args.num_tokens <= 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
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
  return CudaStatus(error, "Rotary");
}

}  // namespace reprise
