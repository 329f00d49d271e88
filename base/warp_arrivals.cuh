// Arrival of a warp at a barrier in shared memory (mbarrier) that counts warps. A special build
// makes the arrivals visible to racecheck of compute-sanitizer. Device code only.

#ifndef REPRISE_BASE_WARP_ARRIVALS_CUH_
#define REPRISE_BASE_WARP_ARRIVALS_CUH_

namespace reprise {

// Number of arrivals per warp. One arrival of one lane after a __syncwarp() is sufficient. However,
// racecheck only orders the earlier accesses of the arriving thread itself, so in a build for
// racecheck (--config=racecheck) every lane arrives.
#ifdef REPRISE_EVERY_LANE_ARRIVES
constexpr int kArrivalsOfWarp = 32;
#else
constexpr int kArrivalsOfWarp = 1;
#endif

// Whether the calling lane must arrive on behalf of its warp.
__device__ __forceinline__ bool ArrivesForWarp() {
  return kArrivalsOfWarp > 1 || threadIdx.x % 32 == 0;
}

}  // namespace reprise

#endif  // REPRISE_BASE_WARP_ARRIVALS_CUH_
