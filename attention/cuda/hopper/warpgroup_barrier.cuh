// Synchronisation among the warpgroups of a CTA: mbarriers, at which threads arrive early and wait
// late, and the rings of stages that they guard. Compute capability 9.0.

#ifndef REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_BARRIER_CUH_
#define REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_BARRIER_CUH_

#include <cstdint>

#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/base/warp_arrivals.cuh"

namespace reprise {

// Arrives at named barrier `index` of the CTA (NamedBarrierSync()) without waiting, as one of its
// `num_threads` threads.
__device__ __forceinline__ void ArriveAt(int index, int num_threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(index), "r"(num_threads) : "memory");
}

// Returns a warp-uniform value in a form that the compiler recognises as uniform: computations that
// depend on it run once per warp. Called by all threads of the warp.
__device__ __forceinline__ int SameInWarp(int value) { return __shfl_sync(kFullWarp, value, 0); }

// An mbarrier. A phase completes after the number of arrivals that Init() was given.
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

  // Arrives for the warp, with kArrivalsOfWarp arrivals. Called by all threads of the warp, after
  // all of them have finished with the guarded memory.
  __device__ __forceinline__ void ArriveAsWarp() {
    if (ArrivesForWarp()) Arrive();
  }

  // Whether phase `count`, counted from 0, is complete. REQUIRES: it is the current or the previous
  // phase. Before any arrival, phase -1 is complete.
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

// A ring of kStages stages in shared memory. One warpgroup, the producer, fills the stages; the
// consumers use them in order. Fill n is in stage n % kStages, which has a full barrier, there(n),
// and an empty barrier, free(n):
// 1. The producer waits at the empty barrier until the consumers have released fill n - kStages.
//    The first kStages fills do not wait.
// 2. The producer threads write the stage. Each thread, or each warp for its threads, arrives at
//    the full barrier when its part is complete.
// 3. The consumers wait at the full barrier. Afterwards the fill is visible to them.
// 4. The consumers use the stage, and each warp arrives at the empty barrier when it no longer
//    does.
template <int kStages>
class BarrierRing {
 public:
  // Called by one thread. `num_fillers`: arrivals at a full barrier per fill. `num_users`: arrivals
  // at an empty barrier per fill.
  __device__ __forceinline__ void Init(int num_fillers, int num_users) {
    for (int i = 0; i < kStages; ++i) {
      there_[i].Init(num_fillers);
      free_[i].Init(num_users);
    }
  }

  __device__ __forceinline__ Barrier& there(int n) { return there_[n % kStages]; }
  __device__ __forceinline__ Barrier& free(int n) { return free_[n % kStages]; }

  __device__ __forceinline__ void WaitUntilFull(int n) { there(n).Wait(n / kStages); }
  __device__ __forceinline__ bool IsFree(int n) { return free(n).IsOver(n / kStages - 1); }
  __device__ __forceinline__ void WaitUntilEmpty(int n) { free(n).Wait(n / kStages - 1); }

 private:
  Barrier there_[kStages];
  Barrier free_[kStages];
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_HOPPER_WARPGROUP_BARRIER_CUH_
