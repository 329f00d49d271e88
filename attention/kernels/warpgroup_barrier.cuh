// How the warpgroups of a CTA wait for each other: barriers in shared memory (mbarrier), which
// threads arrive at early and wait for late, and the rings of stages that they guard.
// Compute capability 9.0.

#ifndef ATTENTION_KERNELS_WARPGROUP_BARRIER_CUH_
#define ATTENTION_KERNELS_WARPGROUP_BARRIER_CUH_

#include <cstdint>

#include "attention/kernels/device_primitives.cuh"

namespace reprise {

// Phases come one after the other; each is complete when as many have arrived as Init() was told.
class Barrier {
 public:
  // By one thread, before the CTA meets.
  __device__ __forceinline__ void Init(int num_arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(Address()), "r"(num_arrivals)
                 : "memory");
  }

  __device__ __forceinline__ void Arrive() {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(Address()) : "memory");
  }

  // Whether phase `count` is over, counted from 0, which is the one under way or the one before it;
  // so -1 is over before anybody has arrived.
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

  // Waits until it is.
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
  // By one thread. `num_fillers` arrive at a place that they have filled, `num_users` at one that
  // they have done with.
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

#endif  // ATTENTION_KERNELS_WARPGROUP_BARRIER_CUH_
