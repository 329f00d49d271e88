// Shared by the tile kernels for 16-bit weights (tile_linear.cu) and for 8-bit weights
// (runner/ops/fp8/fp8_tile_linear.cu): stages, their copies, and the sums at the end of a tile.
//
//   copies   Two threads copy stages by TMA. One copies the boxes of the weight; with
//            SkinnyWeights::kEarly, its first copies start before the wait for the previous kernel.
//            The other copies the boxes of x, after that wait.
//   MMA      A group multiplies its 64 rows of a stage by all of x (wgmma: the weight is A, x is
//            B). MMAs with few columns are latency bound, so groups alternate on the stages.
//   sums     At the end of a tile, each warp stores its partial sums in the shared memory of the
//            CTA that owns its rows, and begins the next tile. Four more warps of the owner add all
//            sources in their order and store the results. If a group is the only source of its
//            elements, it stores them from registers (tile_linear.cu), and the stages use the
//            memory of the sums.
//
// `Plan` is TileLinearPlan or a class derived from it with its own stage_bytes().

#ifndef REPRISE_RUNNER_OPS_FEW_ROWS_TILE_PIPELINE_CUH_
#define REPRISE_RUNNER_OPS_FEW_ROWS_TILE_PIPELINE_CUH_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/warp_arrivals.cuh"
#include "reprise/runner/ops/few_rows/cluster_memory.cuh"
#include "reprise/runner/ops/few_rows/gated_value.cuh"
#include "reprise/runner/ops/few_rows/tile_linear_plan.h"
#include "reprise/runner/ops/few_rows/tile_products.cuh"
#include "reprise/runner/ops/skinny_linear_args.h"
#include "reprise/runner/ops/vector_access.cuh"

namespace reprise {

inline constexpr int kGroupWarps = kGroupThreads / 32;
inline constexpr int kWarpRows = 16;
inline constexpr int kAddWarps = kAddThreads / 32;

__device__ inline uint64_t EvictFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The layout of a CTA's shared memory, as addresses.
struct TileMemory {
  uint32_t stages;  // [plan.stages]: boxes of the weight, then boxes of x
  uint32_t sums;    // [num_sources, columns, sums_stride] float32: the owned rows
  uint32_t full;    // [plan.stages] barriers: the stage has been copied
  uint32_t empty;   // [plan.stages]: all warps that use the stage have multiplied it
  uint32_t summed;  // a barrier: all partial sums of the owned rows have arrived
  uint32_t read;    // a barrier: all owners of the cluster have read the tile's sums

