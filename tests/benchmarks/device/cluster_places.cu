#include <cuda_runtime.h>

#include "tests/benchmarks/device/cluster_places.h"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kSharedBytes = 80 * 1024;  // two fit

__global__ void __launch_bounds__(kThreads) PlaceKernel() {}

}  // namespace

cudaError_t CountClustersAtOnce(int cluster, int& count) {
  count = 0;
  const cudaError_t error =
      cudaFuncSetAttribute(PlaceKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = 1;
  attribute.val.clusterDim.y = static_cast<unsigned>(cluster);
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, static_cast<unsigned>(cluster) * 256);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaOccupancyMaxActiveClusters(&count, PlaceKernel, &config);
}

}  // namespace reprise
