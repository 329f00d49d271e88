// Rows of a matrix by index, for the embedding of tokens and for the hidden states whose logits are
// wanted.
//
//   GatherRows(embedding, step.token_ids(), hidden);
//   GatherRows(hidden, step.logits_indices(), last_hidden);
//
// Nothing is allocated or synchronised, so the call may be captured.
//
// LibTorch's index_select is not used: an index out of range makes its kernel abort the CUDA
// context.
//
// Thread safety: safe if the tensors are. Cost: one launch; reads and writes the gathered rows
// once.

#ifndef REPRISE_RUNNER_OPS_GATHER_ROWS_H_
#define REPRISE_RUNNER_OPS_GATHER_ROWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"

namespace reprise {

// out[i] = table[indices[i]]. table [num_rows, size] and out [num_indices, size] of one dtype, any;
// indices [num_indices] int32, contiguous; one device. Rows may be strided; `out` must not overlap
// `table`. An index outside [0, num_rows) is an OutOfRange error on the CPU, before anything is
// written; on a GPU, where no error can be returned, its row becomes zero. Other errors:
// InvalidArgument, naming the argument.
absl::Status GatherRows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& out);

// The same of a table of which only the rows [first_row, first_row + num_rows) are here: `table`.
// Rows whose index is another become zero, on the CPU too. first_row >= 0.
absl::Status GatherSomeRows(const at::Tensor& table, int64_t first_row, const at::Tensor& indices,
                            const at::Tensor& out);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_GATHER_ROWS_H_