  template <typename Plan>
  __device__ TileMemory(uint32_t memory, const Plan& plan)
      : stages((memory + 1023) / 1024 * 1024),
        sums(stages + plan.stages * plan.stage_bytes()),
        // At the end: after the sums, and after the part of the last stage that is read as if the
        // tile were full.
        full(memory + plan.shared_bytes - (2 * plan.stages + 2) * 8),
        empty(full + plan.stages * 8),
        summed(empty + plan.stages * 8),
        read(summed + 8) {}
};

// Returns the warp index as a value that the compiler treats as uniform across the warp. Otherwise
// the compiler considers dependent values divergent, and makes each MMA of a warpgroup wait for the
// previous one.
__device__ inline int WarpIndex() {
  return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
}

// Counts the stages of one CTA through all of its tiles: every `turns`-th stage, beginning with
// `first`. num_stages is a multiple of `turns`.
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

// Returns the number of stages of a tile that belong to the CTA with this rank. It is rounded up to
// a multiple of `turns`, so that the assignment of slots to groups is the same for every tile.
// Stages beyond in_features are zero.
__device__ inline int StepsOf(const TileLinearPlan& plan, int rank) {
  const int first = rank * plan.form.boxes, round = plan.form.cluster * plan.form.boxes;
  if (first >= plan.num_boxes) return 0;
  const int steps = (plan.num_boxes - first + round - 1) / round;
  return (steps + plan.form.turns - 1) / plan.form.turns * plan.form.turns;
}

// How the boxes of a stage are copied.
enum class StageCopy : int8_t {
  kBoxByBox,  // if in_features is not a multiple of a box
  kAtOnce,
  kPaired,  // with one copy, and with the tile's rows in pairs of 8: CopyPairedBoxes()
};

// How one of the two matrices is copied to its part of each stage.
struct StagePart {
  const CUtensorMap& map;
  uint32_t offset;  // bytes from the start of the stage
  int boxes;        // per stage
  int box_rows;
  int box_elements;
};

// Copies one matrix's part of all stages of the CTA, tile after tile: with kWeights, the rows of
// the tile; otherwise the first rows of the matrix. Elements beyond in_features or the last row are
// zero. Weights are read once per step of the model, so the L2 cache evicts them first. One thread.
template <bool kWeights, typename Plan>
__device__ void CopyStages(const Plan& plan, const TileMemory& memory, const StagePart& part,
                           StageCopy copy, int rank, int cluster_id) {
  const int steps = StepsOf(plan, rank), box_bytes = part.box_rows * kTileBoxLine;
  const uint64_t policy = EvictFirst();
  StageCounter stage(plan.stages);
  for (int tile = cluster_id; tile < plan.num_tiles; tile += plan.num_clusters) {
    const int row = kWeights ? tile * plan.tile_rows : 0;
    for (int step = 0; step < steps; ++step, stage.Next()) {
      // All stages are empty in the first round: the phase before the first one has parity 1.
      AwaitPhase(memory.empty + stage.slot() * 8, stage.parity() ^ 1);
      const uint32_t full = memory.full + stage.slot() * 8;
      const uint32_t to = memory.stages + stage.slot() * plan.stage_bytes() + part.offset;
      const int box = (step * plan.form.cluster + rank) * part.boxes;
      ArriveAndExpect(full, part.boxes * box_bytes);
      if (kWeights && copy == StageCopy::kPaired) {
        CopyPairedBoxes(to, part.map, box, row / kGatedTileUnit, full, policy);
        continue;
      }
      if (copy != StageCopy::kBoxByBox) {
        CopyBoxes<kWeights>(to, part.map, box, row, full, policy);
        continue;
      }
      for (int i = 0; i < part.boxes; ++i) {
        CopyBox<kWeights>(to + i * box_bytes, part.map, (box + i) * part.box_elements, row, full,
                          policy);
      }
    }
  }
}

// Runs in the two copying warps: the first copies the weight, the second copies x.
template <typename Plan>
__device__ void CopyTiles(const Plan& plan, const TileMemory& memory, const StagePart& weight,
                          const StagePart& x, SkinnyWeights when, StageCopy copy, int warp,
                          int rank, int cluster_id) {
  if (warp != 0 || when != SkinnyWeights::kEarly) GridDependencySync();
  if (threadIdx.x % 32 == 0) {
    if (warp == 0) {
      CopyStages<true>(plan, memory, weight, copy, rank, cluster_id);
    } else {
      CopyStages<false>(plan, memory, x, copy, rank, cluster_id);
    }
  }
  GridDependencySync();
  __syncwarp();
}

// Stores a warp's partial sums, tile after tile, in the shared memory of their owner.
template <int kColumns>
class PartialSums {
 public:
  __device__ PartialSums(const TileLinearPlan& plan, const TileMemory& memory, int row_group,
                         int turn, int rank)
      : stride_(plan.sums_stride()), read_(memory.read) {
    // The 16 rows of a warp have one owner.
    const int lane = threadIdx.x % 32;
    const int row = row_group * kTileGroupRows + WarpIndex() % kGroupWarps * kWarpRows;
    const int owner = row / plan.owned_rows(), source = rank * plan.form.turns + turn;
    to_ = ClusterAddress(memory.sums, owner) +
          ((source * kColumns + lane % 4 * 2) * stride_ + lane / 4 + row % plan.owned_rows()) * 4;
    arrived_ = ClusterAddress(memory.summed, owner);
  }

  // Stores the sums of the next tile, for at least the first num_rows columns.
  __device__ void Store(const TileSums<kColumns>& sum, int num_rows) {
    // In the first round the buffers are free.
    AwaitPhase(read_, parity_ ^ 1);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      if (n * 8 >= num_rows) break;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        StoreInCluster(to_ + ((n * 8 + i % 2) * stride_ + i / 2 * 8) * 4, sum[n][i]);
      }
    }
    __syncwarp();
    if (ArrivesForWarp()) ArriveInCluster(arrived_);
    parity_ ^= 1;
  }

 private:
  int stride_;
  uint32_t read_, to_, arrived_;
  uint32_t parity_ = 0;
};

