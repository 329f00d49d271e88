// GEMMs of up to 64 rows of x with an 8-bit weight, by tiles (fp8_tile_plan.h,
// runner/ops/few_rows/tile_pipeline.cuh).
//
// Bound: the bytes of the weight, half as many as for 16 bits. Every tile reads x again, and x is
// twice as large relative to the weight. Tiles are therefore as large as all SMs having work
// allows.
//
//   fragments  The weight is the wgmma operand that may be in registers. Lane 4 g + t reads two
//              bytes at a time of rows g and g + 8 of its warp and converts them to two 16-bit
//              floats (fp8_values.cuh). 16 in_features are a chunk of 16 bytes. The 8 rows of a
//              read are in 8 different chunks of their lines, so each bank is used at most once.
//   sums       A lane's sums are in units of the scale of their row, and are multiplied by the
//              scale at the end of a tile. If each group of 128 in_features, which is a box, has
//              its own scale, the sums are converted to the units of the next box before the MMAs
//              of that box are added.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "reprise/base/warp_arrivals.cuh"
#include "reprise/runner/ops/few_rows/tile_pipeline.cuh"
#include "reprise/runner/ops/fp8/fp8_tile_linear.h"
#include "reprise/runner/ops/fp8/fp8_values.cuh"

namespace reprise {
namespace {

static_assert(kFp8TileBox == kFp8Group, "a box of a row has one scale");
constexpr int kHalfChunks = kTileBox / 16;  // chunks of 16 in_features in a box of x

// Returns two neighbouring bytes at an address in shared memory as two 16-bit floats.
template <typename T>
__device__ __forceinline__ uint32_t TwoValues(uint32_t address) {
  uint16_t bytes;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bytes) : "r"(address) : "memory");
  return OddFp8Values<T>(__byte_perm(bytes, 0, 0x1404));  // moves them to bytes 1 and 3
}

// Loads a lane's fragments of 64 in_features, half `half` of a box. `line`: the address of the
// lane's line of row g, plus the offset of chunk g in the line, plus 2 t.
template <typename T>
__device__ __forceinline__ void LoadFragments(uint32_t line, int half,
                                              TileFragment (&a)[kHalfChunks]) {
#pragma unroll
  for (int i = 0; i < kHalfChunks; ++i) {
    const uint32_t low = line ^ ((half * kHalfChunks + i) << 4);  // chunk c of row r at c ^ r % 8
    const uint32_t high = low + 8 * kTileBoxLine;
    a[i][0] = TwoValues<T>(low);
    a[i][1] = TwoValues<T>(high);
    a[i][2] = TwoValues<T>(low + 8);
    a[i][3] = TwoValues<T>(high + 8);
  }
}

// With a scale per group, scales of smaller magnitude, including 0, are replaced by this value.
// Sums can be divided by it, and values multiplied by it are negligible.
constexpr float kMinScale = 0x1p-90f;

// The scales of a lane's two rows.
struct RowScales {
  float value[2];
};

template <bool kHasGroups>
__device__ __forceinline__ RowScales LoadScales(const Fp8Weight& weight, int row, int group) {
  RowScales scales;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // Rows and groups beyond the weight have sums of zero or are not stored.
    const int64_t from = min(row + 8 * i, weight.out_features - 1);
    const float scale =
        __ldg(weight.scales + from * weight.scales_stride + min(group, weight.num_groups - 1));
    scales.value[i] = kHasGroups && fabsf(scale) < kMinScale ? kMinScale : scale;
  }
  return scales;
}

template <int kColumns>
__device__ __forceinline__ void Scale(TileSums<kColumns>& sum, float low, float high) {
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[n][i] *= i < 2 ? low : high;
  }
}

