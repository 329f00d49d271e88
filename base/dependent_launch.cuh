// Kernels that come in while the kernel before them ends: what a launch costs, about a microsecond,
// is then mostly hidden (CUDA's programmatic dependent launch, from compute capability 9.0 on).
//
//   __global__ void ScaleKernel(ScaleParams params) {
//     LetNextKernelIn();
//     const int64_t i = ...;        // of the parameters and indices only
//     AwaitKernelBefore();
//     params.x[i] *= params.scale;  // memory is as after a plain launch
//   }
//   cudaError_t error = LaunchDependent(ScaleKernel, grid, threads, shared_bytes, stream, params);
//
// A kernel launched so must call AwaitKernelBefore() in every thread: before it touches memory, and
// before the thread ends even if it has nothing to do. What comes after the kernel relies on its
// end being after the end of all that came before. With that, order on the stream is as ever, for
// kernels launched in the plain way too. May be captured. On older devices: a plain launch.

#ifndef BASE_DEPENDENT_LAUNCH_CUH_
#define BASE_DEPENDENT_LAUNCH_CUH_

#include <cuda_runtime_api.h>

#include <cstddef>

namespace reprise {

// Lets the next kernel of the stream, if launched by LaunchDependent(), start once all CTAs of this
// one have called this or ended. It waits for the end of this one all the same.
__device__ inline void LetNextKernelIn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when the kernels before have ended, and sees what they wrote.
__device__ inline void AwaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Begins to bring what stands at `address` into the L2 cache. Reads nothing, so it may come before
// AwaitKernelBefore(): whoever changes it changes it there.
__device__ inline void PrefetchToL2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

// Enqueues kernel(arguments...) on `stream`, which must be of the current device.
template <typename... Parameters, typename... Arguments>
cudaError_t LaunchDependent(void (*kernel)(Parameters...), dim3 grid, dim3 cta, size_t shared_bytes,
                            cudaStream_t stream, const Arguments&... arguments) {
  // What runs must be what was compiled for 9.0 or later, and so waits: not, say, machine code that
  // a newer device's driver made of PTX for 8.0.
  cudaFuncAttributes compiled;
  const cudaError_t error = cudaFuncGetAttributes(&compiled, kernel);
  if (error != cudaSuccess) return error;

  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = cta;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = compiled.ptxVersion >= 90 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}

}  // namespace reprise

#endif  // BASE_DEPENDENT_LAUNCH_CUH_
