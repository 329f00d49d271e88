#include "reprise/runner/ranks/over_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <vector>

#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/gather_rows.h"

namespace reprise {

absl::Status SumOverRanks(Collectives* collectives, const at::Tensor& tensor) {
  if (RanksOf(collectives).world == 1) return absl::OkStatus();
  at::Tensor sum = tensor;  // shares the memory of `tensor`
  return collectives->AllReduce(sum);
}

bool AreSummedByAllReduce(int world, const LinearContext& context) {
  return world <= 2 || !context.is_deterministic();  // the sum of two summands has only one order
}

absl::Status SumOverRanks(Collectives* collectives, const LinearContext& context,
                          const at::Tensor& tensor) {
  const int world = RanksOf(collectives).world;
  if (AreSummedByAllReduce(world, context)) return SumOverRanks(collectives, tensor);
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes.insert(sizes.begin(), world);
  at::Tensor summands = at::empty(sizes, tensor.options());
  REPRISE_RETURN_IF_ERROR(collectives->AllGather(tensor, summands));
  at::Tensor sum = summands[0].to(c10::promoteTypes(tensor.scalar_type(), at::kFloat));
  for (int rank = 1; rank < world; ++rank) sum.add_(summands[rank]);
  tensor.copy_(sum);
  return absl::OkStatus();
}

SumBuffer::SumBuffer(Collectives* collectives, int64_t row_size, const at::TensorOptions& options)
    : collectives_(collectives),
      row_size_(row_size),
      options_(options),
      max_rows_(RanksOf(collectives).world == 1
                    ? 0
                    : collectives->max_buffer_bytes() /
                          (row_size * static_cast<int64_t>(options.dtype().itemsize()))) {}

absl::StatusOr<at::Tensor> SumBuffer::Rows(int64_t num_rows) {
  if (max_rows_ > 0 && !buffer_.defined()) {
    REPRISE_ASSIGN_OR_RETURN(
        buffer_, collectives_->NewBuffer({max_rows_, row_size_}, options_.dtype().toScalarType(),
                                         options_.device()));
  }
  if (num_rows > max_rows_ || num_rows == 0) return at::empty({num_rows, row_size_}, options_);
  return buffer_.narrow(0, 0, num_rows);
}

ShardedVocabulary::ShardedVocabulary(int64_t vocab_size, Collectives* collectives)
    : collectives_(collectives),
      logits_(std::make_unique<ShardedLogits>(vocab_size, collectives)) {}

absl::Status ShardedVocabulary::Embed(const at::Tensor& table, const at::Tensor& token_ids,
                                      const at::Tensor& out) const {
  if (RanksOf(collectives_).world == 1) return GatherRows(table, token_ids, out);
  REPRISE_RETURN_IF_ERROR(GatherSomeRows(table, share().begin, token_ids, out));
  // In each row, at most one rank's summand is not zero, so the sum is exact.
  return SumOverRanks(collectives_, out);
}

absl::Status ShardedVocabulary::Logits(const Linear& head, LinearContext& context,
                                       const at::Tensor& x, const LogitsOut& out,
                                       Finish finish) const {
  const at::Tensor& logits = out.whole;
  const Ranks ranks = RanksOf(collectives_);
  if (ranks.world == 1) {
    REPRISE_RETURN_IF_ERROR(head.Apply(context, x, logits));
    return finish(logits);
  }
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("logits", logits, {x.size(0), logits_->vocab_size()}));
  const int64_t num_rows = logits.size(0);
  const bool is_left = out.sharded.defined();
  const at::Tensor memory =
      is_left ? out.sharded : at::empty({logits_->PartsSize(num_rows)}, logits.options());
  const at::Tensor parts = logits_->PartsIn(memory, num_rows);
  const at::Tensor own = parts[ranks.rank];
  if (num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(head.Apply(context, x, own.narrow(1, 0, share().size)));
  }
  REPRISE_RETURN_IF_ERROR(finish(own));
  return is_left ? absl::OkStatus() : logits_->Gather(parts, logits);
}

}  // namespace reprise
