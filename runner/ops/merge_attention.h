// Merges attention over disjoint keys into attention over all of them: the parts of Step's
// AttendWithin() and AttendBefore() (runner/step.h). Tensors around attention/merge_states.h, which
// says what comes out.
//
//   REPRISE_RETURN_IF_ERROR(
//       MergeAttention({within.out, before.out}, {within.lse, before.lse}, out));
//
// Runs on the device of `out`: on a GPU one launch on the current stream, nothing allocated or
// synchronised, so it may be captured. Thread safety: safe, as far as the tensors are.

#ifndef RUNNER_OPS_MERGE_ATTENTION_H_
#define RUNNER_OPS_MERGE_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace reprise {

// outs: each [num_tokens, num_heads, head_dim] of float32, float16 or bfloat16, last stride 1;
// lses: one an out, [num_tokens, num_heads] float32. Parts have the same strides. out [num_tokens,
// num_heads, head_dim] of one of those dtypes; it may be one of the parts. A token without a key in
// any part gets 0. Errors: InvalidArgument, naming the argument, for no part, more than
// kMaxMergeParts, or other shapes, dtypes, strides or devices.
absl::Status MergeAttention(absl::Span<const at::Tensor> outs, absl::Span<const at::Tensor> lses,
                            const at::Tensor& out);

}  // namespace reprise

#endif  // RUNNER_OPS_MERGE_ATTENTION_H_
