// GEMMs of up to 64 rows of x with a weight of megabytes, by tiles (tile_linear_plan.h,
// tile_pipeline.cuh); wide GEMMs of up to 128 rows.
//
// Bound: the bytes of the weight. Loads are in flight from before the end of the previous kernel
// until the last byte. Every tile reads x again, so tiles have many rows of the weight, which keeps
// the traffic of x small. A cluster of CTAs splits the in_features of a tile, so that there are
// tiles for all SMs. In a wide GEMM, x is a large part of the data that a CTA reads from the L2
// cache, and the bandwidth from L2 to the SMs is the bound.
//
// The order of a sum depends only on the form and in_features. Results are therefore bitwise
// identical for all numbers of rows with the same number of columns.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "reprise/base/warp_arrivals.cuh"
#include "reprise/runner/ops/few_rows/tile_linear.h"
#include "reprise/runner/ops/few_rows/tile_pipeline.cuh"

namespace reprise {
namespace {

// Stores the results of a group's 64 rows of a tile from registers.
template <typename T, typename Out, int kColumns>
__device__ void StoreResults(const SkinnyLinearArgs& args, const TileLinearPlan& plan, int tile,
                             int row_group, const TileSums<kColumns>& sum) {
  const int lane = threadIdx.x % 32;
  const int warp_row = row_group * kTileGroupRows + WarpIndex() % kGroupWarps * kWarpRows;
  const int first = tile * plan.tile_rows + warp_row;
  const T* const bias = static_cast<const T*>(args.bias);
  if constexpr (std::is_same_v<T, Out>) {
    if (args.is_gated) {
      if (warp_row >= plan.tile_rows || first >= args.out_features) return;
      const int feature = first / 2 + lane / 4, size = args.out_features / 2;
      const float gate_bias = bias != nullptr ? ToFloat(bias[feature]) : 0.0f;
      const float up_bias = bias != nullptr ? ToFloat(bias[size + feature]) : 0.0f;
      T* const out = static_cast<T*>(args.out) + feature;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int row = n * 8 + lane % 4 * 2 + i;  // row of x
          if (row >= args.num_rows) continue;
          out[row * args.out_stride] =
              GatedValue<T>(args.activation, sum[n][i] + gate_bias, sum[n][i + 2] + up_bias);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int feature = first + half * 8 + lane / 4;
    if (warp_row + half * 8 >= plan.tile_rows || feature >= args.out_features) continue;
    const float add = bias != nullptr ? ToFloat(bias[feature]) : 0.0f;
    Out* const out = static_cast<Out*>(args.out) + feature;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = n * 8 + lane % 4 * 2 + i;  // row of x
        if (row >= args.num_rows) continue;
        out[row * args.out_stride] = FromFloat<Out>(sum[n][half * 2 + i] + add);
      }
    }
  }
}

template <typename T, typename Out, int kColumns>
__device__ void MultiplyTiles(const SkinnyLinearArgs& args, const TileLinearPlan& plan,
                              const TileMemory& memory, int rank, int cluster_id) {
  const int group = WarpIndex() / kGroupWarps;
  const int row_group = group % plan.form.row_groups, turn = group / plan.form.row_groups;
  const int rounds = StepsOf(plan, rank) / plan.form.turns;
  PartialSums<kColumns> sums(plan, memory, row_group, turn, rank);
  StageCounter stage(plan.stages, turn, plan.form.turns);
  for (int tile = cluster_id; tile < plan.num_tiles; tile += plan.num_clusters) {
    TileSums<kColumns> sum = {};
    for (int round = 0; round < rounds; ++round, stage.Next()) {
      const uint32_t weights = memory.stages + stage.slot() * plan.stage_bytes();
      const uint32_t x = weights + plan.form.boxes * plan.tile_rows * kTileBoxLine;
      AwaitPhase(memory.full + stage.slot() * 8, stage.parity());
      for (int box = 0; box < plan.form.boxes; ++box) {
        BeginTileProducts();
        const uint64_t a =
            BoxOf(weights + (box * plan.tile_rows + row_group * kTileGroupRows) * kTileBoxLine);
        const uint64_t b = BoxOf(x + box * kColumns * kTileBoxLine);
#pragma unroll
        for (int i = 0; i < kTileBox / 16; ++i) TileProduct<T, kColumns>(sum, a + 2 * i, b + 2 * i);
      }
      EndTileProducts();
      if (ArrivesForWarp()) ArriveAt(memory.empty + stage.slot() * 8);
    }
    if (kColumns > kMaxTileLinearRows || plan.stores_directly) {
      StoreResults<T, Out, kColumns>(args, plan, tile, row_group, sum);
    } else {
      sums.Store(sum, args.num_rows);
    }
  }
}

template <typename T, typename Out, int kColumns>
__global__ void __launch_bounds__(MaxTileThreads(kColumns), 1)
    TileLinearKernel(const __grid_constant__ CUtensorMap weight_map,
                     const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ SkinnyLinearArgs args,
                     const __grid_constant__ TileLinearPlan plan, const StageCopy copy) {
  extern __shared__ __align__(128) char shared[];
  TriggerDependents();
  const TileMemory memory(SharedAddressOf(shared), plan);
  const int rank = static_cast<int>(ClusterRank());
  const int cluster_id = static_cast<int>(blockIdx.x) / plan.form.cluster;
  const int num_warps = plan.form.groups() * kGroupWarps;
  const int first_copying = num_warps + AddThreads(kColumns) / 32;
  BeginTileCta(plan, memory);
  const int warp = WarpIndex();
  if (warp >= first_copying) {
    const uint32_t behind = plan.form.boxes * plan.tile_rows * kTileBoxLine;
    CopyTiles(plan, memory, {weight_map, 0, plan.form.boxes, plan.tile_rows, kTileBox},
              {x_map, behind, plan.form.boxes, kColumns, kTileBox}, args.weights, copy,
              warp - first_copying, rank, cluster_id);
    AwaitCluster();
    EndTileCta();
    return;
  }
  GridDependencySync();
  AwaitCluster();  // all CTAs have initialised their barriers
  if (warp < num_warps) {
    MultiplyTiles<T, Out, kColumns>(args, plan, memory, rank, cluster_id);
  } else if constexpr (AddThreads(kColumns) > 0) {
    if (!plan.stores_directly) {
      AddTiles<T, Out>(
          {args.bias, args.out, args.out_stride, args.num_rows, args.out_features, args.is_gated,
           args.activation},
          plan, memory,
          reinterpret_cast<const float*>(shared + (memory.sums - SharedAddressOf(shared))),
          static_cast<int>(threadIdx.x) - num_warps * 32, rank, cluster_id);
    }
  }
  EndTileCta();
}

bool IsAligned(const void* pointer, int64_t stride, int in_features) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0 && stride >= in_features;
}

