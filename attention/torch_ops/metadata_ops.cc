// torch.ops.reprise.local_virtual_batches and advance_step: make batches on the device. See
// docs/operators.md.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/speculation/advance_step.h"
#include "reprise/attention/torch_ops/argument_parts.h"
#include "reprise/attention/torch_ops/batch_arguments.h"
#include "reprise/attention/torch_ops/operator_call.h"
#include "reprise/attention/torch_ops/status_launch.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

at::Tensor Ints(int64_t size, at::Device device) {
  return at::empty({size}, at::TensorOptions(device).dtype(at::kInt));
}

absl::Status LocalVirtualBatchesOp(OperatorCall& call) {
  BatchArguments arguments;
  ReadBatchArguments(call, arguments);
  const int64_t given_chunk_size = call.Int("chunk_size");
  const int64_t num_tokens = call.Int("num_tokens");
  arguments.table_row = call.MaybeTensor("table_row");
  arguments.key_start = call.MaybeTensor("key_start");
  REPRISE_ASSIGN_OR_RETURN(const int chunk_size, CountArgument("chunk_size", given_chunk_size));
  REPRISE_RETURN_IF_ERROR(CountArgument("num_tokens", num_tokens).status());
  const at::Device device = arguments.seq_lens.device();
  REPRISE_ASSIGN_OR_RETURN(const PagedBatch batch,
                           MakePagedBatch(arguments, num_tokens, /*block_size=*/1, device));
  if (chunk_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_size must be positive: expected at least 1, got ", chunk_size));
  }
  const int64_t max_rows = MaxLocalRows(batch.num_rows, batch.num_tokens, chunk_size);
  const at::Tensor query_start_loc = Ints(max_rows + 1, device);
  const at::Tensor seq_lens = Ints(max_rows, device);
  const at::Tensor table_row = Ints(max_rows, device);
  const at::Tensor key_start = Ints(max_rows, device);
  const LocalVirtualBatchArgs args = {
      .batch = batch,
      .chunk_size = chunk_size,
      .buffers = {.query_start_loc = query_start_loc.mutable_data_ptr<int32_t>(),
                  .seq_lens = seq_lens.mutable_data_ptr<int32_t>(),
                  .table_row = table_row.mutable_data_ptr<int32_t>(),
                  .key_start = key_start.mutable_data_ptr<int32_t>(),
                  .max_rows = static_cast<int>(max_rows)}};
  if (device.is_cpu()) {
    REPRISE_RETURN_IF_ERROR(BuildLocalVirtualBatch(args).status());
  } else {
    REPRISE_RETURN_IF_ERROR(
        LaunchOn(device, "local_virtual_batches", [&]([[maybe_unused]] CUstream_st* stream) {
#ifdef REPRISE_WITH_CUDA
          return LaunchLocalVirtualBatch(args, stream);
#else
                                       return absl::OkStatus();
#endif
        }));
  }
  call.Return({query_start_loc, seq_lens, table_row, key_start});
  return absl::OkStatus();
}

// The outputs have the maximum number of virtual rows, which depends on sizes only. A symbolic
// num_rows is fixed to its value.
absl::Status TraceLocalVirtualBatches(OperatorCall& call) {
  BatchArguments arguments;
  ReadBatchArguments(call, arguments);
  const int64_t chunk_size = call.Int("chunk_size");
  const int64_t num_tokens = call.Int("num_tokens");
  call.MaybeTensor("table_row");
  call.MaybeTensor("key_start");
  if (chunk_size < 1 || num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_size and num_tokens: expected at least 1 and 0, got ", chunk_size,
                     " and ", num_tokens));
  }
  const int64_t num_rows = arguments.seq_lens.sym_size(0).guard_int(__FILE__, __LINE__);
  const int64_t max_rows = MaxLocalRows(num_rows, num_tokens, chunk_size);
  const auto ints = [&](int64_t size) {
    return at::empty({size}, arguments.seq_lens.options().dtype(at::kInt));
  };
  call.Return({ints(max_rows + 1), ints(max_rows), ints(max_rows), ints(max_rows)});
  return absl::OkStatus();
}