// Four neighbouring sums, each over all sources in their order.
struct FourSums {
  float value[4];
};
__device__ inline FourSums SumFour(const float* sums, int num_sources, int source_stride) {
  float4 value = {};
#pragma unroll 4
  for (int source = 0; source < num_sources; ++source) {
    const float4 more = *reinterpret_cast<const float4*>(sums + source * source_stride);
    value.x += more.x;
    value.y += more.y;
    value.z += more.z;
    value.w += more.w;
  }
  return {{value.x, value.y, value.z, value.w}};
}

// Stores the first `count` of four elements to a row of `out`.
template <typename Out>
__device__ void StoreFour(const Vector<Out, 4>& results, bool is_aligned, int count, Out* out) {
  if (is_aligned && count >= 4) {
    StoreVector(out, results);
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (j < count) out[j] = results.value[j];
  }
}

// Adds all sources of four neighbouring elements in their order and stores them to a row of `out`.
template <typename T, typename Out>
__device__ void AddFour(const float* sums, int num_sources, int source_stride, const T* bias,
                        bool is_aligned, int count, Out* out) {
  const FourSums sum = SumFour(sums, num_sources, source_stride);
  Vector<Out, 4> results;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float add = bias != nullptr && j < count ? ToFloat(bias[j]) : 0.0f;
    results.value[j] = FromFloat<Out>(sum.value[j] + add);
  }
  StoreFour(results, is_aligned, count, out);
}

// AddFour() for a gated GEMM. The up sums are kTileUnit elements after the gate sums; the up biases
// are pair_distance elements after the gate biases.
template <typename T>
__device__ void AddGatedFour(const float* sums, int num_sources, int source_stride, const T* bias,
                             int pair_distance, Activation activation, bool is_aligned, T* out) {
  const FourSums gate = SumFour(sums, num_sources, source_stride);
  const FourSums up = SumFour(sums + kTileUnit, num_sources, source_stride);
  Vector<T, 4> results;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float add_gate = bias != nullptr ? ToFloat(bias[j]) : 0.0f;
    const float add_up = bias != nullptr ? ToFloat(bias[pair_distance + j]) : 0.0f;
    results.value[j] = GatedValue<T>(activation, gate.value[j] + add_gate, up.value[j] + add_up);
  }
  StoreFour(results, is_aligned, 4, out);
}

// The outputs of a GEMM, as in SkinnyLinearArgs.
struct TileResults {
  const void* bias;
  void* out;
  int64_t out_stride;
  int num_rows;
  int out_features;
  bool is_gated = false;
  Activation activation = Activation::kSilu;
};

// Adds the sources of the owned rows of each tile. `thread`: index among the kAddThreads threads.
template <typename T, typename Out>
__device__ void AddTiles(const TileResults& results, const TileLinearPlan& plan,
                         const TileMemory& memory, const float* sums, int thread, int rank,
                         int cluster_id) {
  const int owned = plan.owned_rows(), stride = plan.sums_stride();
  const int source_stride = plan.columns * stride;
  // tile_rows and owned are multiples of 8, so the four elements of a row are aligned if the first
  // row's are.
  const bool is_aligned = reinterpret_cast<uintptr_t>(results.out) % (4 * sizeof(Out)) == 0 &&
                          results.out_stride % 4 == 0;
  // Only GEMMs whose results have the dtype of x can be gated.
  const bool is_gated = std::is_same_v<T, Out> && results.is_gated;
  const int fours = is_gated ? owned / 8 : owned / 4;
  uint32_t tile_parity = 0;
  for (int tile = cluster_id; tile < plan.num_tiles; tile += plan.num_clusters) {
    AwaitPhase(memory.summed, tile_parity);
    const int first = tile * plan.tile_rows + rank * owned;
    const int count = min(min(owned, plan.tile_rows - rank * owned), results.out_features - first);
    for (int e = thread; e < results.num_rows * fours; e += kAddThreads) {
      const int row = e / fours, column = e % fours * 4;
      // The first 8 of every 16 rows of a gated tile are the gate.
      const int i = is_gated ? column / kTileUnit * kGatedTileUnit + column % kTileUnit : column;
      if (i >= count) continue;
      if constexpr (std::is_same_v<T, Out>) {
        if (is_gated) {
          const int feature = first / 2 + column;
          AddGatedFour(
              sums + row * stride + i, plan.num_sources(), source_stride,
              results.bias != nullptr ? static_cast<const T*>(results.bias) + feature : nullptr,
              results.out_features / 2, results.activation, is_aligned,
              static_cast<T*>(results.out) + row * results.out_stride + feature);
          continue;
        }
      }
      AddFour(sums + row * stride + i, plan.num_sources(), source_stride,
              results.bias != nullptr ? static_cast<const T*>(results.bias) + first + i : nullptr,
              is_aligned, count - i,
              static_cast<Out*>(results.out) + row * results.out_stride + first + i);
    }
    // Skips the last tile: a CTA of the cluster must not arrive at a barrier of a CTA that may have
    // ended.
    if (tile + plan.num_clusters < plan.num_tiles) {
      __syncwarp();
      // Uses one lane per CTA; in a build for racecheck, all lanes arrive at each CTA.
      constexpr int kLanes = 32 / kArrivalsOfWarp;
      for (int to = thread % kLanes; to < plan.form.cluster; to += kLanes) {
        ArriveInCluster(ClusterAddress(memory.read, to));
      }
    }
    tile_parity ^= 1;
  }
}

