// Marks functions that are compiled for the host and the device, so that host tests run the same
// code as the device. Empty for compilers other than nvcc.

#ifndef REPRISE_BASE_HOST_DEVICE_H_
#define REPRISE_BASE_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define REPRISE_HOST_DEVICE __host__ __device__
#else
#define REPRISE_HOST_DEVICE
#endif

// Put this before a loop to keep the device compiler from unrolling it, possibly to hundreds of
// iterations.
#if defined(__CUDA_ARCH__)
#define REPRISE_DO_NOT_UNROLL _Pragma("unroll 1")
#else
#define REPRISE_DO_NOT_UNROLL
#endif

#endif  // REPRISE_BASE_HOST_DEVICE_H_
