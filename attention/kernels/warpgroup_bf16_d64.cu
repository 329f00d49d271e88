#include "attention/kernels/warpgroup_kernel.cuh"

namespace reprise {

template cudaError_t LaunchWarpgroupAttention<DType::kBFloat16, 64, KvLoading::kDirect>(
    const AttentionKernelParams&, cudaStream_t);
template int WarpgroupSharedBytes<DType::kBFloat16, 64, KvLoading::kDirect>();

}  // namespace reprise
