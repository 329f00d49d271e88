// Launch of the kernel that makes a work map on the device. Torch-free.

#ifndef ATTENTION_KERNELS_WORK_MAP_KERNEL_H_
#define ATTENTION_KERNELS_WORK_MAP_KERNEL_H_

#include <cuda_runtime_api.h>

#include "attention/work_map.h"
#include "attention/work_map_rows.h"

namespace reprise {

// One CTA on `stream`; device pointers throughout.
cudaError_t LaunchWorkMapKernel(const WorkMapRows& rows, const WorkMap& map, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WORK_MAP_KERNEL_H_