// Called first by all threads of a CTA. Initialises the barriers and calls ArriveAtCluster().
template <typename Plan>
__device__ void BeginTileCta(const Plan& plan, const TileMemory& memory) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      InitBarrier(memory.full + i * 8, 2);
      InitBarrier(memory.empty + i * 8, plan.form.row_groups * kGroupWarps * kArrivalsOfWarp);
    }
    InitBarrier(memory.summed, plan.form.groups() * kGroupWarps * kArrivalsOfWarp);
    InitBarrier(memory.read, plan.form.cluster * kAddWarps * kArrivalsOfWarp);
    PublishBarriers();
  }
  __syncthreads();
  ArriveAtCluster();
}

// Called last by all threads of a CTA. In a build for racecheck (base/warp_arrivals.cuh), the CTAs
// of a cluster end together, because racecheck does not recognise that a CTA waits for the stores
// of other CTAs to its memory.
__device__ inline void EndTileCta() {
  if constexpr (kArrivalsOfWarp > 1) {
    __syncwarp();
    ArriveAtCluster();
    AwaitCluster();
  }
}

// Looks up the driver's cuTensorMapEncodeTiled() at run time, which avoids linking the driver.
struct TileMapEncoder {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  cudaError_t error = cudaSuccess;

  static TileMapEncoder Find() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    TileMapEncoder encoder;
    encoder.error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                     cudaEnableDefault, &result);
    if (encoder.error == cudaSuccess && result != cudaDriverEntryPointSuccess) {
      encoder.error = cudaErrorSymbolNotFound;
    }
    encoder.encode = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
    return encoder;
  }
};

// A 16-bit matrix, or an 8-bit matrix (DType::kFp8E4M3).
struct TileMatrix {
  DType dtype;
  const void* data;
  int64_t stride;  // elements
  int rows;
  int elements;  // per row

  int element_bytes() const { return dtype == DType::kFp8E4M3 ? 1 : 2; }
  int box_elements() const { return kTileBoxLine / element_bytes(); }
};

inline const TileMapEncoder& TileEncoder() {
  static const TileMapEncoder encoder = TileMapEncoder::Find();
  return encoder;
}

