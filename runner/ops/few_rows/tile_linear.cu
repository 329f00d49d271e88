// Products of up to 64 rows of x with a weight of megabytes, by tiles (tile_linear_plan.h).
//
// Bound: the bytes of the weight. Loads are under way from before the kernel before this one ends
// until the last byte, and x, which every tile reads again, is small beside them: a tile has as
// many rows of the weight as possible, and a cluster of CTAs shares its in_features, so that there
// are tiles for all SMs.
//
//   copies   two threads copy stages by TMA: one the boxes of the weight, the first of them before
//            the wait for the kernel before, the other those of x, after it.
//   products a group multiplies its 64 rows of a stage by all of x (wgmma: the weight is A, x is
//            B). Products of few columns are bound by their latency, so groups take turns.
//   sums     at the end of a tile each warp stores its partial sums in the shared memory of the CTA
//            that owns its rows, and begins the next tile. Four more warps of the owner add all
//            sources in their order and store the results.
//
// A sum's order depends on the form and in_features alone: the same bits for any number of rows
// with the same columns.

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/dependent_launch.cuh"
#include "base/status_macros.h"
#include "runner/ops/few_rows/cluster_memory.cuh"
#include "runner/ops/few_rows/tile_linear.h"
#include "runner/ops/few_rows/tile_products.cuh"
#include "runner/ops/vector_access.cuh"

namespace reprise {
namespace {

constexpr int kGroupThreads = 128;
constexpr int kGroupWarps = kGroupThreads / 32;
constexpr int kWarpRows = 16;
constexpr int kCopyThreads = 64;  // two warps, of which one thread each copies
constexpr int kAddThreads = 128;
constexpr int kAddWarps = kAddThreads / 32;
constexpr int kMostThreads = kMaxTileGroups * kGroupThreads + kAddThreads + kCopyThreads;

__device__ uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Where things are in a CTA's shared memory, as addresses.
struct TileMemory {
  uint32_t stages;  // [plan.stages]: boxes of the weight, then boxes of x
  uint32_t sums;    // [num_sources, columns, sums_stride] float32: of the owned rows
  uint32_t full;    // [plan.stages] barriers: the stage is copied
  uint32_t empty;   // [plan.stages]: all warps whose turn it is have multiplied it
  uint32_t summed;  // a barrier: all partial sums of the owned rows are here
  uint32_t read;    // a barrier: all owners of the cluster have read those of the tile

  __device__ TileMemory(uint32_t memory, const TileLinearPlan& plan)
      : stages((memory + 1023) / 1024 * 1024),
        sums(stages + plan.stages * plan.stage_bytes()),
        // At the end: behind the sums, and what is read of the last stage as if it were full.
        full(memory + plan.shared_bytes - (2 * plan.stages + 2) * 8),
        empty(full + plan.stages * 8),
        summed(empty + plan.stages * 8),
        read(summed + 8) {}
};

// The warp, as a value that the compiler knows to be equal in all of its lanes: else it takes what
// depends on it for divergent, and lets each product of a warpgroup wait for the one before.
__device__ int WarpIndex() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0); }

// The stages of one CTA, in order, those of its tiles one after the other: every `turns`-th of them
// from `first` on. num_stages is a multiple of `turns`.
class StageCounter {
 public:
  __device__ explicit StageCounter(int num_stages, int first = 0, int turns = 1)
      : num_stages_(num_stages), turns_(turns), slot_(first) {}

  __device__ void Next() {
    slot_ += turns_;
    if (slot_ >= num_stages_) {
      slot_ -= num_stages_;
      parity_ ^= 1;
    }
  }

  __device__ int slot() const { return slot_; }
  __device__ uint32_t parity() const { return parity_; }

 private:
  int num_stages_, turns_;
  int slot_;
  uint32_t parity_ = 0;
};

// Stages of a tile that belong to the CTA with this rank. As many for each turn, so that a slot
// keeps its turn from tile to tile; those beyond in_features are zero.
__device__ int StepsOf(const TileLinearPlan& plan, int rank) {
  const int first = rank * plan.form.boxes, round = plan.form.cluster * plan.form.boxes;
  if (first >= plan.num_boxes) return 0;
  const int steps = (plan.num_boxes - first + round - 1) / round;
  return (steps + plan.form.turns - 1) / plan.form.turns * plan.form.turns;
}

