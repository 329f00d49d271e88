// Merges attention over disjoint keys into attention over all of them, such as the results of
// Step's AttendWithin() and AttendBefore() (runner/step.h). The tensor form of
// attention/merge/merge_states.h, which defines the result.
//
//   REPRISE_RETURN_IF_ERROR(
//       MergeAttention({within.out, before.out}, {within.lse, before.lse}, out));
//
// Runs on the device of `out`: on a GPU one launch on the current stream. Nothing is allocated or
// synchronised, so the call may be captured. More than kMaxMergeParts parts take a launch for each
// kMaxMergeParts of them, whose results LibTorch allocates in float32, and one more. Thread safety:
// safe if the tensors are.

#ifndef REPRISE_RUNNER_OPS_MERGE_ATTENTION_H_
#define REPRISE_RUNNER_OPS_MERGE_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

// outs: each [num_tokens, num_heads, head_dim] of float32, float16 or bfloat16, last stride 1;
// lses: one for each out, [num_tokens, num_heads] float32. Parts have the same strides. out
// [num_tokens, num_heads, head_dim] of one of those dtypes; it may be one of the parts. lse, if it is
// defined: [num_tokens, num_heads] float32, the log-sum-exp over all parts. A token without a key in
// any part gets 0, and -inf. Errors: InvalidArgument, naming the argument, for no part, more
// than kMaxMergeParts squared, or other shapes, dtypes, strides or devices; those of LibTorch's
// allocation.
absl::Status MergeAttention(absl::Span<const at::Tensor> outs, absl::Span<const at::Tensor> lses,
                            const at::Tensor& out, const at::Tensor& lse = {});

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_MERGE_ATTENTION_H_