template <typename T, int kColumns, bool kHasGroups>
__device__ void MultiplyTiles(const Fp8TilePlan& plan, const TileMemory& memory,
                              const Fp8Weight& weight, int num_rows, int rank, int cluster_id) {
  const int lane = threadIdx.x % 32, warp = WarpIndex(), group = warp / kGroupWarps;
  const int row_group = group % plan.form.row_groups, turn = group / plan.form.row_groups;
  const int steps = StepsOf(plan, rank);
  // Row of a tile.
  const int row = row_group * kTileGroupRows + warp % kGroupWarps * kWarpRows + lane / 4;
  const uint32_t line = row * kTileBoxLine + (lane / 4 << 4) + lane % 4 * 2;
  PartialSums<kColumns> sums(plan, memory, row_group, turn, rank);
  StageCounter stage(plan.stages, turn, plan.form.turns);
  for (int tile = cluster_id; tile < plan.num_tiles; tile += plan.num_clusters) {
    TileSums<kColumns> sum = {};
    const auto scales_of = [&](int step, int box) {
      return LoadScales<kHasGroups>(weight, tile * plan.tile_rows + row,
                                    (step * plan.form.cluster + rank) * plan.form.boxes + box);
    };
    RowScales scales = scales_of(turn, 0), next = scales;
    for (int step = turn; step < steps; step += plan.form.turns, stage.Next()) {
      const uint32_t weights = memory.stages + stage.slot() * plan.stage_bytes();
      const uint32_t x = weights + plan.form.boxes * plan.tile_rows * kTileBoxLine;
      AwaitPhase(memory.full + stage.slot() * 8, stage.parity());
      for (int box = 0; box < plan.form.boxes; ++box) {
        if constexpr (kHasGroups) {
          Scale<kColumns>(sum, scales.value[0] / next.value[0], scales.value[1] / next.value[1]);
          scales = next;
          const bool is_last = box + 1 == plan.form.boxes;
          next = scales_of(is_last ? step + plan.form.turns : step, is_last ? 0 : box + 1);
        }
#pragma unroll
        for (int half = 0; half < kFp8TileXBoxes; ++half) {
          TileFragment a[kHalfChunks];
          LoadFragments<T>(weights + box * plan.tile_rows * kTileBoxLine + line, half, a);
          const uint32_t x_box = x + (box * kFp8TileXBoxes + half) * kColumns * kTileBoxLine;
          const uint64_t b = BoxOf(x_box);
          BeginTileProducts();
#pragma unroll
          for (int i = 0; i < kHalfChunks; ++i) {
            FragmentProduct<T, kColumns>(sum, a[i], b + 2 * i);
          }
          EndTileProducts();
        }
      }
      __syncwarp();  // all lanes have read their fragments
      if (ArrivesForWarp()) ArriveAt(memory.empty + stage.slot() * 8);
    }
    Scale<kColumns>(sum, scales.value[0], scales.value[1]);
    sums.Store(sum, num_rows);
  }
}

template <typename T, int kColumns, bool kHasGroups>
__global__ void __launch_bounds__(MaxTileThreads(kColumns), 1)
    Fp8TileLinearKernel(const __grid_constant__ CUtensorMap weight_map,
                        const __grid_constant__ CUtensorMap x_map,
                        const __grid_constant__ Fp8LinearArgs args,
                        const __grid_constant__ Fp8TilePlan plan, const StageCopy copy) {
  extern __shared__ __align__(128) char shared[];
  TriggerDependents();
  const TileMemory memory(SharedAddressOf(shared), plan);
  const int rank = static_cast<int>(ClusterRank());
  const int cluster_id = static_cast<int>(blockIdx.x) / plan.form.cluster;
  const int num_warps = plan.form.groups() * kGroupWarps;
  BeginTileCta(plan, memory);
  const int warp = WarpIndex();
  if (warp >= num_warps + kAddWarps) {
    const uint32_t behind = plan.form.boxes * plan.tile_rows * kTileBoxLine;
    CopyTiles(plan, memory, {weight_map, 0, plan.form.boxes, plan.tile_rows, kFp8TileBox},
              {x_map, behind, plan.form.boxes * kFp8TileXBoxes, kColumns, kTileBox}, args.weights,
              copy, warp - num_warps - kAddWarps, rank, cluster_id);
    AwaitCluster();
    EndTileCta();
    return;
  }
  GridDependencySync();
  AwaitCluster();  // all CTAs have initialised their barriers
  if (warp < num_warps) {
    MultiplyTiles<T, kColumns, kHasGroups>(plan, memory, args.weight, args.num_rows, rank,
                                           cluster_id);
    EndTileCta();
    return;
  }
  const TileResults results = {args.bias, args.out, args.out_stride, args.num_rows,
                               args.weight.out_features};
  const float* const sums =
      reinterpret_cast<const float*>(shared + (memory.sums - SharedAddressOf(shared)));
  const int thread = static_cast<int>(threadIdx.x) - num_warps * 32;
  if (args.out_dtype == DType::kFloat32) {
    AddTiles<T, float>(results, plan, memory, sums, thread, rank, cluster_id);
  } else {
    AddTiles<T, T>(results, plan, memory, sums, thread, rank, cluster_id);
  }
  EndTileCta();
}

bool IsAligned(const void* pointer, int64_t stride, int element_bytes, int in_features) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride * element_bytes % 16 == 0 &&
         stride >= in_features;
}