// How one of the two matrices is copied to a part of each stage.
struct StagePart {
  const CUtensorMap& map;
  uint32_t offset;  // in the stage, bytes
  int box_rows;
};

// One thread copies its part of all stages of the CTA, tile after tile: with kWeights the rows of
// the tile, else the first rows of the matrix. What is beyond in_features or the last row is zero.
// Weights are read once a step of the model: they are the first to leave the L2 cache.
template <bool kWeights>
__device__ void CopyStages(const TileLinearPlan& plan, const TileMemory& memory,
                           const StagePart& part, bool boxes_at_once, int rank, int cluster_id) {
  const int steps = StepsOf(plan, rank), box_bytes = part.box_rows * kTileBoxLine;
  const uint64_t policy = EvictFirst();
  StageCounter stage(plan.stages);
  for (int tile = cluster_id; tile < plan.num_tiles; tile += plan.num_clusters) {
    const int row = kWeights ? tile * plan.tile_rows : 0;
    for (int step = 0; step < steps; ++step, stage.Next()) {
      // In the first round all are empty: the phase before the first one has parity 1.
      AwaitPhase(memory.empty + stage.slot() * 8, stage.parity() ^ 1);
      const uint32_t full = memory.full + stage.slot() * 8;
      const uint32_t to = memory.stages + stage.slot() * plan.stage_bytes() + part.offset;
      const int box = (step * plan.form.cluster + rank) * plan.form.boxes;
      ArriveAndExpect(full, plan.form.boxes * box_bytes);
      if (boxes_at_once) {
        CopyBoxes<kWeights>(to, part.map, box, row, full, policy);
        continue;
      }
      for (int i = 0; i < plan.form.boxes; ++i) {
        CopyBox<kWeights>(to + i * box_bytes, part.map, (box + i) * kTileBox, row, full, policy);
      }
    }
  }
}

template <typename T, int kColumns>
__device__ void MultiplyTiles(const TileLinearPlan& plan, const TileMemory& memory, int num_rows,
                              int rank, int cluster_id) {
  const int lane = threadIdx.x % 32, warp = WarpIndex(), group = warp / kGroupWarps;
  const int row_group = group % plan.form.row_groups, turn = group / plan.form.row_groups;
  const int owned = plan.owned_rows(), stride = plan.sums_stride();
  const int rounds = StepsOf(plan, rank) / plan.form.turns;
  // A warp's 16 rows of a tile have one owner.
  const int warp_row = row_group * kTileGroupRows + warp % kGroupWarps * kWarpRows;
  const int owner = warp_row / owned, source = rank * plan.form.turns + turn;
  const uint32_t to =
      ClusterAddress(memory.sums, owner) +
      ((source * kColumns + lane % 4 * 2) * stride + lane / 4 + warp_row % owned) * 4;
  const uint32_t arrived = ClusterAddress(memory.summed, owner);
  StageCounter stage(plan.stages, turn, plan.form.turns);
  uint32_t tile_parity = 0;
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
      if (lane == 0) ArriveAt(memory.empty + stage.slot() * 8);
    }

    // In the first round the buffers are free, as the stages are.
    AwaitPhase(memory.read, tile_parity ^ 1);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (n * 8 >= num_rows) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        StoreInCluster(to + ((n * 8 + i % 2) * stride + i / 2 * 8) * 4, sum[n][i]);
      }
    }
    __syncwarp();
    if (lane == 0) ArriveInCluster(arrived);
    tile_parity ^= 1;
  }
}

// Four neighbouring elements of a row of `out`, the sums of all sources in their order.
template <typename T, typename Out>
__device__ void AddFour(const float* sums, int num_sources, int source_stride, const T* bias,
                        bool is_aligned, int count, Out* out) {
  float4 value = {};
#pragma unroll 4
  for (int source = 0; source < num_sources; ++source) {
    const float4 more = *reinterpret_cast<const float4*>(sums + source * source_stride);
    value.x += more.x;
    value.y += more.y;
    value.z += more.z;
    value.w += more.w;
  }
  const float values[4] = {value.x, value.y, value.z, value.w};
  Vector<Out, 4> results;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float add = bias != nullptr && j < count ? ToFloat(bias[j]) : 0.0f;
    results.value[j] = FromFloat<Out>(values[j] + add);
  }
  if (is_aligned && count >= 4) {
    StoreVector(out, results);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < count) out[j] = results.value[j];
  }
}

