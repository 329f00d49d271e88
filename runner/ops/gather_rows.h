// Rows of a matrix by index: the embedding of tokens, and the hidden states whose logits are
// wanted.
//
//   GatherRows(embedding, step.token_ids(), hidden);
//   GatherRows(hidden, step.logits_indices(), last_hidden);
//
// Nothing is allocated or synchronised: may be captured.
//
// Thread safety: safe, as far as the tensors are. Cost: one launch; reads and writes the gathered
// rows once.

#ifndef RUNNER_OPS_GATHER_ROWS_H_
#define RUNNER_OPS_GATHER_ROWS_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

namespace reprise {

// out[i] = table[indices[i]]. table [num_rows, size] and out [num_indices, size] of one dtype, any;
// indices [num_indices] int32, contiguous; one device. Rows may be strided; `out` must not overlap
// `table`. An index outside [0, num_rows) is an OutOfRange error on the CPU, before anything is
// written; on a GPU, where no error can be returned, its row is zero. Errors else: InvalidArgument,
// naming the argument.
absl::Status GatherRows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& out);

}  // namespace reprise

#endif  // RUNNER_OPS_GATHER_ROWS_H_