// The packed table that grows with the rows. Either all arrays are given or none.
struct PackedTensors {
  std::optional<at::Tensor> block_indptr, block_indices, last_block_len;
};

absl::StatusOr<MutablePackedBlockTable> MakePacked(const PackedTensors& tensors,
                                                   const AdvanceStepArgs& args, at::Device device) {
  const auto& [block_indptr, block_indices, last_block_len] = tensors;
  if (!block_indptr && !block_indices && !last_block_len) return MutablePackedBlockTable{};
  if (!block_indptr || !block_indices || !last_block_len) {
    return absl::InvalidArgumentError(
        "block_indptr, block_indices and last_block_len must be given together: expected all or "
        "none, "
        "got some of them");
  }
  ShapeChecker dims;
  const auto check = [&](const char* name, const at::Tensor& tensor, Dim size) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {size}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, tensor));
    return CheckDevice(name, tensor, device);
  };
  REPRISE_RETURN_IF_ERROR(check("block_indptr", *block_indptr, args.num_rows + 1));
  REPRISE_RETURN_IF_ERROR(check("block_indices", *block_indices, "max_indices"));
  REPRISE_RETURN_IF_ERROR(check("last_block_len", *last_block_len, args.num_rows));
  return MutablePackedBlockTable{.block_indptr = block_indptr->mutable_data_ptr<int32_t>(),
                                 .block_indices = block_indices->mutable_data_ptr<int32_t>(),
                                 .last_block_len = last_block_len->mutable_data_ptr<int32_t>(),
                                 .num_rows = args.num_rows,
                                 .max_indices = static_cast<int>(std::min<int64_t>(
                                     dims.size("max_indices"), std::numeric_limits<int>::max())),
                                 .block_size = args.table.block_size};
}