// Adds the sources of the owned rows of each tile; `thread` of kAddThreads.
template <typename T, typename Out>
__device__ void AddTiles(const SkinnyLinearArgs& args, const TileLinearPlan& plan,
                         const TileMemory& memory, const float* sums, int thread, int rank,
                         int cluster_id) {
  const int owned = plan.owned_rows(), stride = plan.sums_stride();
  const int source_stride = plan.columns * stride;
  // tile_rows and owned are multiples of 8: a row's four elements are aligned if the first are.
  const bool is_aligned =
      reinterpret_cast<uintptr_t>(args.out) % (4 * sizeof(Out)) == 0 && args.out_stride % 4 == 0;
  const int fours = owned / 4;
  uint32_t tile_parity = 0;
  for (int tile = cluster_id; tile < plan.num_tiles; tile += plan.num_clusters) {
    AwaitPhase(memory.summed, tile_parity);
    const int first = tile * plan.tile_rows + rank * owned;
    const int count = min(min(owned, plan.tile_rows - rank * owned), args.out_features - first);
    for (int e = thread; e < args.num_rows * fours; e += kAddThreads) {
      const int row = e / fours, i = e % fours * 4;
      if (i >= count) continue;
      AddFour(sums + row * stride + i, plan.num_sources(), source_stride,
              args.bias != nullptr ? static_cast<const T*>(args.bias) + first + i : nullptr,
              is_aligned, count - i,
              static_cast<Out*>(args.out) + row * args.out_stride + first + i);
    }
    // No CTA of the cluster arrives at one that may have ended.
    if (tile + plan.num_clusters < plan.num_tiles) {
      __syncwarp();
      const int lane = thread % 32;
      if (lane < plan.form.cluster) ArriveInCluster(ClusterAddress(memory.read, lane));
    }
    tile_parity ^= 1;
  }
}

// The two copying warps: the first copies the weight, the other x.
template <int kColumns>
__device__ void Copy(const SkinnyLinearArgs& args, const TileLinearPlan& plan,
                     const TileMemory& memory, const CUtensorMap& weight, const CUtensorMap& x,
                     bool boxes_at_once, int warp, int rank, int cluster_id) {
  if (warp != 0 || args.weights != SkinnyWeights::kEarly) AwaitKernelBefore();
  if (threadIdx.x % 32 == 0) {
    if (warp == 0) {
      CopyStages<true>(plan, memory, {weight, 0, plan.tile_rows}, boxes_at_once, rank, cluster_id);
    } else {
      const uint32_t behind = plan.form.boxes * plan.tile_rows * kTileBoxLine;
      CopyStages<false>(plan, memory, {x, behind, kColumns}, boxes_at_once, rank, cluster_id);
    }
  }
  AwaitKernelBefore();
  __syncwarp();
}

template <typename T, typename Out, int kColumns>
__global__ void __launch_bounds__(kMostThreads, 1)
    TileLinearKernel(const __grid_constant__ CUtensorMap weight_map,
                     const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ SkinnyLinearArgs args,
                     const __grid_constant__ TileLinearPlan plan, const bool boxes_at_once) {
  extern __shared__ __align__(128) char shared[];
  LetNextKernelIn();
  const TileMemory memory(SharedAddressOf(shared), plan);
  const int rank = static_cast<int>(ClusterRank());
  const int cluster_id = static_cast<int>(blockIdx.x) / plan.form.cluster;
  const int num_warps = plan.form.groups() * kGroupWarps;
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      InitBarrier(memory.full + i * 8, 2);
      InitBarrier(memory.empty + i * 8, plan.form.row_groups * kGroupWarps);
    }
    InitBarrier(memory.summed, num_warps);
    InitBarrier(memory.read, plan.form.cluster * kAddWarps);
    PublishBarriers();
  }
  __syncthreads();
  ArriveAtCluster();
  const int warp = WarpIndex();
  if (warp >= num_warps + kAddWarps) {
    Copy<kColumns>(args, plan, memory, weight_map, x_map, boxes_at_once,
                   warp - num_warps - kAddWarps, rank, cluster_id);
    AwaitCluster();
    return;
  }
  AwaitKernelBefore();
  AwaitCluster();  // all have barriers by now
  if (warp < num_warps) {
    MultiplyTiles<T, kColumns>(plan, memory, args.num_rows, rank, cluster_id);
  } else {
    AddTiles<T, Out>(
        args, plan, memory,
        reinterpret_cast<const float*>(shared + (memory.sums - SharedAddressOf(shared))),
        static_cast<int>(threadIdx.x) - num_warps * 32, rank, cluster_id);
  }
}

