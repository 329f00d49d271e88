#include <cuda_runtime_api.h>

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "tests/gpu/delay_kernels.h"

namespace reprise {
namespace {

__global__ void DelayKernel(const volatile uint32_t* microseconds) {
  TriggerDependents();
  GridDependencySync();
  const uint64_t wanted = uint64_t{*microseconds} * 1000;
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin)::"memory");
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  } while (now - begin < wanted);
}

__global__ void AddOneKernel(const volatile int32_t* from, int32_t* to, ReadOrder order) {
  TriggerDependents();
  int32_t value = order == ReadOrder::kBeforeWait ? *from : 0;
  GridDependencySync();
  if (order == ReadOrder::kAfterWait) value = *from;
  *to = value + 1;
}

}  // namespace

absl::Status LaunchDelay(const uint32_t* microseconds, CUstream_st* stream) {
  const volatile uint32_t* const argument = microseconds;
  return CudaStatus(LaunchDependent(DelayKernel, 1, 1, 0, stream, argument), "Delay");
}

absl::Status LaunchAddOne(const int32_t* from, int32_t* to, ReadOrder order, CUstream_st* stream) {
  const volatile int32_t* const argument = from;
  return CudaStatus(LaunchDependent(AddOneKernel, 1, 1, 0, stream, argument, to, order), "AddOne");
}

}  // namespace reprise
