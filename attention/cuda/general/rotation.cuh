// Rotary embedding of query and key rows in shared memory, for caches of unrotated keys. Implements
// RotaryParams (attention/attention_params.h).
//
// Angles are fractions of a circle, in units of 2^-64 ("turns" in identifiers). The angle at a
// position is the position times the angle per position, in 64-bit arithmetic that wraps around.
// Its error is about 2^-25 of a circle, also at positions beyond 10^6, without float64 in the loop.
// (In float32, the angle at position 10^5 would have an error of 0.004 rad.)

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ROTATION_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_ROTATION_CUH_

#include <cmath>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/convert.cuh"
#include "reprise/attention/cuda/general/logits.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"
#include "reprise/attention/cuda/general/work_unit.cuh"

namespace reprise {

// Computes turns[d]: the angle per position of the pair of dims (d, d + rotary_dim / 2). Called by
// all threads, which synchronise before they use it.
template <typename Traits>
__device__ __noinline__ void FindTurns(const AttentionKernelParams& p, uint64_t* turns) {
  const double log_theta = log(static_cast<double>(p.rope_theta));
  for (int d = threadIdx.x; d < p.rotary_dim / 2; d += Traits::kThreads) {
    const double frequency = exp(-2.0 * d / p.rotary_dim * log_theta) / p.rope_scale;
    const double of_turn = frequency * 0.15915494309189535;  // 1 / (2 pi)
    turns[d] = static_cast<uint64_t>((of_turn - floor(of_turn)) * 18446744073709551616.0);
  }
}

// Cosine and sine of an angle in units of 2^-64 of a circle.
__device__ __forceinline__ float2 CosineAndSine(uint64_t turn) {
  float2 result;
  const int32_t signed_turn = static_cast<int32_t>(turn >> 32);
  sincospif(static_cast<float>(signed_turn) * 0x1p-31f, &result.y, &result.x);
  return result;
}

__device__ __forceinline__ uint64_t TurnAt(int position, uint64_t turn) {
  return static_cast<uint64_t>(static_cast<int64_t>(position)) * turn;
}

// Rotates the pairs of row `row` to `position`. Thread `thread` of num_threads rotates every
// num_threads-th pair.
template <typename Traits>
__device__ __forceinline__ void RotateRow(const AttentionKernelParams& p, const uint64_t* turns,
                                          uint4* rows, int row, int position, int thread,
                                          int num_threads) {
  using Element = typename Traits::Element;
  const int half = p.rotary_dim / 2;
  const auto element = [&](int dim) -> Element& {
    uint4* const chunk = rows + Traits::ChunkAt(row, dim / Traits::kChunk);
    return reinterpret_cast<Element*>(chunk)[dim % Traits::kChunk];
  };
  for (int d = thread; d < half; d += num_threads) {
    const float2 at = CosineAndSine(TurnAt(position, turns[d]));
    Element& first = element(d);
    Element& second = element(d + half);
    const float x = ToFloat(first);
    const float y = ToFloat(second);
    first = FromFloat<Element>(x * at.x - y * at.y);
    second = FromFloat<Element>(y * at.x + x * at.y);
  }
}

// Rotates the query rows of the tile. Called by all threads of the CTA; each warp processes one row
// at a time.
template <typename Traits>
__device__ __noinline__ void RotateQueries(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const uint64_t* turns, uint4* q) {
  for (int row = threadIdx.x / 32; row < unit.num_rows; row += Traits::kThreads / 32) {
    const QueryRow query = LoadQueryRow(p, unit, row);
    if (query.token < 0) continue;
    RotateRow<Traits>(p, turns, q, row, query.position, threadIdx.x % 32, 32);
  }
}

// Rotates rows [first, end) to consecutive positions that begin at `position`. Called by kLanes
// threads; `lane` is this thread's index. Each thread rotates two adjacent pairs of all rows at a
// time, and derives the cosine and sine of each row from the previous row. The result is accurate
// to about 2^-18 over the keys of a KV tile. REQUIRES: rotary_dim is a multiple of 4.
template <typename Traits, int kLanes>
__device__ __forceinline__ void RotateRun(const AttentionKernelParams& p, const uint64_t* turns,
                                          uint4* rows, int first, int end, int position, int lane) {
  using Element = typename Traits::Element;
  const int half = p.rotary_dim / 2;
  const auto pair_at = [&](int row, int dim) {
    uint4* const chunk = rows + Traits::ChunkAt(row, dim / Traits::kChunk);
    return reinterpret_cast<uint32_t*>(chunk) + dim % Traits::kChunk / 2;
  };
  const auto halves = [](const uint32_t* pair) {
    const Element* const elements = reinterpret_cast<const Element*>(pair);
    return float2{ToFloat(elements[0]), ToFloat(elements[1])};
  };
  for (int d = lane * 2; d < half; d += kLanes * 2) {
    const float2 step[2] = {CosineAndSine(turns[d]), CosineAndSine(turns[d + 1])};
    float2 at[2] = {CosineAndSine(TurnAt(position, turns[d])),
                    CosineAndSine(TurnAt(position, turns[d + 1]))};
    for (int row = first; row < end; ++row) {
      uint32_t* const low = pair_at(row, d);
      uint32_t* const high = pair_at(row, d + half);
      const float2 x = halves(low);
      const float2 y = halves(high);
      *low = Pack<Element>(x.x * at[0].x - y.x * at[0].y, x.y * at[1].x - y.y * at[1].y);
      *high = Pack<Element>(y.x * at[0].x + x.x * at[0].y, y.y * at[1].x + x.y * at[1].y);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        at[i] = {at[i].x * step[i].x - at[i].y * step[i].y,
                 at[i].y * step[i].x + at[i].x * step[i].y};
      }
    }
  }
}

// The threads of a warp group rotate the item's keys of the KV tile that begins at local key
// `first`. Keys of the tree mask region are rotated to the positions at which the query of `token`
// sees them.
template <typename Traits>
__device__ __noinline__ void RotateKeys(const AttentionKernelParams& p, const WorkUnit& unit,
                                        const uint64_t* turns, uint4* k, int first, int token,
                                        int thread) {
  const WorkItem& item = unit.item;
  const int end = min(item.key_end - first, Traits::kKeys);
  const bool has_tail = item.tail_len > 0 && first + end > item.prefix_len;
  if constexpr (Traits::kTensorCores) {
    if (!has_tail && p.world == 1 && p.rotary_dim % 4 == 0) {
      constexpr int kLanes = Traits::kHeadDimQk >= 128 ? 32 : 16;
      constexpr int kRun = Traits::kKeys * kLanes / Traits::kGroupThreads;
      static_assert(kRun * Traits::kGroupThreads == Traits::kKeys * kLanes);
      const int row = thread / kLanes * kRun;
      RotateRun<Traits, kLanes>(p, turns, k, row, min(row + kRun, end),
                                KeyPosition(p, unit, first + row), thread % kLanes);
      return;
    }
  }
  for (int key = 0; key < end; ++key) {
    int position = KeyPosition(p, unit, first + key);
    if (item.tail_len > 0 && first + key >= item.prefix_len) {
      const int bit = first + key - item.prefix_len;
      const uint64_t before = p.tail_mask[token] & ((uint64_t{1} << bit) - 1);
      position = item.key_start + item.prefix_len + __popcll(before);
    }
    RotateRow<Traits>(p, turns, k, key, position, thread, Traits::kGroupThreads);
  }
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ROTATION_CUH_
