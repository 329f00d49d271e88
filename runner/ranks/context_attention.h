// Attention of a model whose keys are divided over ranks (decode context parallelism,
// docs/distributed.md): each rank attends to the keys that it keeps, and the ranks merge their
// results by the log-sum-exp.
//
//   // In Model::Forward(), of a runner with RankOptions::context_ranks:
//   REPRISE_RETURN_IF_ERROR(step.Write(layer, k, v));     // those that this rank keeps
//   REPRISE_ASSIGN_OR_RETURN(at::Tensor out, AttendOverRanks(context, step, layer, q, head_dim_v));
//   ...
//   REPRISE_RETURN_IF_ERROR(CopyFromFirstRank(context, step.logits()));
//
// Every rank makes the same calls with the same q, of all heads. Work is enqueued on LibTorch's
// current stream and may be captured as far as Collectives may. A `context` that is null or of one
// rank costs nothing.
//
// Thread safety: one thread a Collectives.

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

// The sizes of a result of attention, and its dtype and device.
struct AttentionShape {
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim_v = 0;
  at::TensorOptions options = {};  // a dtype that MergeAttention() takes
};

// Calls `attend`, which must write an out [num_tokens, num_heads, head_dim_v] and an lse
// [num_tokens, num_heads] float32 over this rank's keys, and returns what all ranks give together:
// bitwise equal on all of them. Errors: the call's; those of AllGather() and MergeAttention(). May
// throw LibTorch's exceptions.
absl::StatusOr<AttentionPart> MergeOverRanks(
    Collectives& context, const AttentionShape& shape,
    absl::FunctionRef<absl::Status(const at::Tensor& out, const at::Tensor& lse)> attend);

// Attention to what the caches of all ranks hold: Step::Attend(layer, q) whose keys are divided over
// the ranks of `context`; that call itself if it is null. q [num_tokens, num_q_heads, head_dim_qk]
// of the model's dtype. Returns [num_tokens, num_q_heads, head_dim_v] of it. Errors:
// InvalidArgument for q of another dtype, or if the runner divides the keys over other ranks; those of
// Step::Attend() and MergeOverRanks().
absl::StatusOr<at::Tensor> AttendOverRanks(Collectives* context, const Step& step, int layer,
                                           const at::Tensor& q, int64_t head_dim_v);

// The same of Step::AttendBefore(layer, q): attention to what all ranks kept before the step.
absl::StatusOr<AttentionPart> AttendBeforeOverRanks(Collectives* context, const Step& step,
                                                    int layer, const at::Tensor& q,
                                                    int64_t head_dim_v);

// tensor = rank 0's: of logits of ranks that compute the same but may round in other ways, so that
// all choose the same tokens. Contiguous. Errors: those of Broadcast().
absl::Status CopyFromFirstRank(Collectives* context, const at::Tensor& tensor);

// The same for a tensor of any strides: on several ranks `tensor` may be written, and a contiguous one is
// returned; on one rank `tensor` itself. Errors: as above.
absl::StatusOr<at::Tensor> OfFirstRank(Collectives* collectives, at::Tensor tensor);

// Of a model's options. InvalidArgument if weights and keys are divided over the same ranks: those that
// divide keys must have the same heads, as in the columns of a grid (distributed/rank_grid.h).
absl::Status CheckDivisions(const Collectives* weights, const Collectives* context);

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_CONTEXT_ATTENTION_H_
