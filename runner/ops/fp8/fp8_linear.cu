// GEMMs of few rows of x with an 8-bit weight.
//
// Bound: the bytes of the weight, half as many as for 16 bits. The kernel is based on
// runner/ops/skinny_linear.cu. It uses lines of 128 values (runner/ops/few_rows/weight_ring.cuh),
// which it converts to 16-bit floats in registers (fp8_values.cuh), and up to 4 tiles of 8 rows of
// x per fragment of the weight, so that one pass over the weight serves 32 rows. x is read from L2
// once per strip: with 32 rows and strips of 48 weight rows, x is 4/3 of the weight's bytes.
//
//   sums     The 8 mma of a step start at 0. Their sum, multiplied by the step's scale, is added to
//            the total. The scale belongs to the row, or to its group of 128 in_features, which is
//            a warp's line of a step. Results therefore depend only on in_features and on the form
//            of the scales.
//   columns  In each quarter of a line, 32 in_features, lane 4 g + t has 8 values of row g and of
//            row g + 8, and 16 bytes of x for the same in_features. The lanes of a row therefore
//            read whole sectors of x, which makes 32 rows up to 1/6 faster. Of four neighbouring
//            values, the first and the third form one register of a fragment, the second and the
//            fourth another; x is reordered accordingly.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/few_rows/weight_ring.cuh"
#include "reprise/runner/ops/fp8/fp8_linear.h"
#include "reprise/runner/ops/fp8/fp8_values.cuh"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kWarps = kRingWarps;
constexpr int kThreads = kWarps * 32;
constexpr int kUnitRows = kRingUnitRows;
constexpr int kLine = kRingLine;  // in_features of a warp per step
static_assert(kLine == kFp8Group, "a warp's line of a row has one scale");
constexpr int kStepFeatures = kWarps * kLine;
constexpr int kQuarters = 4;                      // per line
constexpr int kQuarter = kLine / kQuarters;       // in_features
constexpr int kTileRows = 8;                      // rows of x
constexpr int kTileSums = kUnitRows * kTileRows;  // floats of a unit and a tile, per warp

template <int kStrip, int kTiles>
struct Traits : RingShape<kStrip> {
  // Number of tiles whose sums are stored and added together.
  static constexpr int kStoredTiles = kTiles < 2 ? kTiles : 2;
  static constexpr int kSums = kStrip * kStoredTiles * kTileSums;  // floats per warp
  static constexpr int kSharedBytes = RingShape<kStrip>::kBytes + kWarps * kSums * 4;
};

// 8 in_features of a row of x, in the order of the weight's fragments.
struct XValues {
  uint32_t even[2];  // in_features 4 j + {0, 2}
  uint32_t odd[2];   // in_features 4 j + {1, 3}
};

__device__ __forceinline__ XValues Ordered(const uint4& x) {
  return {.even = {__byte_perm(x.x, x.y, 0x5410), __byte_perm(x.z, x.w, 0x5410)},
          .odd = {__byte_perm(x.x, x.y, 0x7632), __byte_perm(x.z, x.w, 0x7632)}};
}

// The scales of this lane's rows of a strip: rows g and g + 8 of each unit.
template <int kStrip>
struct StripScales {
  float value[kStrip][2];
};

template <int kStrip>
__device__ __forceinline__ StripScales<kStrip> LoadScales(const Fp8Weight& weight, int unit,
                                                          int end_unit, int group) {
  StripScales<kStrip> scales;
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int u = 0; u < kStrip; ++u) {
    // Rows beyond the CTA's units repeat the last unit and are not stored.
    const int row = min(unit + u, end_unit - 1) * kUnitRows + g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales.value[u][i] = __ldg(weight.scales + (row + 8 * i) * weight.scales_stride + group);
    }
  }
  return scales;
}

// Adds the warps' sums for kStored tiles of a strip's units and stores the results. `sums` [kWarps,
// kStrip, kStored, kTileSums], each in the layout of mma: float i of lane l is at i * 32 + l.
template <typename T, int kStrip, int kStored>
__device__ void StoreSums(const Fp8LinearArgs& args, const float* sums, int unit, int end_unit,
                          int first_row) {
  constexpr int kSums = kStrip * kStored * kTileSums;
  for (int e = threadIdx.x; e < kSums; e += kThreads) {
    const int u = e / (kStored * kTileSums), tile = e / kTileSums % kStored;
    const int i = e / 32 % 4, lane = e % 32;
    const int row = first_row + tile * kTileRows + lane % 4 * 2 + i % 2;  // row of x
    if (row >= args.num_rows || unit + u >= end_unit) continue;
    float value = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) value += sums[warp * kSums + e];
    const int feature = (unit + u) * kUnitRows + lane / 4 + i / 2 * 8;
    if (args.bias != nullptr) value += ToFloat(static_cast<const T*>(args.bias)[feature]);
    const int64_t place = row * args.out_stride + feature;
    if (args.out_dtype == DType::kFloat32) {
      static_cast<float*>(args.out)[place] = value;
    } else {
      static_cast<T*>(args.out)[place] = FromFloat<T>(value);
    }
  }
}