// cuTensorMapEncodeTiled() of the driver, without linking it.
absl::StatusOr<decltype(&cuTensorMapEncodeTiled)> EncodeTiled() {
  static const auto [function, error] = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                          cudaEnableDefault, &result);
    if (status == cudaSuccess && result != cudaDriverEntryPointSuccess) {
      status = cudaErrorSymbolNotFound;
    }
    return std::pair(reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found), status);
  }();
  REPRISE_RETURN_IF_ERROR(CudaStatus(error, "cudaGetDriverEntryPointByVersion"));
  return function;
}

// A matrix of 16 bits.
struct Matrix {
  DType dtype;
  const void* data;
  int64_t stride;
  int rows;
  int elements;  // of a row
};

// Boxes of `box_rows` rows and kTileBox elements. With num_boxes > 0 that many at once, as a third
// dimension, which needs rows of whole boxes.
absl::Status MakeMap(const Matrix& matrix, int box_rows, int num_boxes, CUtensorMap& map) {
  REPRISE_ASSIGN_OR_RETURN(const auto encode, EncodeTiled());
  const bool at_once = num_boxes > 0;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(at_once ? kTileBox : matrix.elements),
                              static_cast<cuuint64_t>(matrix.rows),
                              static_cast<cuuint64_t>(matrix.elements / kTileBox)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride) * 2, kTileBoxLine};
  const cuuint32_t box[] = {kTileBox, static_cast<cuuint32_t>(box_rows),
                            static_cast<cuuint32_t>(num_boxes)};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult result =
      encode(&map,
             matrix.dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                              : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             at_once ? 3 : 2, const_cast<void*>(matrix.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result)));
}

bool IsAligned(const void* pointer, int64_t stride, int in_features) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0 && stride >= in_features;
}

// What does not change while the process runs, of one device.
struct Device {
  // Clusters of 1, 2 and 4 CTAs of this kernel that run at once; 0: not asked yet.
  std::array<std::atomic<int>, 3> max_clusters = {};
};
constexpr int kMostDevices = 64;

int ClusterIndex(int cluster) { return cluster == 4 ? 2 : cluster - 1; }

template <typename T, typename Out, int kColumns>
struct Launcher {
  static constexpr auto kKernel = TileLinearKernel<T, Out, kColumns>;

  static cudaLaunchConfig_t Config(const TileLinearPlan& plan, int num_clusters,
                                   cudaStream_t stream, cudaLaunchAttribute (&attributes)[2]) {
    attributes[0] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = plan.form.cluster;
    attributes[0].val.clusterDim.y = 1;
    attributes[0].val.clusterDim.z = 1;
    attributes[1] = {};
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = num_clusters * plan.form.cluster;
    config.blockDim = plan.form.groups() * kGroupThreads + kAddThreads + kCopyThreads;
    config.dynamicSmemBytes = plan.shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = 2;
    return config;
  }

