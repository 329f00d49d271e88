#include "attention/kernels/warpgroup_kernel.cuh"

namespace reprise {

template cudaError_t LaunchWarpgroupAttention<DType::kBFloat16, 128>(const AttentionKernelParams&,
                                                                     cudaStream_t);
template int WarpgroupSharedBytes<DType::kBFloat16, 128>();

}  // namespace reprise
