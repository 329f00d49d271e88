// Attention of a model whose KV cache is sharded over ranks (decode context parallelism,
// docs/distributed.md). Each rank attends to the keys that it stores. The ranks then merge their
// results by log-sum-exp.
//
//   // In Model::Forward(), of a runner with RankOptions::context_ranks:
//   REPRISE_RETURN_IF_ERROR(step.Write(layer, k, v));     // the keys that this rank stores
//   REPRISE_ASSIGN_OR_RETURN(at::Tensor out, AttendOverRanks(context, step, layer, q, head_dim_v));
//   ...
//   REPRISE_RETURN_IF_ERROR(CopyFromFirstRank(context, step.logits()));
//
// Every rank must make the same calls with the same q, which has all heads. Work is enqueued on
// LibTorch's current stream, and may be captured if the Collectives can be captured. If `context`
// is null or has one rank, there is no overhead.
//
// Thread safety: one thread per Collectives.

#ifndef REPRISE_RUNNER_RANKS_CONTEXT_ATTENTION_H_
#define REPRISE_RUNNER_RANKS_CONTEXT_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/step.h"

namespace reprise {

// The sizes, dtype and device of an attention result.
struct AttentionShape {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim_v = 0;
  at::TensorOptions options = {};  // a dtype that MergeAttention() supports
};

// Calls `attend`, which must write out [num_tokens, num_heads, head_dim_v] and lse [num_tokens,
// num_heads] float32 for this rank's keys. Returns the result over the keys of all ranks, which is
// bitwise identical on all ranks. Errors: as `attend`, AllGather() and MergeAttention(). May throw
// LibTorch's exceptions.
absl::StatusOr<AttentionPart> MergeOverRanks(
    Collectives& context, const AttentionShape& shape,
    absl::FunctionRef<absl::Status(const at::Tensor& out, const at::Tensor& lse)> attend);

// Step::Attend(layer, q) over the keys of all ranks of `context`. If `context` is null, equivalent
// to Step::Attend(). q: [num_tokens, num_q_heads, head_dim_qk] of the model's dtype. Returns
// [num_tokens, num_q_heads, head_dim_v] of the same dtype. Errors: InvalidArgument if q has a
// different dtype, or if the runner shards the keys over other ranks; as Step::Attend() and
// MergeOverRanks().
absl::StatusOr<at::Tensor> AttendOverRanks(Collectives* context, const Step& step, int layer,
                                           const at::Tensor& q, int64_t head_dim_v);

// Step::AttendBefore(layer, q) over the keys that all ranks stored before the step.
absl::StatusOr<AttentionPart> AttendBeforeOverRanks(Collectives* context, const Step& step,
                                                    int layer, const at::Tensor& q,
                                                    int64_t head_dim_v);

// Overwrites `tensor` with the tensor of rank 0. Used for logits that all ranks compute, but may
// round differently: all ranks then choose the same tokens. `tensor` must be contiguous. Errors: as
// Broadcast().
absl::Status CopyFromFirstRank(Collectives* context, const at::Tensor& tensor);

// CopyFromFirstRank() for a tensor with any strides. With several ranks, returns a contiguous
// tensor, and may overwrite `tensor`. With one rank, returns `tensor`. Errors: as
// CopyFromFirstRank().
absl::StatusOr<at::Tensor> OfFirstRank(Collectives* collectives, at::Tensor tensor);

// Checks a model's options. Errors: InvalidArgument if weights and keys are sharded over the same
// Collectives of several ranks. Ranks that shard keys must have the same heads, as in the columns
// of a grid (distributed/rank_grid.h).
absl::Status CheckShardings(const Collectives* weights, const Collectives* context);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_CONTEXT_ATTENTION_H_
