// Kernels that start while the kernel before them ends, which mostly hides the cost of a launch,
// about a microsecond (CUDA's programmatic dependent launch, from compute capability 9.0 on).
//
//   __global__ void ScaleKernel(ScaleParams params) {
//     LetNextKernelIn();
//     const int64_t i = ...;        // from parameters and indices only
//     AwaitKernelBefore();
//     params.x[i] *= params.scale;  // memory is as after a plain launch
//   }
//   cudaError_t error = LaunchDependent(ScaleKernel, grid, threads, shared_bytes, stream, params);
//
// Such a kernel must call AwaitKernelBefore() in every thread: before it touches memory, and before
// the thread ends even if it has nothing to do. Later work relies on the kernel ending after all
// work before it. Under this rule the order on the stream is the usual one, also for kernels with
// plain launches. May be captured. On older devices: a plain launch.

#ifndef REPRISE_BASE_DEPENDENT_LAUNCH_CUH_
#define REPRISE_BASE_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace reprise {

// Lets the next kernel of the stream, if launched by LaunchDependent(), start once all CTAs of this
// one have called this or ended. Its AwaitKernelBefore() still waits for the end of this one.
__device__ inline void LetNextKernelIn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels before have ended and their writes are visible.
__device__ inline void AwaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Starts loading the memory at `address` into the L2 cache. It returns no value, so it may come
// before AwaitKernelBefore(): later writes update the L2 cache.
__device__ inline void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// LaunchDependent(), in clusters of CTAs (base/cluster.cuh). On devices older than 9.0, and where
// the machine code is for such, there are no clusters, and each CTA is one of its own.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependentClusters(void (*kernel)(Parameters...), dim3 grid, dim3 cluster,
                                    dim3 cta, size_t shared_bytes, cudaStream_t stream,
                                    const Arguments&... arguments) {
  // Only code that was compiled for 9.0 or later waits. A newer device's driver may run machine
  // code that it made from PTX for 8.0, which does not.
  cudaFuncAttributes compiled;
  const cudaError_t error = cudaFuncGetAttributes(&compiled, kernel);
  if (error != cudaSuccess) return error;
  const cudaError_t preferred = cudaFuncSetAttribute(
      kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (preferred != cudaSuccess) return preferred;

  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = cluster.x;
  attributes[1].val.clusterDim.y = cluster.y;
  attributes[1].val.clusterDim.z = cluster.z;
  const int num_attributes = cluster.x * cluster.y * cluster.z > 1 ? 2 : 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = cta;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = compiled.ptxVersion >= 90 ? num_attributes : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

// Enqueues kernel(arguments...) on `stream`, which must be of the current device. Such kernels prefer
// all of an SM's memory as shared memory: an SM changes the split only when it is idle, and a kernel
// that needs much shared memory could not start beside this one.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 grid, dim3 cta, size_t shared_bytes,
                            cudaStream_t stream, const Arguments&... arguments) {
  return LaunchDependentClusters(kernel, grid, dim3(1), cta, shared_bytes, stream, arguments...);
}

}  // namespace reprise

#endif  // REPRISE_BASE_DEPENDENT_LAUNCH_CUH_