// Calls `visit` with the TileLauncher for these arguments.
template <typename T, typename Out, typename Visitor>
auto VisitColumns(int num_rows, Visitor visit) {
  switch (TileColumns(num_rows)) {
    case 16:
      return visit(TileLauncher<TileLinearKernel<T, Out, 16>>());
    case 32:
      return visit(TileLauncher<TileLinearKernel<T, Out, 32>>());
    case 40:
      return visit(TileLauncher<TileLinearKernel<T, Out, 40>>());
    case 48:
      return visit(TileLauncher<TileLinearKernel<T, Out, 48>>());
    case 64:
      return visit(TileLauncher<TileLinearKernel<T, Out, 64>>());
    // The results of wide GEMMs have x's dtype: see TileLinearServes().
    case 96:
      return visit(TileLauncher<TileLinearKernel<T, T, 96>>());
    default:
      return visit(TileLauncher<TileLinearKernel<T, T, 128>>());
  }
}
template <typename T, typename Visitor>
auto VisitOut(const SkinnyLinearArgs& args, Visitor visit) {
  return args.out_dtype == DType::kFloat32 ? VisitColumns<T, float>(args.num_rows, visit)
                                           : VisitColumns<T, T>(args.num_rows, visit);
}
template <typename Visitor>
auto VisitLauncher(const SkinnyLinearArgs& args, Visitor visit) {
  return args.dtype == DType::kBFloat16 ? VisitOut<__nv_bfloat16>(args, visit)
                                        : VisitOut<__half>(args, visit);
}

}  // namespace

