#include "third_party/cuda_test_kernel.h"

namespace reprise {
namespace {

__global__ void AddOneKernel(float* values, int num_values) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < num_values) values[i] += 1.0f;
}

}  // namespace

cudaError_t LaunchAddOne(float* values, int num_values, cudaStream_t stream) {
  AddOneKernel<<<(num_values + 255) / 256, 256, 0, stream>>>(values, num_values);
  return cudaGetLastError();
}

}  // namespace reprise
