// Tier 2 kernels for many queries per row on Hopper (wgmma). K and V are 16-bit and loaded
// unconverted, or fp8 and converted to float16 in shared memory.
//
// Algorithm. The algorithm of attention_kernel.cuh over the same items, with three warpgroups per
// CTA as in FlashAttention-3 (Shah et al. 2024). One producer warpgroup copies
// (warpgroup_loader.cuh). Two consumer warpgroups compute 64 rows of the tile each
// (warpgroup_attend.cuh), and usually start the MMAs of plain units in ping-pong order. In the loop
// over the KV tiles of plain units, the warpgroups otherwise synchronise only through the barriers
// of rings of stages (warpgroup_barrier.cuh). Copies run ahead across units: the next unit's keys
// arrive while the last keys of a unit are in use and its results are written from registers. With
// fp8 K and V, the producer also converts to float16 (warpgroup_conversion.cuh), because it would
// otherwise be idle while copies are in flight.
//
// Bound. Tensor cores: 4 x rows x keys x head_dim FLOP, with one tile of 128 rows per SM at a time.
//
// Each entry of this family has two kernels: a kernel for every unit, and a kernel for calls
// that have only plain units (HasOnlyPlainUnits()), which are most calls. Without the code for
// other units, the second kernel does not spill registers. A spill would have to wait for the
// copies in flight.
//
// A KV tile is masked only if some row does not see all of its keys. In special units
// (warpgroup_unit.cuh), keys that no row of the tile sees may be between visible keys. Their V rows
// are zeroed before the MMA, so memory that no query sees may hold NaN. In other units such keys
// are not loaded.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_KERNEL_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_KERNEL_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel.cuh"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/cuda/hopper/warpgroup_attend.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_loader.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_results.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_shared.cuh"
#include "reprise/attention/cuda/hopper/warpgroup_traits.cuh"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/tile_schedule/cta_units.h"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {

// The consumer warpgroups' loop over the units of the CTA.
template <typename Traits>
__device__ __forceinline__ void AttendUnits(const AttentionKernelParams& p,
                                            WarpgroupShared<Traits>& shared) {
  const CtaUnits units(p.work, blockIdx.x);
  const int num_units = SameInWarp(units.count());
  int step = 0;
  PingPongOrder<Traits>::Begin();
#pragma unroll 1
  for (int n = 0; n < num_units; ++n) {
    shared.queries.WaitUntilFull(n);
    PreparedUnit<Traits>& prepared = shared.unit(n);
    const int num_steps = SameInWarp(prepared.num_steps);
    OnlineSoftmax<Traits> softmax;
    if (!Traits::kOnlyPlain && (SameInWarp(prepared.is_special) || p.softcap > 0.0f)) {
      WarpgroupAttention<Traits, false>(p, prepared, shared).Attend(softmax, n, step, num_steps);
    } else {
      WarpgroupAttention<Traits, true>(p, prepared, shared).Attend(softmax, n, step, num_steps);
    }
    step += num_steps;
    FinishWarpgroupUnit<Traits>(p, prepared, softmax, shared, n);
    __syncwarp();
    shared.queries.free(n).ArriveAsWarp();
  }
  ClearInertTokens<Traits>(p);
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kAllThreads, 1)
    WarpgroupKernel(const __grid_constant__ AttentionKernelParams p) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<WarpgroupShared<Traits>*>(shared_memory);
  if (threadIdx.x == 0) {
    constexpr int kUsers = kArrivalsOfWarp * (Traits::kThreads / 32);
    shared.queries.Init(Traits::kLoaderThreads, kUsers);
    shared.keys.Init(Traits::kLoaderThreads, kUsers);
    shared.values.Init(Traits::kLoaderThreads, kUsers);
    shared.results_are_out.Init(Traits::kThreads);
  }
  if (threadIdx.x < 3 * Traits::kKeys / 32) (&shared.seen[0][0])[threadIdx.x] = 0;
  __syncthreads();
  GridDependencySync();
  TriggerDependents();
  if (threadIdx.x >= Traits::kThreads) {
    RegDealloc<Traits::kLoaderRegisters>();
    WarpgroupLoader<Traits>(p, shared).Load();
  } else {
    RegAlloc<Traits::kRegisters>();
    AttendUnits<Traits>(p, shared);
  }
}

template <typename Traits>
cudaError_t LaunchWarpgroups(const AttentionKernelParams& params, cudaStream_t stream) {
  constexpr int kSharedBytes = sizeof(WarpgroupShared<Traits>);
  static_assert(kSharedBytes <= Traits::kKernel.shared_bytes());
  constexpr int kThreads = Traits::kAllThreads;
  const auto kernel = &WarpgroupKernel<Traits>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  return LaunchDependent(kernel, params.work.num_ctas, kThreads, kSharedBytes, stream, params);
}

template <int kKernel>
cudaError_t LaunchWarpgroupAttention(const AttentionKernelParams& params, cudaStream_t stream) {
  constexpr AttentionTile kTile = kAttentionKernels[kKernel].tile;
  constexpr KvLoading kLoading = kAttentionKernels[kKernel].loading;
  using PlainTraits =
      WarpgroupTraits<kTile.dtype, kTile.head_dim_qk, kTile.head_dim_v, kLoading, true>;
  if (HasOnlyPlainUnits<PlainTraits>(params)) {
    return LaunchWarpgroups<PlainTraits>(params, stream);
  }
  return LaunchWarpgroups<
      WarpgroupTraits<kTile.dtype, kTile.head_dim_qk, kTile.head_dim_v, kLoading, false>>(params,
                                                                                          stream);
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_KERNEL_CUH_
