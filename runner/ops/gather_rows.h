// Gathers rows of a matrix by index: the embeddings of tokens, and the hidden states whose logits
// are computed.
//
//   GatherRows(embedding, step.token_ids(), hidden);
//   GatherRows(hidden, step.logits_indices(), last_hidden);
//
// The call does not allocate or synchronise, so it may be captured.
//
// LibTorch's index_select is not used, because its kernel aborts the CUDA context if an index is
// out of range.
//
// Thread safety: safe for concurrent calls, unless one call writes a tensor that another call uses.
// Cost: one launch; reads and writes the gathered rows once.

#ifndef REPRISE_RUNNER_OPS_GATHER_ROWS_H_
#define REPRISE_RUNNER_OPS_GATHER_ROWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"

namespace reprise {

// out[i] = table[indices[i]]. table [num_rows, size] and out [num_indices, size] have the same
// dtype, of any kind; indices [num_indices] int32, contiguous. All are on one device. Rows may be
// strided; `out` must not overlap `table`. An index outside [0, num_rows) is an OutOfRange error on
// the CPU, before anything is written; on a GPU, which cannot return an error, its row becomes
// zero. Other errors: InvalidArgument, naming the argument.
absl::Status GatherRows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& out);

// Like GatherRows(), for a table of which only the rows [first_row, first_row + num_rows) exist
// here, in `table`. Rows with an index outside this range become zero, on the CPU too.
// Errors: InvalidArgument, naming the argument, also if first_row is negative.
absl::Status GatherSomeRows(const at::Tensor& table, int64_t first_row, const at::Tensor& indices,
                            const at::Tensor& out);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_GATHER_ROWS_H_
