#include <cuda_runtime.h>

#include "reprise/attention/testing/late_copy.h"
#include "reprise/base/dependent_launch.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 128;

__device__ uint64_t NowNs() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void LateCopyKernel(int32_t* to, const int32_t* from, int count, int delay_us) {
  TriggerDependents();
  GridDependencySync();
  const uint64_t end = NowNs() + static_cast<uint64_t>(delay_us) * 1000;
  while (NowNs() < end) {
  }
  for (int i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

}  // namespace

cudaError_t LaunchLateCopy(int32_t* to, const int32_t* from, int count, int delay_us,
                           cudaStream_t stream) {
  return LaunchDependent(LateCopyKernel, dim3(1), dim3(kThreads), 0, stream, to, from, count,
                         delay_us);
}

}  // namespace reprise
