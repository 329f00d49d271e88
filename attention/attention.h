// Computes attention over a batch; everything else in this directory prepares it.
//
//   at::Tensor out = at::empty({num_tokens, 32, 128}, q.options());
//   REPRISE_RETURN_IF_ERROR(PagedAttention(params, batch, work, q, kv, {out}));
//
// Runs on the device of `q`. On the CPU it is synchronous and multi-threaded. On CUDA it launches
// on the current stream without synchronisation, allocation, or host values other than the
// capacities of `batch`, so it may be captured.
//
// q [>= num_tokens, num_q_heads, head_dim_qk] float32, float16, bfloat16 or, with layer.q_scale, an
// fp8 type; any strides, the last one 1 (so a slice of a fused projection needs no copy). out [>=
// num_tokens, num_q_heads, head_dim_v] of q's dtype, float32, a 16-bit type if q is fp8, or an fp8
// type (AttentionExtras says how it is scaled), last stride 1. lse, on request, [>= num_tokens,
// num_q_heads] float32, natural logarithm, any strides: a transposed view gives [heads, tokens].
// Rows of out and lse past the last live token are set to 0 and -inf. Memory that no query sees
// never makes out or lse NaN.
//
// On CUDA the cache has q's dtype or an fp8 type; with q in float32 or fp8, the cache may have any
// dtype. The CPU accepts any pair.
//
// Errors: InvalidArgument naming the argument, what was expected and what was got (shapes, dtypes,
// devices, heads that do not divide, a window or softcap out of range, context parallelism together
// with a tail mask); Unimplemented naming what is supported, for a combination that no kernel
// supports. LibTorch's exceptions become Internal. On the CPU the arrays of the batch are checked
// too: lengths, tables and blocks out of range are InvalidArgument, and nothing is written.
//
// Thread safety: calls on different streams with different `work` may run concurrently. Cost: no
// host work that grows with the batch on CUDA.

#ifndef REPRISE_ATTENTION_ATTENTION_H_
#define REPRISE_ATTENTION_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

absl::Status PagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                            const BatchWork& work, const at::Tensor& q, const KvLayer& kv,
                            const AttentionOutput& output, const AttentionExtras& extras = {});

absl::Status RaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                             const BatchWork& work, const at::Tensor& q, const ContiguousKeys& keys,
                             const AttentionOutput& output, const AttentionExtras& extras = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_ATTENTION_H_