template <typename T, int kStrip, int kTiles>
__global__ void __launch_bounds__(kThreads, 1)
    Fp8LinearKernel(const __grid_constant__ Fp8LinearArgs args) {
  using Shape = Traits<kStrip, kTiles>;
  extern __shared__ __align__(128) uint4 shared[];
  uint4* const ring = shared;
  float* const sums = reinterpret_cast<float*>(shared + Shape::kStages * Shape::kStageChunks);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int g = lane / 4, t = lane % 4;
  const int64_t num_units = args.weight.out_features / kUnitRows;
  const int first_unit = static_cast<int>(num_units * blockIdx.x / gridDim.x);
  const int end_unit = static_cast<int>(num_units * (blockIdx.x + 1) / gridDim.x);
  const int num_steps = args.weight.in_features / kStepFeatures;

  TriggerDependents();
  if (args.weights != SkinnyWeights::kEarly) GridDependencySync();
  using Ring = WeightRing<kStrip, RingPiece::kBytes8>;
  Ring weights({.data = reinterpret_cast<const char*>(args.weight.values),
                .row_bytes = args.weight.stride,
                .num_steps = num_steps},
               ring, first_unit, end_unit);
#pragma unroll
  for (int stage = 0; stage < Shape::kStages - 1; ++stage) weights.CopyNext();
  if (args.weights == SkinnyWeights::kEarly) GridDependencySync();

  // Rows beyond the last row repeat the last row and are not stored.
  const T* x[kTiles];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    const int row = min(tile * kTileRows + g, args.num_rows - 1);
    x[tile] = static_cast<const T*>(args.x) + row * args.x_stride + warp * kLine + t * 8;
  }
  const uint4* const own = Ring::RowOfLane(ring);
  int pieces[kQuarters];  // byte offsets
#pragma unroll
  for (int i = 0; i < kQuarters; ++i) pieces[i] = Ring::PieceOfQuarter(i);
  const bool has_groups = args.weight.num_groups > 1;
  uint4 next_x[kTiles][kQuarters];
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
    for (int i = 0; i < kQuarters; ++i) next_x[tile][i] = LoadFromL2(x[tile] + i * kQuarter);
  }
  int slot = 0;
  for (int unit = first_unit; unit < end_unit; unit += kStrip) {
    float sum[kStrip][kTiles][4] = {};
    StripScales<kStrip> scales =
        LoadScales<kStrip>(args.weight, unit, end_unit, has_groups ? warp : 0);
    for (int step = 0; step < num_steps; ++step) {
      const int after = step + 1 == num_steps ? 0 : step + 1;
      XValues b[kTiles][kQuarters];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) {
          b[tile][i] = Ordered(next_x[tile][i]);
          next_x[tile][i] = LoadFromL2(x[tile] + after * kStepFeatures + i * kQuarter);
        }
      }
      StripScales<kStrip> next_scales = scales;
      if (has_groups) {
        next_scales = LoadScales<kStrip>(args.weight, unit, end_unit, after * kWarps + warp);
      }
      AwaitRingCopies<Shape::kStages - 2>();
      __syncwarp();
      const uint4* const stage = own + slot * Shape::kStageChunks;
#pragma unroll
      for (int u = 0; u < kStrip; ++u) {
        float part[kTiles][4] = {};
#pragma unroll
        for (int i = 0; i < kQuarters; ++i) {
          const char* const row = reinterpret_cast<const char*>(stage + u * kRingUnitChunks);
          const uint2 low = *reinterpret_cast<const uint2*>(row + pieces[i]);
          const uint2 high =
              *reinterpret_cast<const uint2*>(row + pieces[i] + kUnitRows / 2 * kRingLine);
          const uint32_t lows[2] = {low.x, low.y}, highs[2] = {high.x, high.y};
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const uint32_t a0 = EvenFp8Values<T>(lows[j]), a1 = EvenFp8Values<T>(highs[j]);
            const uint32_t a2 = OddFp8Values<T>(lows[j]), a3 = OddFp8Values<T>(highs[j]);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
              UnitProduct<T>(part[tile], a0, a1, a2, a3, b[tile][i].even[j], b[tile][i].odd[j]);
            }
          }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[u][tile][i] += part[tile][i] * scales.value[u][i / 2];
        }
      }
      scales = next_scales;
      if (++slot == Shape::kStages) slot = 0;
      __syncwarp();  // all lanes have read the stage that the next copy overwrites
      weights.CopyNext();
    }
