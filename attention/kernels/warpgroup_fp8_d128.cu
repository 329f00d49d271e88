#include "attention/kernels/warpgroup_kernel.cuh"

namespace reprise {

template cudaError_t LaunchWarpgroupAttention<DType::kFloat16, 128, KvLoading::kFp8>(
    const AttentionKernelParams&, cudaStream_t);
template int WarpgroupSharedBytes<DType::kFloat16, 128, KvLoading::kFp8>();

}  // namespace reprise
