// Merges attention results over disjoint sets of keys into the attention over all keys, for example
// the results of Step's AttendWithin() and AttendBefore() (runner/step.h). This is the tensor
// interface of attention/merge/merge_states.h, which defines the result.
//
//   REPRISE_RETURN_IF_ERROR(
//       MergeAttention({within.out, before.out}, {within.lse, before.lse}, out));
//
// Runs on the device of `out`; on a GPU on the current stream. Up to kMaxMergeParts parts need one
// launch and no allocation. More parts need one launch per kMaxMergeParts parts, whose float32
// results LibTorch allocates, and one more launch. The call does not synchronise and may be
// captured. Thread safety: safe for concurrent calls, unless one call writes a tensor that another
// call uses.

#ifndef REPRISE_RUNNER_OPS_MERGE_ATTENTION_H_
#define REPRISE_RUNNER_OPS_MERGE_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

// outs: each [num_tokens, num_heads, head_dim] float32, float16 or bfloat16, last stride 1. lses:
// one per out, [num_tokens, num_heads] float32. All parts have the same dtype and strides. out
// [num_tokens, num_heads, head_dim] has one of these dtypes and may be one of the parts. lse, if
// defined: [num_tokens, num_heads] float32, receives the log-sum-exp over all parts. A token
// without a key in any part gets out 0 and lse -inf. Errors: InvalidArgument, naming the argument,
// if there are no parts, if there are more than kMaxMergeParts squared, or if shapes, dtypes,
// strides or devices do not match; those of LibTorch's allocation.
absl::Status MergeAttention(absl::Span<const at::Tensor> outs, absl::Span<const at::Tensor> lses,
                            const at::Tensor& out, const at::Tensor& lse = {});

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_MERGE_ATTENTION_H_
