// What a model that is divided over ranks does between them (docs/distributed.md).
//
//   // Each rank has some columns of the weight: its outputs are summands.
//   REPRISE_ASSIGN_OR_RETURN(const at::Tensor out, summands_.Rows(step.num_tokens()));
//   REPRISE_RETURN_IF_ERROR(down.Apply(step.linears(), gated, out));
//   REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives, step.linears(), out));
//
//   const DividedVocabulary vocabulary(vocab_size, collectives);
//   REPRISE_RETURN_IF_ERROR(vocabulary.Embed(embedding, step.token_ids(), hidden));
//   REPRISE_RETURN_IF_ERROR(vocabulary.Logits(lm_head, step.linears(), last, step.logits()));
//   // Or, with more to do on each rank's logits before they are gathered:
//   REPRISE_RETURN_IF_ERROR(vocabulary.Logits(
//       lm_head, step.linears(), last, step.logits(),
//       [&](const at::Tensor& own) { return Softcap(own, cap); }));
//
// With one rank, or without Collectives (null), each is the operation itself and nothing else.
// Every rank makes the same calls with the same sizes. Work is enqueued on LibTorch's current
// stream and may be captured as far as Collectives may.
//
// Thread safety: one thread a Collectives.

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
#include "reprise/runner/ranks/divided_logits.h"

namespace reprise {

// tensor = the sum of all ranks' `tensor`; contiguous, of a dtype of AllReduce(). Errors: those of
// AllReduce().
absl::Status SumOverRanks(Collectives* collectives, const at::Tensor& tensor);

// The same of products of `context`. AllReduce() may add an element's summands in an order that depends
// on the tensor's size and the element's place: of more than two ranks, whose products are
// deterministic (LinearContext::is_deterministic()), all are gathered and added in the order of the
// ranks, in float32 or the wider dtype. So a row has the same bits whatever the others are.
absl::Status SumOverRanks(Collectives* collectives, const LinearContext& context,
                          const at::Tensor& tensor);

// Whether that is AllReduce() itself.
bool AreSummedByAllReduce(int world, const LinearContext& context);

// Where a forward pass writes rows that it then sums over ranks: in memory that Collectives sum
// without a copy (NewBuffer()), if so many rows fit into what they sum quickly, else in new memory.
//
// The buffer is made by the first call of Rows(), which all ranks make alike and outside of a
// capture: in the step that a runner runs before it captures. All calls give the same memory, so
// one object serves one tensor of one step at a time.
class SumBuffer {
 public:
  // Rows of row_size elements of the dtype and device of `options`. `collectives` must outlive it;
  // null: one rank. REQUIRES: row_size >= 1.
  SumBuffer(Collectives* collectives, int64_t row_size, const at::TensorOptions& options);

  // [num_rows, row_size], contiguous, of any values. Errors: those of NewBuffer(); may throw
  // LibTorch's exceptions.
  absl::StatusOr<at::Tensor> Rows(int64_t num_rows);

 private:
  Collectives* collectives_;
  int64_t row_size_;
  at::TensorOptions options_;
  int64_t max_rows_;   // of the buffer
  at::Tensor buffer_;  // [max_rows_, row_size_], from the first call on
};

// Destination of a step's logits (Step::logits(), Step::divided_logits()).
struct LogitsOut {
  at::Tensor whole;  // [num_rows, vocab_size]
  at::Tensor divided =
      {};  // memory of DividedLogits::PartsSize(num_rows) or more; undefined: gathers
};

// An embedding and a head of which each rank has the rows of its AlignedShareOf() the vocabulary.
class DividedVocabulary {
 public:
  // `collectives` must outlive it; null: one rank. REQUIRES: vocab_size >= the number of ranks.
  DividedVocabulary(int64_t vocab_size, Collectives* collectives);

  // out[i] = the embedding of token_ids[i], on every rank. table [share().size, size]; token_ids
  // [num_tokens] int32; out [num_tokens, size], with several ranks contiguous. Ids outside the
  // vocabulary: an error on the CPU with one rank, else rows of zeros. Errors: those of
  // GatherRows() and AllReduce().
  absl::Status Embed(const at::Tensor& table, const at::Tensor& token_ids,
                     const at::Tensor& out) const;

  // What is still done to the logits that a rank has computed: [num_rows, at least share().size],
  // contiguous, the tokens of the share and then columns of any values.
  using Finish = absl::FunctionRef<absl::Status(const at::Tensor& own)>;

  // Computes the logits of x into `out`: each rank computes its share and finishes it. Then either
  // gathers the shares of all ranks into out.whole, on every rank in the order of the vocabulary, or
  // leaves this rank's share in out.divided. head: a Linear of share().size outputs; x and the dtype
  // of the logits as in Linear::Apply(). Errors: InvalidArgument if the shape of the logits is
  // wrong; errors of Linear::Apply(), `finish` and DividedLogits::Gather(). May throw LibTorch's
  // exceptions.
  absl::Status Logits(
      const Linear& head, LinearContext& context, const at::Tensor& x, const LogitsOut& out,
      Finish finish = [](const at::Tensor&) { return absl::OkStatus(); }) const;

  const Share& share() const { return logits_->share(); }
  // ModelSpec::divided_logits.
  DividedLogits* logits() const { return logits_.get(); }

 private:
  Collectives* collectives_;
  std::unique_ptr<DividedLogits> logits_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_OVER_RANKS_H_
