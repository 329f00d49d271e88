// Launch of the kernel that makes a work map on the device. Torch-free.

#ifndef ATTENTION_KERNELS_WORK_MAP_KERNEL_H_
#define ATTENTION_KERNELS_WORK_MAP_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/work_map.h"
#include "attention/work_map_rows.h"
#include "attention/work_map_sums.h"

namespace reprise {

// A work map has one map of tiles, or two.
struct WorkMapJob {
  WorkMapRows rows = {};
  TileMap maps[2] = {};
  QueryLens lens[2] = {};
  WorkMapSums sums[2] = {};  // of the launch
  int num_maps = 0;
};

// One kernel on `stream`; device pointers throughout.
cudaError_t LaunchWorkMapKernel(WorkMapJob job, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WORK_MAP_KERNEL_H_
