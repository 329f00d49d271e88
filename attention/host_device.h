// Marks functions that are compiled for the host and for the device: one piece of code, so that
// what the host tests is what the device runs. Means nothing to a compiler other than nvcc.

#ifndef ATTENTION_HOST_DEVICE_H_
#define ATTENTION_HOST_DEVICE_H_

#if defined(__CUDACC__)
#define REPRISE_HOST_DEVICE __host__ __device__
#else
#define REPRISE_HOST_DEVICE
#endif

#endif  // ATTENTION_HOST_DEVICE_H_