bool TileLinearServes(const SkinnyLinearArgs& args) {
  const bool is_16_bit = args.dtype == DType::kFloat16 || args.dtype == DType::kBFloat16;
  return is_16_bit && (args.out_dtype == args.dtype || args.out_dtype == DType::kFloat32) &&
         args.num_rows >= 1 &&
         args.num_rows <= (args.out_dtype == args.dtype ? kMaxWideTileRows : kMaxTileLinearRows) &&
         args.out_features > 0 && args.in_features > 0 &&
         IsAligned(args.x, args.x_stride, args.in_features) &&
         IsAligned(args.weight, args.weight_stride, args.in_features) &&
         (!args.is_gated || (args.out_dtype == args.dtype && args.in_features % kTileBox == 0 &&
                             args.out_features % kGatedTileUnit == 0));
}

absl::StatusOr<TileLinearPlan> TileLinearPlanOf(const SkinnyLinearArgs& args,
                                                const TileForm& form) {
  if (!IsTileForm(form)) {
    return absl::InvalidArgumentError(
        absl::StrCat("form: expected cluster 1, 2 or 4, row_groups * turns up to ", kMaxTileGroups,
                     ", boxes 1, 2 or 4, got ", ToString(form)));
  }
  if (!TileLinearServes(args)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected 1 to ", kMaxWideTileRows,
        " aligned 16-bit rows, with float32 "
        "results ",
        kMaxTileLinearRows, ": got ", args.num_rows, " rows, ", args.in_features, " -> ",
        args.out_features, ", strides ", args.x_stride, " and ", args.weight_stride));
  }
  REPRISE_ASSIGN_OR_RETURN(const int device, TileDevice("TileLinear"));
  REPRISE_ASSIGN_OR_RETURN(const int max_clusters, VisitLauncher(args, [&](auto launcher) {
                             return launcher.MaxClusters(form, args.num_rows, device);
                           }));
  const TileLinearPlan plan =
      PlanTileLinear(form, args.num_rows, args.out_features, args.in_features, max_clusters,
                     args.is_gated ? TileRows::kGated : TileRows::kPlain);
  if (plan.stages == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("form: too large for ", args.num_rows, " rows: ", ToString(form)));
  }
  return plan;
}

absl::Status LaunchTileLinear(const SkinnyLinearArgs& args, const TileForm& form,
                              CUstream_st* stream) {
  REPRISE_ASSIGN_OR_RETURN(const TileLinearPlan plan, TileLinearPlanOf(args, form));
  const bool at_once = args.in_features % kTileBox == 0;
  const int num_boxes = at_once ? plan.form.boxes : 0;
  const StageCopy copy = args.is_gated ? StageCopy::kPaired
                         : at_once     ? StageCopy::kAtOnce
                                       : StageCopy::kBoxByBox;
  CUtensorMap weight, x;
  const TileMatrix weight_matrix = {args.dtype, args.weight, args.weight_stride, args.out_features,
                                    args.in_features};
  REPRISE_RETURN_IF_ERROR(
      args.is_gated ? MakePairedTensorMap(weight_matrix, plan.tile_rows, num_boxes, weight)
                    : MakeTensorMap(weight_matrix, plan.tile_rows, num_boxes, weight));
  REPRISE_RETURN_IF_ERROR(
      MakeTensorMap({args.dtype, args.x, args.x_stride, args.num_rows, args.in_features},
                    plan.columns, num_boxes, x));
  return VisitLauncher(args, [&](auto launcher) {
    return launcher.Launch("TileLinear", plan, stream, weight, x, args, plan, copy);
  });
}

}  // namespace reprise
