#ifndef THIRD_PARTY_CUDA_TEST_KERNEL_H_
#define THIRD_PARTY_CUDA_TEST_KERNEL_H_

#include <cuda_runtime_api.h>

namespace reprise {

cudaError_t LaunchAddOne(float* values, int num_values, cudaStream_t stream);

}  // namespace reprise

#endif  // THIRD_PARTY_CUDA_TEST_KERNEL_H_
