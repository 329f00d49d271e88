// The CUDA path of PagedAttention() and RaggedAttention() (attention/attention.h): turns tensors
// and batches into the parameters of a kernel and launches it on LibTorch's current stream.
//
// There is one launch, or two where rows of few and of many queries have a map each
// (attention/work_map/work_map.h). There is no synchronisation and no allocation, so calls may be
// captured. All pointers of batch, layer, kv and work are on the device of q.
//
// REQUIRES what PagedAttention() checks: shapes, last strides of 1, devices, options within their
// range. The map of `work` was planned for a layer of these heads and head dims and for q's dtype, and
// was filled earlier on the stream by LaunchWorkMap(), which returned `work`. No other kernel uses the
// map at the same time.
//
// Errors, returned before anything is launched: InvalidArgument for a map that was not made, or was
// made for other sizes, or work of another batch or a narrower window (CheckBatchWork());
// Unimplemented, naming what is supported, for dtypes and head dims that no kernel serves
// (attention/cuda/attention_dispatch.h), and in builds without CUDA; Internal if a launch fails.

#ifndef REPRISE_ATTENTION_CUDA_ATTENTION_CUDA_H_
#define REPRISE_ATTENTION_CUDA_ATTENTION_CUDA_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// The cache that the contiguous k and v of a ragged batch are: one block of all keys. The kernels only
// read it.
KvLayer RaggedKv(const AttentionParams& layer, const ContiguousKeys& keys);

absl::Status PagedAttentionCuda(const AttentionParams& layer, const PagedBatch& batch,
                                const BatchWork& work, const at::Tensor& q, const KvLayer& kv,
                                const AttentionOutput& output, const AttentionExtras& extras = {});

absl::Status RaggedAttentionCuda(const AttentionParams& layer, const RaggedBatch& batch,
                                 const BatchWork& work, const at::Tensor& q,
                                 const ContiguousKeys& keys, const AttentionOutput& output,
                                 const AttentionExtras& extras = {});

// Which kernel these would launch, "bfloat16.d128.rows128.warpgroup", or both, joined by " + ": for
// logs, benchmarks and tests. Launches nothing. Errors: as above.
absl::StatusOr<std::string> PagedAttentionKernelName(const AttentionParams& layer,
                                                     const PagedBatch& batch, const BatchWork& work,
                                                     const at::Tensor& q, const KvLayer& kv,
                                                     at::Tensor& out,
                                                     const AttentionExtras& extras = {});
absl::StatusOr<std::string> RaggedAttentionKernelName(const AttentionParams& layer,
                                                      const RaggedBatch& batch,
                                                      const BatchWork& work, const at::Tensor& q,
                                                      const ContiguousKeys& keys, at::Tensor& out,
                                                      const AttentionExtras& extras = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_ATTENTION_CUDA_H_
