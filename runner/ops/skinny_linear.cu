// GEMMs of 1 to 8 rows of x with a weight of megabytes.
//
// Bound: the bytes of the weight. The design keeps loads in flight at all times, from before the
// end of the previous kernel until the last byte.
//
//   unit    16 rows of the weight. Each CTA processes a contiguous range of units, of nearly equal
//           size for all CTAs, in strips of kStrip units. All CTAs therefore end at about the same
//           time.
//   step    512 of the in_features of a strip: 64 per warp, which is a line of 128 bytes of each
//           row. Each of the 8 warps sums its own part of the in_features with mma m16n8k16: 16
//           weight rows are A, up to 8 rows of x are B. At the end of a strip, the warps' sums are
//           added in shared memory, in the order of the warps.
//   ring    kStages steps of weights in shared memory. Each warp copies only data that it reads
//           itself, with cp.async, kStages - 1 steps ahead. The loop needs no barrier but
//           __syncwarp().
//   x       loaded from L2 to registers, one step ahead. x is small, and read again for each strip.
//
// The rows of a unit are 16 consecutive rows. If gated, they are 8 gate rows and the 8 matching up
// rows, so that both sums of a result are in one CTA.
//
// The order of a sum depends only on in_features. Results are therefore bitwise identical for any
// number of rows and any kStrip.
//
// A CTA uses 132 to 156 KB of shared memory. This is deliberately more than half of an SM's: if two
// CTAs fitted on an SM, a dependent launch would place two CTAs on the SM that has room first, and
// none on another SM. With kStrip 1 and 2 (132 and 136 KB), a 16-bit decode CTA of attention (72 KB)
// also fits on the SM of an H100; with kStrip 3 (156 KB) it does not.
//
// A warp reads a unit as described in runner/ops/few_rows/weight_ring.cuh: lane l = 4 g + t holds
// 16 bytes of rows g and g + 8. Eight consecutive in_features serve as the columns 2 t, 2 t + 1,
// 2 t + 8, 2 t + 9 of two fragments. x is read with the same permutation of columns, and the
// permutation does not affect which products are summed.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/few_rows/gated_value.cuh"
#include "reprise/runner/ops/few_rows/weight_ring.cuh"
#include "reprise/runner/ops/skinny_linear_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kWarps = kRingWarps;
constexpr int kThreads = kWarps * 32;
constexpr int kUnitRows = kRingUnitRows;
constexpr int kLine = kRingLine / 2;  // in_features of a warp per step
constexpr int kStepFeatures = kWarps * kLine;
constexpr int kUnitChunks = kRingUnitChunks;
constexpr int kSumsOfUnit = kUnitRows * 8;  // floats per warp

template <int kStrip>
struct Traits : RingShape<kStrip> {
  static constexpr int kSharedBytes = RingShape<kStrip>::kBytes + kWarps * kStrip * kSumsOfUnit * 4;
};

// Adds the warps' sums of a strip's units and stores the results. `sums` [kWarps, kStrip,
// kSumsOfUnit], each in the layout of mma: float i of lane l is at i * 32 + l.
template <typename T, typename Out, int kStrip>
__device__ void StoreStrip(const SkinnyLinearArgs& args, const float* sums, int unit,
                           int end_unit) {
  for (int e = threadIdx.x; e < kStrip * kSumsOfUnit; e += kThreads) {
    const int u = e / kSumsOfUnit, i = e / 32 % 4, lane = e % 32;
    const int row = lane % 4 * 2 + i % 2;  // row of x
    if (row >= args.num_rows || unit + u >= end_unit) continue;
    float value = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      value += sums[warp * kStrip * kSumsOfUnit + e];
    }
    const int feature = (unit + u) * kUnitRows + lane / 4 + i / 2 * 8;
    if (args.bias != nullptr) value += ToFloat(static_cast<const T*>(args.bias)[feature]);
    static_cast<Out*>(args.out)[row * args.out_stride + feature] = FromFloat<Out>(value);
  }
}

