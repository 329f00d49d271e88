// The arguments for a paged or ragged batch: their parts of a schema, and the batches made from
// them.

#ifndef REPRISE_ATTENTION_TORCH_OPS_BATCH_ARGUMENTS_H_
#define REPRISE_ATTENTION_TORCH_OPS_BATCH_ARGUMENTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/torch_ops/operator_call.h"

namespace reprise {

// The batch's part of a schema before the '*'.
#define REPRISE_BATCH_SCHEMA "Tensor block_table, Tensor seq_lens, Tensor query_start_loc"

// custom_mask: [any] uint8, packed bits. custom_mask_offset: [num_rows] int64, the first byte of
// each row's bits; -1: the row has no mask.
#define REPRISE_CUSTOM_MASK_SCHEMA "Tensor? custom_mask=None, Tensor? custom_mask_offset=None"

// The batch's part of a schema after the '*'. max_query_len and max_seq_len are host upper bounds
// and constant under capture. Their defaults are the number of tokens and the capacity of a table
// row. key_positions: rank, world, interleave.
#define REPRISE_BATCH_OPTIONS_SCHEMA                                                \
  "Tensor? table_row=None, Tensor? key_start=None, Tensor? query_positions=None, "  \
  "Tensor? tail_len=None, Tensor? tail_mask=None, Tensor? common_prefix_len=None, " \
  "int[]? key_positions=None, bool causal=True, int? max_query_len=None, "          \
  "int? max_seq_len=None, " REPRISE_CUSTOM_MASK_SCHEMA

struct BatchArguments {
  at::Tensor block_table, seq_lens, query_start_loc;
  std::optional<at::Tensor> table_row, key_start, query_positions, tail_len, tail_mask;
  std::optional<at::Tensor> common_prefix_len;
  std::optional<std::vector<int64_t>> key_positions;
  bool causal = true;
  std::optional<int64_t> max_query_len, max_seq_len;
  std::optional<at::Tensor> custom_mask, custom_mask_offset;
};

// Read the arguments of REPRISE_BATCH_SCHEMA and REPRISE_BATCH_OPTIONS_SCHEMA. REQUIRES: they are
// the next arguments of `call`.
void ReadBatchArguments(OperatorCall& call, BatchArguments& arguments);
void ReadBatchOptions(OperatorCall& call, BatchArguments& arguments);

// Makes a batch that points into the arguments. All arrays must be dense int32 on `device`;
// tail_mask is int64 or uint64, and the masks have the dtypes above. `num_tokens` is the number of
// rows of q.
// Errors: InvalidArgument that names the argument.
absl::StatusOr<PagedBatch> MakePagedBatch(const BatchArguments& arguments, int64_t num_tokens,
                                          int64_t block_size, at::Device device);

struct RaggedBatchArguments {
  at::Tensor query_start_loc, key_start_loc;
  std::optional<at::Tensor> query_positions;
  bool causal = true;
  std::optional<int64_t> max_query_len, max_seq_len;
  std::optional<at::Tensor> custom_mask, custom_mask_offset;
};

absl::StatusOr<RaggedBatch> MakeRaggedBatch(const RaggedBatchArguments& arguments,
                                            int64_t num_tokens, int64_t num_keys,
                                            at::Device device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_BATCH_ARGUMENTS_H_
