// Kernels that start while the preceding kernel ends (programmatic dependent launch, compute
// capability 9.0 or later). This hides most of the launch latency of about 1 us.
//
//   __global__ void ScaleKernel(ScaleParams params) {
//     TriggerDependents();
//     const int64_t i = ...;        // uses only parameters and indices
//     GridDependencySync();
//     params.x[i] *= params.scale;  // memory has the same contents as in a plain launch
//   }
//   cudaError_t error = LaunchDependent(ScaleKernel, grid, threads, shared_bytes, stream, params);
//
// Every thread of such a kernel must call GridDependencySync() before it accesses memory. A thread
// without work must call it too, because later work relies on the kernel ending after all earlier
// work. The stream's work is then ordered as usual, including kernels with plain launches. May be
// captured. On older devices this is a plain launch.

#ifndef REPRISE_BASE_DEPENDENT_LAUNCH_CUH_
#define REPRISE_BASE_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace reprise {

// Allows the next kernel of the stream, if launched by LaunchDependent(), to start once all CTAs of
// this kernel have called this function or ended. GridDependencySync() in the next kernel still
// waits until this kernel has ended.
__device__ inline void TriggerDependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits until all preceding kernels have ended and their writes are visible.
__device__ inline void GridDependencySync() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Starts loading the memory at `address` into the L2 cache. May be called before
// GridDependencySync(): it returns no value, and later writes update the L2 cache.
__device__ inline void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// LaunchDependent() with clusters of CTAs (base/cluster.cuh). There are no clusters on devices
// before 9.0, or if the kernel's machine code was compiled for such devices; each CTA is then its
// own cluster.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependentClusters(void (*kernel)(Parameters...), dim3 grid, dim3 cluster,
                                    dim3 cta, size_t shared_bytes, cudaStream_t stream,
                                    const Arguments&... arguments) {
  // Only code that was compiled for 9.0 or later waits. On newer devices, the driver may run
  // machine code that it compiled from PTX for 8.0, and that code does not wait.
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

// Enqueues kernel(arguments...) on `stream`. REQUIRES: the stream belongs to the current device.
// Sets the shared-memory carveout to its maximum. An SM changes its carveout only while idle, so a
// smaller carveout would keep a next kernel with much shared memory from becoming co-resident.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 grid, dim3 cta, size_t shared_bytes,
                            cudaStream_t stream, const Arguments&... arguments) {
  return LaunchDependentClusters(kernel, grid, dim3(1), cta, shared_bytes, stream, arguments...);
}

}  // namespace reprise

#endif  // REPRISE_BASE_DEPENDENT_LAUNCH_CUH_