// StoreStrip() for gated units: float i of a unit is the gate for float i + 2.
template <typename T, int kStrip>
__device__ void StoreGatedStrip(const SkinnyLinearArgs& args, const float* sums, int unit,
                                int end_unit) {
  constexpr int kHalf = kSumsOfUnit / 2;
  const int size = args.out_features / 2;
  const T* const bias = static_cast<const T*>(args.bias);
  for (int e = threadIdx.x; e < kStrip * kHalf; e += kThreads) {
    const int u = e / kHalf, i = e / 32 % 2, lane = e % 32;
    const int row = lane % 4 * 2 + i;  // row of x
    if (row >= args.num_rows || unit + u >= end_unit) continue;
    const float* const of_unit = sums + u * kSumsOfUnit + e % kHalf;
    float gate = 0, up = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      gate += of_unit[warp * kStrip * kSumsOfUnit];
      up += of_unit[warp * kStrip * kSumsOfUnit + kHalf];
    }
    const int feature = (unit + u) * (kUnitRows / 2) + lane / 4;
    if (bias != nullptr) {
      gate += ToFloat(bias[feature]);
      up += ToFloat(bias[size + feature]);
    }
    static_cast<T*>(args.out)[row * args.out_stride + feature] =
        GatedValue<T>(args.activation, gate, up);
  }
}

template <typename T, typename Out, int kStrip>
__global__ void __launch_bounds__(kThreads, 1)
    SkinnyLinearKernel(const __grid_constant__ SkinnyLinearArgs args) {
  using Shape = Traits<kStrip>;
  extern __shared__ __align__(128) uint4 shared[];
  uint4* const ring = shared;  // [kStages, kWarps, kStrip, kUnitChunks]
  float* const sums = reinterpret_cast<float*>(shared + Shape::kStages * Shape::kStageChunks);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t num_units = args.out_features / kUnitRows;
  const int first_unit = static_cast<int>(num_units * blockIdx.x / gridDim.x);
  const int end_unit = static_cast<int>(num_units * (blockIdx.x + 1) / gridDim.x);
  const int num_steps = args.in_features / kStepFeatures;

  TriggerDependents();
  if (args.weights != SkinnyWeights::kEarly) GridDependencySync();
  WeightRing<kStrip> weights({.data = static_cast<const char*>(args.weight),
                              .row_bytes = args.weight_stride * 2,
                              .num_steps = num_steps,
                              .pair_distance = args.is_gated ? args.out_features / 2 : 8},
                             ring, first_unit, end_unit);
#pragma unroll
  for (int stage = 0; stage < Shape::kStages - 1; ++stage) weights.CopyNext();
  if (args.weights == SkinnyWeights::kEarly) GridDependencySync();

  // Rows beyond the last row repeat the last row and are not stored.
  const T* const x = static_cast<const T*>(args.x) + min(g, args.num_rows - 1) * args.x_stride +
                     warp * kLine + t * 8;
  const uint4* const own = WeightRing<kStrip>::OfLane(ring);
  const int other_half = WeightRing<kStrip>::OtherHalf();
  uint4 next_x[2] = {LoadFromL2(x), LoadFromL2(x + kLine / 2)};
  int slot = 0;
  for (int unit = first_unit; unit < end_unit; unit += kStrip) {
    float sum[kStrip][4] = {};
    for (int step = 0; step < num_steps; ++step) {
      const uint4 b[2] = {next_x[0], next_x[1]};
      const T* const x_after = x + (step + 1 == num_steps ? 0 : step + 1) * kStepFeatures;
      next_x[0] = LoadFromL2(x_after);
      next_x[1] = LoadFromL2(x_after + kLine / 2);
      AwaitRingCopies<Shape::kStages - 2>();
      __syncwarp();
      const uint4* const stage = own + slot * Shape::kStageChunks;
#pragma unroll
      for (int u = 0; u < kStrip; ++u) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 low = stage[u * kUnitChunks + half * other_half];
          const uint4 high = stage[u * kUnitChunks + 64 + half * other_half];
          UnitProduct<T>(sum[u], low.x, high.x, low.y, high.y, b[half].x, b[half].y);
          UnitProduct<T>(sum[u], low.z, high.z, low.w, high.w, b[half].z, b[half].w);
        }
      }
      if (++slot == Shape::kStages) slot = 0;
      __syncwarp();  // all lanes have read the stage that the next copy overwrites
      weights.CopyNext();
    }
