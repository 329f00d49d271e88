// How a warp arrives at a barrier in shared memory (mbarrier) that counts warps, in a form that
// racecheck of compute-sanitizer can follow on request. Device code only.

#ifndef REPRISE_BASE_WARP_ARRIVALS_CUH_
#define REPRISE_BASE_WARP_ARRIVALS_CUH_

namespace reprise {

// How often a warp arrives. Once, by one lane behind a __syncwarp(), would do. But racecheck takes
// only what the arriving thread itself has done before as ordered; in a build for it
// (--config=racecheck) every lane arrives.
#ifdef REPRISE_EVERY_LANE_ARRIVES
constexpr int kArrivalsOfWarp = 32;
#else
constexpr int kArrivalsOfWarp = 1;
#endif

// Whether the calling lane arrives for its warp.
__device__ __forceinline__ bool ArrivesForWarp() {
  return kArrivalsOfWarp > 1 || threadIdx.x % 32 == 0;
}

}  // namespace reprise

#endif  // REPRISE_BASE_WARP_ARRIVALS_CUH_