#pragma unroll
    for (int first = 0; first < kTiles; first += Shape::kStoredTiles) {
#pragma unroll
      for (int u = 0; u < kStrip; ++u) {
#pragma unroll
        for (int tile = 0; tile < Shape::kStoredTiles; ++tile) {
          float* const to =
              sums + warp * Shape::kSums + (u * Shape::kStoredTiles + tile) * kTileSums;
#pragma unroll
          for (int i = 0; i < 4; ++i) to[i * 32 + lane] = sum[u][first + tile][i];
        }
      }
      __syncthreads();
      StoreSums<T, kStrip, Shape::kStoredTiles>(args, sums, unit, end_unit, first * kTileRows);
      __syncthreads();
    }
  }
}

template <typename T, int kStrip, int kTiles>
absl::Status LaunchStrip(const Fp8LinearArgs& args, int grid, cudaStream_t stream) {
  constexpr auto kernel = Fp8LinearKernel<T, kStrip, kTiles>;
  constexpr int kSharedBytes = Traits<kStrip, kTiles>::kSharedBytes;
  REPRISE_RETURN_IF_ERROR(CudaStatus(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
      "cudaFuncSetAttribute"));
  return CudaStatus(LaunchDependent(kernel, grid, kThreads, kSharedBytes, stream, args),
                    "Fp8Linear");
}

// Chooses the number of units of a strip, at most the units of a CTA. It does not affect the
// results.
template <typename T, int kTiles>
absl::Status LaunchTiles(const Fp8LinearArgs& args, cudaStream_t stream) {
  int device = 0, num_sms = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
                 "cudaDeviceGetAttribute"));
  const int num_units = args.weight.out_features / kUnitRows;
  const int grid = std::min(num_sms, num_units);
  const int max_units = (num_units + grid - 1) / grid;
  if (max_units == 1) return LaunchStrip<T, 1, kTiles>(args, grid, stream);
  if (max_units == 2) return LaunchStrip<T, 2, kTiles>(args, grid, stream);
  return LaunchStrip<T, 3, kTiles>(args, grid, stream);
}

template <typename T>
absl::Status LaunchPass(const Fp8LinearArgs& args, cudaStream_t stream) {
  if (args.num_rows <= kTileRows) return LaunchTiles<T, 1>(args, stream);
  if (args.num_rows <= 2 * kTileRows) return LaunchTiles<T, 2>(args, stream);
  static_assert(kFp8PassRows == 4 * kTileRows);
  return LaunchTiles<T, 4>(args, stream);
}

bool IsAligned(const void* pointer, int64_t stride_bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride_bytes % 16 == 0;
}

}  // namespace

bool Fp8LinearServes(const Fp8LinearArgs& args) {
  const Fp8Weight& weight = args.weight;
  const bool is_16_bit = args.dtype == DType::kFloat16 || args.dtype == DType::kBFloat16;
  return is_16_bit && (args.out_dtype == args.dtype || args.out_dtype == DType::kFloat32) &&
         args.num_rows >= 1 && weight.out_features > 0 && weight.out_features % kUnitRows == 0 &&
         weight.in_features > 0 && weight.in_features % kStepFeatures == 0 &&
         (weight.num_groups == 1 || weight.num_groups == weight.in_features / kFp8Group) &&
         IsAligned(args.x, args.x_stride * 2) && IsAligned(weight.values, weight.stride);
}

absl::Status LaunchFp8Linear(const Fp8LinearArgs& args, CUstream_st* stream) {
  if (!Fp8LinearServes(args)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected aligned 16-bit rows, out_features a multiple of 16, in_features a multiple of ",
        kStepFeatures, ", and 1 scale per row or per ", kFp8Group, ": got ", args.num_rows,
        " rows, ", args.weight.in_features, " -> ", args.weight.out_features, ", ",
        args.weight.num_groups, " scales per row"));
  }
  for (int first = 0; first < args.num_rows; first += kFp8PassRows) {
    Fp8LinearArgs pass = args;
    pass.num_rows = std::min(kFp8PassRows, args.num_rows - first);
    pass.x = static_cast<const char*>(args.x) + first * args.x_stride * 2;
    pass.out = static_cast<char*>(args.out) + first * args.out_stride * SizeOf(args.out_dtype);
    REPRISE_RETURN_IF_ERROR(args.dtype == DType::kBFloat16 ? LaunchPass<__nv_bfloat16>(pass, stream)
                                                           : LaunchPass<__half>(pass, stream));
  }
  return absl::OkStatus();
}

}  // namespace reprise
