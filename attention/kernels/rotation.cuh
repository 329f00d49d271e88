// Rotary embedding of rows of q and k that stand in shared memory, for caches of unrotated keys:
// the form of RotaryParams (attention/attention_params.h).
//
// Angles are counted in turns, as fractions of 2^64: position times the fraction of one position,
// in 64 bits that wrap around, is exact to 2^-30 of a turn at any position, without float64 in the
// loop. (In float32 an angle at position 10^5 would be off by 0.004 rad.)

#ifndef ATTENTION_KERNELS_ROTATION_CUH_
#define ATTENTION_KERNELS_ROTATION_CUH_

#include <cmath>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/convert.cuh"
#include "attention/kernels/logits.cuh"
#include "attention/kernels/tile_traits.cuh"
#include "attention/kernels/work_unit.cuh"

namespace reprise {

// turns[d]: by how much one position turns the pair (d, d + rotary_dim / 2). By all threads, which
// meet before it is used.
template <typename Traits>
__device__ __noinline__ void FindTurns(const AttentionKernelParams& p, uint64_t* turns) {
  const double log_theta = log(static_cast<double>(p.rope_theta));
  for (int d = threadIdx.x; d < p.rotary_dim / 2; d += Traits::kThreads) {
    const double frequency = exp(-2.0 * d / p.rotary_dim * log_theta) / p.rope_scale;
    const double of_turn = frequency * 0.15915494309189535;  // 1 / (2 pi)
    turns[d] = static_cast<uint64_t>((of_turn - floor(of_turn)) * 18446744073709551616.0);
  }
}

// Turns the pairs of row `row` to `position`, by threads thread, thread + num_threads, ...
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
    const uint64_t turn = static_cast<uint64_t>(static_cast<int64_t>(position)) * turns[d];
    const int32_t signed_turn = static_cast<int32_t>(turn >> 32);
    float sine, cosine;
    sincospif(static_cast<float>(signed_turn) * 0x1p-31f, &sine, &cosine);
    Element& first = element(d);
    Element& second = element(d + half);
    const float x = ToFloat(first);
    const float y = ToFloat(second);
    first = FromFloat<Element>(x * cosine - y * sine);
    second = FromFloat<Element>(y * cosine + x * sine);
  }
}

// By all threads of the CTA.
template <typename Traits>
__device__ __noinline__ void RotateQueries(const AttentionKernelParams& p, const WorkUnit& unit,
                                           const uint64_t* turns, uint4* q) {
  for (int row = 0; row < unit.num_rows; ++row) {
    const QueryRow query = LoadQueryRow(p, unit, row);
    if (query.token < 0) continue;
    RotateRow<Traits>(p, turns, q, row, query.position, threadIdx.x, Traits::kThreads);
  }
}

// The step that begins at local key `first`, of which the item has num_keys keys, by the threads of
// a group. Where keys of the tail are among them, they stand where the query of `token` sees them.
template <typename Traits>
__device__ __noinline__ void RotateKeys(const AttentionKernelParams& p, const WorkUnit& unit,
                                        const uint64_t* turns, uint4* k, int first, int num_keys,
                                        int token, int thread) {
  const WorkItem& item = unit.item;
  for (int key = 0; key < min(num_keys, Traits::kKeys); ++key) {
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

#endif  // ATTENTION_KERNELS_ROTATION_CUH_