  static absl::Status Prepare(int shared_bytes) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
        "cudaFuncSetAttribute"));
    return CudaStatus(cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared),
                      "cudaFuncSetAttribute");
  }

  // All kernels and plans take more than half of an SM's shared memory: one answer for all.
  static absl::StatusOr<int> MaxClusters(const TileForm& form, int device) {
    static std::array<Device, kMostDevices> devices;
    std::atomic<int>& known = devices[device].max_clusters[ClusterIndex(form.cluster)];
    int count = known.load(std::memory_order_relaxed);
    if (count > 0) return count;
    const TileLinearPlan plan = PlanTileLinear(form, kColumns, 1, 1, 1);
    REPRISE_RETURN_IF_ERROR(Prepare(plan.shared_bytes));
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = Config(plan, 1, nullptr, attributes);
    config.numAttrs = 1;
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaOccupancyMaxActiveClusters(&count, kKernel, &config),
                                       "cudaOccupancyMaxActiveClusters"));
    if (count < 1) {
      return absl::UnimplementedError(
          absl::StrCat("the device runs no cluster of ", form.cluster, " CTAs"));
    }
    known.store(count, std::memory_order_relaxed);
    return count;
  }

  static absl::Status Launch(const SkinnyLinearArgs& args, const TileLinearPlan& plan,
                             cudaStream_t stream) {
    const bool at_once = args.in_features % kTileBox == 0;
    const int num_boxes = at_once ? plan.form.boxes : 0;
    CUtensorMap weight, x;
    REPRISE_RETURN_IF_ERROR(
        MakeMap({args.dtype, args.weight, args.weight_stride, args.out_features, args.in_features},
                plan.tile_rows, num_boxes, weight));
    REPRISE_RETURN_IF_ERROR(
        MakeMap({args.dtype, args.x, args.x_stride, args.num_rows, args.in_features}, plan.columns,
                num_boxes, x));
    REPRISE_RETURN_IF_ERROR(Prepare(plan.shared_bytes));
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = Config(plan, plan.num_clusters, stream, attributes);
    return CudaStatus(cudaLaunchKernelEx(&config, kKernel, weight, x, args, plan, at_once),
                      "TileLinear");
  }
};

// Calls visit with the Launcher for these arguments.
template <typename T, typename Out, typename Visitor>
auto VisitColumns(int num_rows, Visitor visit) {
  switch (TileColumns(num_rows)) {
    case 16:
      return visit(Launcher<T, Out, 16>());
    case 32:
      return visit(Launcher<T, Out, 32>());
    default:
      return visit(Launcher<T, Out, 64>());
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
         args.num_rows >= 1 && args.num_rows <= kMaxTileLinearRows && args.out_features > 0 &&
         args.in_features > 0 && IsAligned(args.x, args.x_stride, args.in_features) &&
         IsAligned(args.weight, args.weight_stride, args.in_features);
}

absl::StatusOr<TileLinearPlan> TileLinearPlanOf(const SkinnyLinearArgs& args,
                                                const TileForm& form) {
  if (!IsTileForm(form)) {
    return absl::InvalidArgumentError(
        absl::StrCat("form: expected cluster 1, 2 or 4, row_groups * turns up to ", kMaxTileGroups,
                     ", boxes 1, 2 or 4, got ", ToString(form)));
  }
  if (!TileLinearServes(args)) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected 1 to ", kMaxTileLinearRows, " aligned 16-bit rows: got ",
                     args.num_rows, " rows, ", args.in_features, " -> ", args.out_features,
                     ", strides ", args.x_stride, " and ", args.weight_stride));
  }
  int device = 0, major = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                 "cudaDeviceGetAttribute"));
  if (major != 9 || device >= kMostDevices) {
    return absl::UnimplementedError(
        absl::StrCat("TileLinear: expected compute capability 9.0, got ", major, ".x"));
  }
  REPRISE_ASSIGN_OR_RETURN(const int max_clusters, VisitLauncher(args, [&](auto launcher) {
                             return launcher.MaxClusters(form, device);
                           }));
  const TileLinearPlan plan =
      PlanTileLinear(form, args.num_rows, args.out_features, args.in_features, max_clusters);
  if (plan.stages == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("form: too large for ", args.num_rows, " rows: ", ToString(form)));
  }
  return plan;
}

absl::Status LaunchTileLinear(const SkinnyLinearArgs& args, const TileForm& form,
                              CUstream_st* stream) {
  REPRISE_ASSIGN_OR_RETURN(const TileLinearPlan plan, TileLinearPlanOf(args, form));
  return VisitLauncher(args, [&](auto launcher) { return launcher.Launch(args, plan, stream); });
}

}  // namespace reprise