#pragma unroll
    for (int u = 0; u < kStrip; ++u) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[(warp * kStrip + u) * kSumsOfUnit + i * 32 + lane] = sum[u][i];
      }
    }
    __syncthreads();
    if (args.is_gated) {
      StoreGatedStrip<T, kStrip>(args, sums, unit, end_unit);
    } else {
      StoreStrip<T, Out, kStrip>(args, sums, unit, end_unit);
    }
    __syncthreads();
  }
}

struct Device {
  int id = 0;
  int num_sms = 0;
};

absl::Status CurrentDevice(Device& device) {
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device.id), "cudaGetDevice"));
  return CudaStatus(
      cudaDeviceGetAttribute(&device.num_sms, cudaDevAttrMultiProcessorCount, device.id),
      "cudaDeviceGetAttribute");
}

template <typename T, typename Out, int kStrip>
absl::Status LaunchStrip(const SkinnyLinearArgs& args, cudaStream_t stream) {
  Device device;
  REPRISE_RETURN_IF_ERROR(CurrentDevice(device));
  constexpr auto kernel = SkinnyLinearKernel<T, Out, kStrip>;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      Traits<kStrip>::kSharedBytes),
                 "cudaFuncSetAttribute"));
  const int grid = std::min(device.num_sms, args.out_features / kUnitRows);
  return CudaStatus(
      LaunchDependent(kernel, grid, kThreads, Traits<kStrip>::kSharedBytes, stream, args),
      "SkinnyLinear");
}

template <typename T, typename Out>
absl::Status LaunchTypes(const SkinnyLinearArgs& args, int strip, cudaStream_t stream) {
  switch (strip) {
    case 1:
      return LaunchStrip<T, Out, 1>(args, stream);
    case 2:
      return LaunchStrip<T, Out, 2>(args, stream);
    default:
      return LaunchStrip<T, Out, 3>(args, stream);
  }
}

template <typename T>
absl::Status LaunchOf(const SkinnyLinearArgs& args, int strip, cudaStream_t stream) {
  return args.out_dtype == DType::kFloat32 ? LaunchTypes<T, float>(args, strip, stream)
                                           : LaunchTypes<T, T>(args, strip, stream);
}

bool IsAligned(const void* pointer, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride * 2 % 16 == 0;
}

}  // namespace

bool SkinnyLinearServes(const SkinnyLinearArgs& args) {
  const bool is_16_bit = args.dtype == DType::kFloat16 || args.dtype == DType::kBFloat16;
  return is_16_bit && (args.out_dtype == args.dtype || args.out_dtype == DType::kFloat32) &&
         args.num_rows >= 1 && args.num_rows <= kMaxSkinnyRows && args.out_features > 0 &&
         args.out_features % kUnitRows == 0 && args.in_features > 0 &&
         args.in_features % kStepFeatures == 0 && IsAligned(args.x, args.x_stride) &&
         IsAligned(args.weight, args.weight_stride) &&
         (!args.is_gated || args.out_dtype == args.dtype);
}

absl::Status LaunchSkinnyLinear(const SkinnyLinearArgs& args, int strip, CUstream_st* stream) {
  if (strip < 1 || strip > kMaxSkinnyStrip) {
    return absl::InvalidArgumentError(
        absl::StrCat("strip: expected 1 to ", kMaxSkinnyStrip, ", got ", strip));
  }
  if (!SkinnyLinearServes(args)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", kMaxSkinnyRows,
                     " aligned 16-bit rows, out_features a multiple of 16 and in_features "
                     "a multiple of ",
                     kStepFeatures, ": got ", args.num_rows, " rows, ", args.in_features, " -> ",
                     args.out_features));
  }
  return args.dtype == DType::kBFloat16 ? LaunchOf<__nv_bfloat16>(args, strip, stream)
                                        : LaunchOf<__half>(args, strip, stream);
}

}  // namespace reprise
