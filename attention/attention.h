// Computes attention over a batch. The rest of this directory prepares its arguments.
//
//   at::Tensor out = at::empty({num_tokens, 32, 128}, q.options());
//   REPRISE_RETURN_IF_ERROR(PagedAttention(params, batch, work, q, kv, {out}));
//
// Runs on the device of `q`. On the CPU it is synchronous and multi-threaded. On CUDA it launches
// on the current stream, without synchronisation or allocation of device memory. The content of the
// batch's arrays is read on the device only, so the call may be captured.
//
// q: [>= num_tokens, num_q_heads, head_dim_qk] float32, float16, bfloat16 or an fp8 type, scaled by
// layer.q_scale. Any strides, the last one 1, so a slice of a fused projection needs no copy.
// out: [>= num_tokens, num_q_heads, head_dim_v], last stride 1. Its dtype is q's dtype, float32, a
// 16-bit type if q is fp8, or an fp8 type (scaled as AttentionExtras describes).
// lse (optional): [>= num_tokens, num_q_heads] float32, natural logarithm, any strides: a
// transposed view gives [heads, tokens].
// Rows of out and lse after the last live token are set to 0 and -inf. NaNs in memory that no query
// sees do not reach out or lse.
//
// On CUDA the cache must have q's dtype or an fp8 type. If q is fp8, it may also have a 16-bit
// dtype, and if q or KernelChoice::products is float32, any dtype. The CPU supports any pair.
// Contiguous keys have q's dtype or an fp8 type on both devices.
//
// Errors: InvalidArgument naming the argument, the expected and the actual value (shapes, dtypes,
// devices, head counts that do not divide, a window or softcap out of range, context parallelism
// together with a tail mask). Unimplemented, naming the supported values, if no kernel supports the
// combination. LibTorch exceptions are converted by CatchTorch() (base/torch_status.h). On the CPU
// the batch's arrays are checked too: if lengths, tables or blocks are out of range, returns
// InvalidArgument and writes nothing.
//
// Thread safety: calls on different streams with different `work` may run concurrently. Cost: on
// CUDA, the host work does not grow with the batch.

#ifndef REPRISE_ATTENTION_ATTENTION_H_
#define REPRISE_ATTENTION_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Computes attention over a paged cache.
absl::Status PagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                            const BatchSchedule& work, const at::Tensor& q, const KvLayer& kv,
                            const AttentionOutput& output, const AttentionExtras& extras = {});

// Computes attention over contiguous keys and values. `keys` has [num_keys, num_kv_heads, head_dim]
// tensors of k and v.
absl::Status RaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                             const BatchSchedule& work, const at::Tensor& q,
                             const ContiguousKeys& keys, const AttentionOutput& output,
                             const AttentionExtras& extras = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ATTENTION_H_
