// Synchronisation among the warpgroups of a CTA: barriers in shared memory (mbarrier), at which
// threads arrive early and wait late, and the rings of stages that they guard. Compute capability
// 9.0.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_BARRIER_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_BARRIER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/base/warp_arrivals.cuh"

namespace reprise {

// Arrives at the CTA's barrier `index` (MeetAt()) without waiting, as one of the `num_threads` that
// meet there.
__device__ __forceinline__ void ArriveAt(int index, int num_threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(index), "r"(num_threads) : "memory");
}

// A value that is the same in all threads of the warp, in a form from which the compiler knows it:
// what follows from it is computed once for the warp. Called by all threads of the warp.
__device__ __forceinline__ int SameInWarp(int value) { return __shfl_sync(kFullWarp, value, 0); }

// A barrier with phases. Each is complete when as many threads have arrived as Init() was told.
class Barrier {
 public:
  // Called by one thread, before the CTA synchronises.
  __device__ __forceinline__ void Init(int num_arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(Address()), "r"(num_arrivals)
                 : "memory");
  }

  __device__ __forceinline__ void Arrive() {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(Address()) : "memory");
  }

  // Arrives for the warp, as kArrivalsOfWarp. Called by all threads of the warp, when all of them
  // are done with what it guards.
  __device__ __forceinline__ void ArriveAsWarp() {
    if (ArrivesForWarp()) Arrive();
  }

  // Whether phase `count`, counted from 0, is over. REQUIRES: it is the current phase or the one
  // before; so -1 is over before any arrival.
  __device__ __forceinline__ bool IsOver(int count) {
    uint32_t is_over;
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "mbarrier.test_wait.parity.shared.b64 over, [%1], %2;\n"
        "selp.u32 %0, 1, 0, over;\n"
        "}\n"
        : "=r"(is_over)
        : "r"(Address()), "r"(count & 1)
        : "memory");
    return is_over;
  }

  // Waits until IsOver(count).
  __device__ __forceinline__ void Wait(int count) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again_%=:\n"
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n"
        "}\n" ::"r"(Address()),
        "r"(count & 1)
        : "memory");
  }

 private:
  __device__ __forceinline__ uint32_t Address() { return SharedAddress(&state_); }

  uint64_t state_;
};

// A ring of kStages places in shared memory: one warpgroup fills them, others use them, in order.
// Fill n is in place n % kStages.
template <int kStages>
class BarrierRing {
 public:
  // Called by one thread. `num_fillers` arrive at a place when they have filled it, `num_users`
  // when they no longer use it.
  __device__ __forceinline__ void Init(int num_fillers, int num_users) {
    for (int i = 0; i < kStages; ++i) {
      there_[i].Init(num_fillers);
      free_[i].Init(num_users);
    }
  }

  __device__ __forceinline__ Barrier& there(int n) { return there_[n % kStages]; }
  __device__ __forceinline__ Barrier& free(int n) { return free_[n % kStages]; }

  __device__ __forceinline__ void WaitUntilThere(int n) { there(n).Wait(n / kStages); }
  __device__ __forceinline__ bool IsFree(int n) { return free(n).IsOver(n / kStages - 1); }
  __device__ __forceinline__ void WaitUntilFree(int n) { free(n).Wait(n / kStages - 1); }

 private:
  Barrier there_[kStages];
  Barrier free_[kStages];
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_BARRIER_CUH_
