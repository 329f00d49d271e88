// The CUDA path of PagedAttention() and RaggedAttention() (attention/attention.h): converts tensors
// and batches to kernel parameters and launches the kernel on LibTorch's current stream.
//
// A call launches one kernel, or two kernels if the batch may have both short and long rows with
// separate tile schedules (attention/tile_schedule/tile_schedule.h). It neither synchronises nor
// allocates device memory, so it may be captured. All pointers of batch, layer, kv and work are on
// the device of q.
//
// REQUIRES: the checks of PagedAttention() have passed (shapes, last strides of 1, devices, ranges
// of options). The schedule of `work` was built earlier on the stream by LaunchTileSchedule(),
// which returned `work`. No other kernel uses the schedule at the same time.
//
// Errors. All but Internal are returned before anything is launched:
//   InvalidArgument  The schedule was not made, or was planned for other heads, head dims or dtype
//                    of q, or for smaller bounds. With RowAssignment::kByBatch: `work` belongs to
//                    another batch or to a narrower window (CheckBatchSchedule()). The dtype of q,
//                    or that of new_k and new_v, is wrong.
//   Unimplemented    No kernel serves the call, for example its dtypes and head dims; the message
//                    gives the supported options (attention/cuda/attention_dispatch.h). Also in
//                    builds without CUDA.
//   Internal         A CUDA call fails.

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
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Returns a cache view of a ragged batch's contiguous k and v: one block with all keys. Kernels
// only read it.
KvLayer RaggedKv(const AttentionParams& layer, const ContiguousKeys& keys);

absl::Status PagedAttentionCuda(const AttentionParams& layer, const PagedBatch& batch,
                                const BatchSchedule& work, const at::Tensor& q, const KvLayer& kv,
                                const AttentionOutput& output, const AttentionExtras& extras = {});

absl::Status RaggedAttentionCuda(const AttentionParams& layer, const RaggedBatch& batch,
                                 const BatchSchedule& work, const at::Tensor& q,
                                 const ContiguousKeys& keys, const AttentionOutput& output,
                                 const AttentionExtras& extras = {});

// Returns the name of the kernel that the call would launch, such as
// "bfloat16.d128.rows128.warpgroup", or both names, joined by " + ". For logs, benchmarks and
// tests. Launches nothing. Errors: as above.
absl::StatusOr<std::string> PagedAttentionKernelName(const AttentionParams& layer,
                                                     const PagedBatch& batch,
                                                     const BatchSchedule& work, const at::Tensor& q,
                                                     const KvLayer& kv, at::Tensor& out,
                                                     const AttentionExtras& extras = {});
absl::StatusOr<std::string> RaggedAttentionKernelName(const AttentionParams& layer,
                                                      const RaggedBatch& batch,
                                                      const BatchSchedule& work,
                                                      const at::Tensor& q,
                                                      const ContiguousKeys& keys, at::Tensor& out,
                                                      const AttentionExtras& extras = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_ATTENTION_CUDA_H_