inline CUtensorMapDataType TileDataType(DType dtype) {
  return dtype == DType::kFp8E4M3    ? CU_TENSOR_MAP_DATA_TYPE_UINT8
         : dtype == DType::kBFloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

inline absl::Status FromEncoder(CUresult result) {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cuTensorMapEncodeTiled failed with ", static_cast<int>(result)));
}

// Makes the map of a gated GEMM's weight for CopyPairedBoxes(), which copies num_boxes boxes of
// `box_rows` rows per call. REQUIRES: a row consists of whole boxes.
inline absl::Status MakePairedTensorMap(const TileMatrix& matrix, int box_rows, int num_boxes,
                                        CUtensorMap& map) {
  const TileMapEncoder& encoder = TileEncoder();
  REPRISE_RETURN_IF_ERROR(CudaStatus(encoder.error, "cudaGetDriverEntryPointByVersion"));
  const cuuint64_t row = static_cast<cuuint64_t>(matrix.stride) * matrix.element_bytes();
  const cuuint64_t half = matrix.rows / 2;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.box_elements()), kTileUnit, 2,
                              half / kTileUnit,
                              static_cast<cuuint64_t>(matrix.elements / matrix.box_elements())};
  const cuuint64_t strides[] = {row, half * row, kTileUnit * row, kTileBoxLine};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(matrix.box_elements()), kTileUnit, 2,
                            static_cast<cuuint32_t>(box_rows / kGatedTileUnit),
                            static_cast<cuuint32_t>(num_boxes)};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  return FromEncoder(
      encoder.encode(&map, TileDataType(matrix.dtype), 5, const_cast<void*>(matrix.data), sizes,
                     strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

// Makes a map whose boxes have `box_rows` rows of 128 bytes. If num_boxes > 0, one copy copies
// num_boxes boxes as a third dimension, which requires rows of whole boxes.
inline absl::Status MakeTensorMap(const TileMatrix& matrix, int box_rows, int num_boxes,
                                  CUtensorMap& map) {
  const TileMapEncoder& encoder = TileEncoder();
  REPRISE_RETURN_IF_ERROR(CudaStatus(encoder.error, "cudaGetDriverEntryPointByVersion"));
  const bool at_once = num_boxes > 0;
  const int box_elements = matrix.box_elements();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(at_once ? box_elements : matrix.elements),
                              static_cast<cuuint64_t>(matrix.rows),
                              static_cast<cuuint64_t>(matrix.elements / box_elements)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.stride) * matrix.element_bytes(),
                                kTileBoxLine};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_elements),
                            static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(num_boxes)};
  const cuuint32_t steps[] = {1, 1, 1};
  return FromEncoder(encoder.encode(
      &map, TileDataType(matrix.dtype), at_once ? 3 : 2, const_cast<void*>(matrix.data), sizes,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
}

inline constexpr int kMaxTileDevices = 64;

// Returns the current device if it can run tile kernels. `name`: the kernel's name, for messages.
inline absl::StatusOr<int> TileDevice(const char* name) {
  int device = 0, major = 0;
  REPRISE_RETURN_IF_ERROR(CudaStatus(cudaGetDevice(&device), "cudaGetDevice"));
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                 "cudaDeviceGetAttribute"));
  if (major != 9 || device >= kMaxTileDevices) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": expected compute capability 9.0, got ", major, ".x"));
  }
  return device;
}

// Launches one tile kernel.
template <auto kKernel>
struct TileLauncher {
  // Returns the number of clusters of this form that the device can run concurrently. All plans use
  // more than half of an SM's shared memory, so the result only depends on the cluster size.
  // `num_rows`: any number of rows of x that fits the kernel's columns.
  static absl::StatusOr<int> MaxClusters(const TileForm& form, int num_rows, int device) {
    // Number of concurrent clusters of 1, 2 and 4 CTAs; 0: not determined yet.
    static std::array<std::array<std::atomic<int>, 3>, kMaxTileDevices> devices = {};
    std::atomic<int>& known = devices[device][form.cluster == 4 ? 2 : form.cluster - 1];
    int count = known.load(std::memory_order_relaxed);
    if (count > 0) return count;
    const TileLinearPlan plan = PlanTileLinear(form, num_rows, 1, 1, 1);
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

  template <typename... Arguments>
  static absl::Status Launch(const char* name, const TileLinearPlan& plan, cudaStream_t stream,
                             const Arguments&... arguments) {
    REPRISE_RETURN_IF_ERROR(Prepare(plan.shared_bytes));
    cudaLaunchAttribute attributes[2];
    const cudaLaunchConfig_t config = Config(plan, plan.num_clusters, stream, attributes);
    return CudaStatus(cudaLaunchKernelEx(&config, kKernel, arguments...), name);
  }

 private:
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
    config.blockDim = plan.threads();
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
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_FEW_ROWS_TILE_PIPELINE_CUH_