// Computes the next step's arrays. Each array may be the same as its input.
absl::Status AdvanceStepOp(OperatorCall& call) {
  const at::Tensor sampled = call.Tensor("sampled");
  const at::Tensor block_table = call.Tensor("block_table");
  const at::Tensor seq_lens = call.Tensor("seq_lens");
  const at::Tensor table_row = call.Tensor("table_row");
  const at::Tensor query_start_loc = call.Tensor("query_start_loc");
  const at::Tensor token_ids = call.Tensor("token_ids");
  const at::Tensor positions = call.Tensor("positions");
  const at::Tensor slot_mapping = call.Tensor("slot_mapping");
  const at::Tensor row_faults = call.Tensor("row_faults");
  const int64_t block_size = call.Int("block_size");
  const int64_t num_blocks = call.Int("num_blocks");
  const int64_t max_context_len = call.Int("max_context_len");
  const PackedTensors packed = {.block_indptr = call.MaybeTensor("block_indptr"),
                                .block_indices = call.MaybeTensor("block_indices"),
                                .last_block_len = call.MaybeTensor("last_block_len")};

  ShapeChecker dims;
  const auto check = [&](const char* name, const at::Tensor& tensor, Dim size,
                         at::ScalarType type) -> absl::Status {
    REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {size}, type));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, tensor));
    return CheckDevice(name, tensor, sampled.device());
  };
  REPRISE_RETURN_IF_ERROR(check("sampled", sampled, "num_rows", at::kInt));
  REPRISE_RETURN_IF_ERROR(check("seq_lens", seq_lens, "num_rows", at::kInt));
  REPRISE_RETURN_IF_ERROR(check("table_row", table_row, "num_rows", at::kInt));
  REPRISE_RETURN_IF_ERROR(check("row_faults", row_faults, "num_rows", at::kInt));
  REPRISE_RETURN_IF_ERROR(
      check("query_start_loc", query_start_loc, dims.size("num_rows") + 1, at::kInt));
  REPRISE_RETURN_IF_ERROR(check("token_ids", token_ids, "num_tokens", at::kInt));
  REPRISE_RETURN_IF_ERROR(check("positions", positions, "num_tokens", at::kInt));
  REPRISE_RETURN_IF_ERROR(check("slot_mapping", slot_mapping, "num_tokens", at::kLong));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("block_table", block_table, {"num_tables", "max_blocks"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("block_table", block_table));
  REPRISE_RETURN_IF_ERROR(CheckDevice("block_table", block_table, sampled.device()));

  AdvanceStepArgs args = {.seq_lens = seq_lens.const_data_ptr<int32_t>(),
                          .table_row = table_row.const_data_ptr<int32_t>(),
                          .sampled = sampled.const_data_ptr<int32_t>(),
                          .table = {.entries = block_table.const_data_ptr<int32_t>(),
                                    .row_stride = block_table.stride(0),
                                    .num_tables = static_cast<int>(block_table.size(0)),
                                    .max_blocks = static_cast<int>(block_table.size(1))},
                          .max_context_len = max_context_len,
                          .num_rows = static_cast<int>(dims.size("num_rows")),
                          .num_tokens = static_cast<int>(dims.size("num_tokens"))};
  REPRISE_ASSIGN_OR_RETURN(args.table.block_size, CountArgument("block_size", block_size));
  REPRISE_ASSIGN_OR_RETURN(args.table.num_blocks, CountArgument("num_blocks", num_blocks));
  REPRISE_ASSIGN_OR_RETURN(args.packed, MakePacked(packed, args, sampled.device()));
  args.arrays = {.token_ids = token_ids.mutable_data_ptr<int32_t>(),
                 .positions = positions.mutable_data_ptr<int32_t>(),
                 .slot_mapping = slot_mapping.mutable_data_ptr<int64_t>(),
                 .query_start_loc = query_start_loc.mutable_data_ptr<int32_t>(),
                 .seq_lens = seq_lens.mutable_data_ptr<int32_t>(),
                 .table_row = table_row.mutable_data_ptr<int32_t>(),
                 .row_faults = row_faults.mutable_data_ptr<int32_t>()};
  if (sampled.is_cpu()) {
    REPRISE_RETURN_IF_ERROR(CheckAdvanceStep(args));
    AdvanceStepOnHost(args);
  } else {
    REPRISE_RETURN_IF_ERROR(
        LaunchOn(sampled.device(), "advance_step", [&]([[maybe_unused]] CUstream_st* stream) {
#ifdef REPRISE_WITH_CUDA
          return LaunchAdvanceStep(args, stream);
#else
                                       return absl::OkStatus();
#endif
        }));
  }
  call.Return({});
  return absl::OkStatus();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(reprise, library) {
  DefineOperator(library,
                 "local_virtual_batches(" REPRISE_BATCH_SCHEMA
                 ", *, int chunk_size, int num_tokens, Tensor? table_row=None, "
                 "Tensor? key_start=None) -> (Tensor query_start_loc, Tensor seq_lens, "
                 "Tensor table_row, Tensor key_start)",
                 LocalVirtualBatchesOp, TraceLocalVirtualBatches);
  DefineOperator(library,
                 "advance_step(Tensor sampled, Tensor block_table, Tensor(a!) seq_lens, "
                 "Tensor(b!) table_row, Tensor(c!) query_start_loc, Tensor(d!) token_ids, "
                 "Tensor(e!) positions, Tensor(f!) slot_mapping, Tensor(g!) row_faults, *, "
                 "int block_size, int num_blocks, int max_context_len, "
                 "Tensor(h!)? block_indptr=None, Tensor(i!)? block_indices=None, "
                 "Tensor(j!)? last_block_len=None) -> ()",
                 AdvanceStepOp);
}

}  // namespace reprise