// Calls `visit` with the TileLauncher for these arguments.
template <typename T, int kColumns, typename Visitor>
auto VisitGroups(const Fp8LinearArgs& args, Visitor visit) {
  return args.weight.num_groups > 1
             ? visit(TileLauncher<Fp8TileLinearKernel<T, kColumns, true>>())
             : visit(TileLauncher<Fp8TileLinearKernel<T, kColumns, false>>());
}
template <typename T, typename Visitor>
auto VisitColumns(const Fp8LinearArgs& args, Visitor visit) {
  switch (TileColumns(args.num_rows)) {
    case 16:
      return VisitGroups<T, 16>(args, visit);
    case 32:
      return VisitGroups<T, 32>(args, visit);
    case 40:
      return VisitGroups<T, 40>(args, visit);
    case 48:
      return VisitGroups<T, 48>(args, visit);
    default:
      return VisitGroups<T, 64>(args, visit);
  }
}
template <typename Visitor>
auto VisitLauncher(const Fp8LinearArgs& args, Visitor visit) {
  return args.dtype == DType::kBFloat16 ? VisitColumns<__nv_bfloat16>(args, visit)
                                        : VisitColumns<__half>(args, visit);
}

}  // namespace

bool Fp8TileLinearServes(const Fp8LinearArgs& args) {
  const Fp8Weight& weight = args.weight;
  const bool is_16_bit = args.dtype == DType::kFloat16 || args.dtype == DType::kBFloat16;
  return is_16_bit && (args.out_dtype == args.dtype || args.out_dtype == DType::kFloat32) &&
         args.num_rows >= 1 && args.num_rows <= kMaxTileLinearRows && weight.out_features > 0 &&
         weight.in_features > 0 &&
         (weight.num_groups == 1 ||
          weight.num_groups == (weight.in_features - 1) / kFp8Group + 1) &&
         IsAligned(args.x, args.x_stride, 2, weight.in_features) &&
         IsAligned(weight.values, weight.stride, 1, weight.in_features);
}

absl::StatusOr<Fp8TilePlan> Fp8TilePlanOf(const Fp8LinearArgs& args, const TileForm& form) {
  if (!IsTileForm(form)) {
    return absl::InvalidArgumentError(
        absl::StrCat("form: expected cluster 1, 2 or 4, row_groups * turns up to ", kMaxTileGroups,
                     ", boxes 1, 2 or 4, got ", ToString(form)));
  }
  if (!Fp8TileLinearServes(args)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", kMaxTileLinearRows,
                     " aligned 16-bit rows and 1 scale per row or "
                     "per ",
                     kFp8Group, ": got ", args.num_rows, " rows, ", args.weight.in_features, " -> ",
                     args.weight.out_features, ", strides ", args.x_stride, " and ",
                     args.weight.stride, ", ", args.weight.num_groups, " scales per row"));
  }
  REPRISE_ASSIGN_OR_RETURN(const int device, TileDevice("Fp8TileLinear"));
  REPRISE_ASSIGN_OR_RETURN(const int max_clusters, VisitLauncher(args, [&](auto launcher) {
                             return launcher.MaxClusters(form, args.num_rows, device);
                           }));
  const Fp8TilePlan plan = PlanFp8Tile(form, args.num_rows, args.weight.out_features,
                                       args.weight.in_features, max_clusters);
  if (plan.stages == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("form: too large for ", args.num_rows, " rows: ", ToString(form)));
  }
  return plan;
}

absl::Status LaunchFp8TileLinear(const Fp8LinearArgs& args, const TileForm& form,
                                 CUstream_st* stream) {
  REPRISE_ASSIGN_OR_RETURN(const Fp8TilePlan plan, Fp8TilePlanOf(args, form));
  const Fp8Weight& weight = args.weight;
  const bool at_once = weight.in_features % kFp8TileBox == 0;
  CUtensorMap weight_map, x_map;
  REPRISE_RETURN_IF_ERROR(MakeTensorMap(
      {DType::kFp8E4M3, weight.values, weight.stride, weight.out_features, weight.in_features},
      plan.tile_rows, at_once ? plan.form.boxes : 0, weight_map));
  REPRISE_RETURN_IF_ERROR(
      MakeTensorMap({args.dtype, args.x, args.x_stride, args.num_rows, weight.in_features},
                    plan.columns, at_once ? plan.form.boxes * kFp8TileXBoxes : 0, x_map));
  return VisitLauncher(args, [&](auto launcher) {
    return launcher.Launch("Fp8TileLinear", plan, stream, weight_map, x_map, args, plan,
                           at_once ? StageCopy::kAtOnce : StageCopy::kBoxByBox);
  });
}

}  // namespace reprise
