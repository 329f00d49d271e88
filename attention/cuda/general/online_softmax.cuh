// Online softmax over KV tiles: running maximum, sum and out of a lane's two rows, rescaled when
// the maximum grows (Milakov and Gimelshein 2018). Base 2, float32.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ONLINE_SOFTMAX_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_ONLINE_SOFTMAX_CUH_

#include <cuda_fp16.h>

#include <cmath>
#include <type_traits>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/cuda/general/tile_traits.cuh"

namespace reprise {

// 16-bit types use the hardware's approximation (2 ulp, denormals flushed to zero), whose error is
// far below the rounding error of the type.
template <typename Traits>
__device__ __forceinline__ float Exp2(float x) {
  if constexpr (Traits::kTensorCores) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
  } else {
    return exp2f(x);
  }
}

// Softmax weights go up to 2^kWeightBits. float16 has few values far below 1, and many keys with
// small weights may add up to a large part of the sum. kWeightBits is 0 for other types, and if
// ScaleNewKeys() may scale weights afterwards (Traits::kConverts).
template <typename Traits>
inline constexpr float kWeightBits =
    std::is_same_v<typename Traits::Element, __half> && !Traits::kConverts ? 15.0f : 0.0f;

// The value to subtract from logits before exp2. It is 0 if no key was seen, because -inf - -inf is
// NaN.
__device__ __forceinline__ float Reference(float max) { return max == -INFINITY ? 0.0f : max; }

template <typename Traits>
struct OnlineSoftmax {
  float max[2] = {-INFINITY, -INFINITY};  // maximum logit of the row, minus kWeightBits
  float sum[2] = {0.0f, 0.0f};  // sum of the lane's columns; QuadSum() returns the row's sum
  float out[Traits::kOutTiles][4] = {};

  // Turns logits into exp2(logit - max) and rescales out and the sum.
  __device__ __forceinline__ void Take(float (&s)[Traits::kKeyTiles][4]) {
    float rescale[2];
    Weigh(s, rescale);
    Rescale(rescale);
  }

  // The first half of Take(). `rescale` receives the factor by which out must still be multiplied.
  __device__ __forceinline__ void Weigh(float (&s)[Traits::kKeyTiles][4], float (&rescale)[2]) {
    const float scale[2] = {1.0f, 1.0f};
    WeighScaled(s, scale, rescale);
  }

  // Weigh() for logits that must still be multiplied by each row's `scale`. REQUIRES: scale > 0, or
  // scale is 0 and all logits of the row are finite.
  __device__ __forceinline__ void WeighScaled(float (&s)[Traits::kKeyTiles][4],
                                              const float (&scale)[2], float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float step_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < Traits::kKeyTiles; ++n) {
        step_max = fmaxf(step_max, fmaxf(s[n][r * 2], s[n][r * 2 + 1]));
      }
      const float new_max = fmaxf(max[r], QuadMax(step_max) * scale[r] - kWeightBits<Traits>);
      const float reference = Reference(new_max);
      rescale[r] = Exp2<Traits>(max[r] - reference);
      max[r] = new_max;
      float step_sum = 0.0f;
#pragma unroll
      for (int n = 0; n < Traits::kKeyTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          s[n][r * 2 + j] = Exp2<Traits>(fmaf(s[n][r * 2 + j], scale[r], -reference));
          step_sum += s[n][r * 2 + j];
        }
      }
      sum[r] = sum[r] * rescale[r] + step_sum;
    }
  }

  // The second half of Take().
  __device__ __forceinline__ void Rescale(const float (&rescale)[2]) {
    if (__all_sync(kFullWarp, rescale[0] == 1.0f && rescale[1] == 1.0f)) return;
#pragma unroll
    for (int n = 0; n < Traits::kOutTiles; ++n) {
      out[n][0] *= rescale[0];
      out[n][1] *= rescale[0];
      out[n][2] *= rescale[1];
      out[n][3] *= rescale[1];
    }
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ONLINE_SOFTMAX_CUH_
