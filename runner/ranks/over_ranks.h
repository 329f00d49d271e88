// Communication within the forward pass of a tensor-parallel model (docs/distributed.md):
// all-reduces, and an embedding and a head that are sharded over the vocabulary.
//
//   // Each rank has some input columns of the weight, so its outputs are summands.
//   REPRISE_ASSIGN_OR_RETURN(const at::Tensor out, summands_.Rows(step.num_tokens()));
//   REPRISE_RETURN_IF_ERROR(down.Apply(step.linears(), gated, out));
//   REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives, step.linears(), out));
//
//   const ShardedVocabulary vocabulary(vocab_size, collectives);
//   REPRISE_RETURN_IF_ERROR(vocabulary.Embed(embedding, step.token_ids(), hidden));
//   const LogitsOut logits = {step.logits(), step.sharded_logits()};
//   REPRISE_RETURN_IF_ERROR(vocabulary.Logits(lm_head, step.linears(), last, logits));
//   // To transform each rank's logits before they are gathered:
//   REPRISE_RETURN_IF_ERROR(vocabulary.Logits(
//       lm_head, step.linears(), last, logits,
//       [&](const at::Tensor& own) { return Softcap(own, cap); }));
//
// With one rank, or without Collectives (null), each function is the plain operation. Every rank
// must make the same calls with the same sizes. Work is enqueued on LibTorch's current stream, and
// may be captured if the Collectives can be captured.
//
// Thread safety: one thread per Collectives.

#ifndef REPRISE_RUNNER_RANKS_OVER_RANKS_H_
#define REPRISE_RUNNER_RANKS_OVER_RANKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/linear_context.h"
#include "reprise/runner/ranks/sharded_logits.h"

namespace reprise {

// Replaces `tensor` by its sum over all ranks. `tensor` must be contiguous, with a dtype that
// AllReduce() supports. Errors: as AllReduce().
absl::Status SumOverRanks(Collectives* collectives, const at::Tensor& tensor);

// SumOverRanks() for a tensor that GEMMs of `context` have computed. If these GEMMs are
// deterministic (LinearContext::is_deterministic()) and there are more than two ranks, gathers the
// summands of all ranks and adds them in the order of the ranks, in float32 or the wider dtype. A
// row's result is therefore bitwise independent of the other rows. AllReduce() does not guarantee
// that: its order of additions may depend on the tensor's size and on the element's index.
absl::Status SumOverRanks(Collectives* collectives, const LinearContext& context,
                          const at::Tensor& tensor);

// Returns whether SumOverRanks() with this context calls AllReduce() if there are several ranks.
bool AreSummedByAllReduce(int world, const LinearContext& context);

// A buffer for rows that a forward pass computes and then sums over ranks. If the rows fit into the
// memory that Collectives sum without a copy (NewBuffer()), they are in that memory, otherwise in
// new memory.
//
// The first call of Rows() allocates the buffer. All ranks must make this call, outside of a
// capture: a runner runs such a step before it captures. All calls whose rows fit return the same
// memory, so one object serves one tensor of one step at a time.
class SumBuffer {
 public:
  // A row has row_size elements with the dtype and device of `options`. `collectives` must outlive
  // this object; null: one rank. REQUIRES: row_size >= 1.
  SumBuffer(Collectives* collectives, int64_t row_size, const at::TensorOptions& options);

  // Returns [num_rows, row_size], contiguous, with unspecified values. Errors: as NewBuffer(). May
  // throw LibTorch's exceptions.
  absl::StatusOr<at::Tensor> Rows(int64_t num_rows);

 private:
  Collectives* collectives_;
  int64_t row_size_;
  at::TensorOptions options_;
  int64_t max_rows_;   // capacity of the buffer; 0: no buffer
  at::Tensor buffer_;  // [max_rows_, row_size_]; undefined before the first call of Rows()
};

// Destination of a step's logits (Step::logits(), Step::sharded_logits()).
struct LogitsOut {
  at::Tensor whole;  // [num_rows, vocab_size]
  // Memory for at least ShardedLogits::PartsSize(num_rows) elements. Undefined: gathers into
  // `whole`.
  at::Tensor sharded = {};
};

// An embedding and a head that are sharded over the vocabulary. Each rank has the rows of its
// AlignedShareOf() the vocabulary.
class ShardedVocabulary {
 public:
  // `collectives` must outlive this object; null: one rank. REQUIRES: vocab_size >= the number of
  // ranks.
  ShardedVocabulary(int64_t vocab_size, Collectives* collectives);

  // Writes the embedding of token_ids[i] to out[i], on every rank. table: [share().size, size];
  // token_ids: [num_tokens] int32; out: [num_tokens, size], contiguous if there are several ranks.
  // A token id outside the vocabulary is an error on the CPU with one rank; otherwise its row is
  // zeros. Errors: as GatherRows() and AllReduce().
  absl::Status Embed(const at::Tensor& table, const at::Tensor& token_ids,
                     const at::Tensor& out) const;

  // Post-processing of the logits that a rank has computed: [num_rows, at least share().size],
  // contiguous. The first share().size columns are the tokens of the share; the rest are
  // unspecified.
  using Finish = absl::FunctionRef<absl::Status(const at::Tensor& own)>;

  // Computes the logits of x. Each rank computes its share and post-processes it with `finish`. If
  // out.sharded is undefined, gathers the shares of all ranks into out.whole on every rank, in the
  // order of the vocabulary; otherwise writes only this rank's share, to out.sharded. head: a
  // Linear with share().size outputs; x and the dtype of the logits as in Linear::Apply(). Errors:
  // InvalidArgument if the shape of the logits is wrong; as Linear::Apply(), `finish` and
  // ShardedLogits::Gather(). May throw LibTorch's exceptions.
  absl::Status Logits(
      const Linear& head, LinearContext& context, const at::Tensor& x, const LogitsOut& out,
      Finish finish = [](const at::Tensor&) { return absl::OkStatus(); }) const;

  const Share& share() const { return logits_->share(); }
  // For ModelSpec::sharded_logits.
  ShardedLogits* logits() const { return logits_.get(); }

 private:
  Collectives* collectives_;
  std::unique_ptr<ShardedLogits> logits_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_OVER_RANKS_H_
