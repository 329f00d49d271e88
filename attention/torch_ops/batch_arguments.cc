#include "reprise/attention/torch_ops/batch_arguments.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/torch_ops/argument_parts.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

absl::StatusOr<int> Bound(const char* argument, std::optional<int64_t> given, int64_t otherwise) {
  return CountArgument(argument, given.value_or(std::min(otherwise, kMaxInt)));
}

// Reads arrays of a batch, which must be dense and on the device of the queries.
class ArrayReader {
 public:
  explicit ArrayReader(at::Device device) : device_(device) {}

  ShapeChecker& dims() { return dims_; }

  absl::StatusOr<const int32_t*> Ints(const char* argument, const at::Tensor& tensor, Dim size) {
    REPRISE_RETURN_IF_ERROR(dims_.Check(argument, tensor, {size}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(argument, tensor));
    REPRISE_RETURN_IF_ERROR(CheckDevice(argument, tensor, device_));
    return tensor.const_data_ptr<int32_t>();
  }

  absl::StatusOr<const int32_t*> Ints(const char* argument, const std::optional<at::Tensor>& tensor,
                                      Dim size) {
    if (!tensor) return nullptr;
    return Ints(argument, *tensor, size);
  }

  absl::StatusOr<const uint64_t*> Masks(const char* argument,
                                        const std::optional<at::Tensor>& tensor, Dim size) {
    if (!tensor) return nullptr;
    REPRISE_RETURN_IF_ERROR(dims_.Check(argument, *tensor, {size}));
    REPRISE_RETURN_IF_ERROR(CheckDType(argument, *tensor, {at::kLong, at::kUInt64}));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(argument, *tensor));
    REPRISE_RETURN_IF_ERROR(CheckDevice(argument, *tensor, device_));
    return static_cast<const uint64_t*>(tensor->const_data_ptr());
  }

  // Sets the custom masks of a paged or ragged batch, if the call has masks.
  template <typename Batch>
  absl::Status TakeCustomMask(const std::optional<at::Tensor>& mask,
                              const std::optional<at::Tensor>& offset, Batch& batch) {
    if (mask) {
      REPRISE_RETURN_IF_ERROR(dims_.Check("custom_mask", *mask, {"mask_bytes"}, at::kByte));
      REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("custom_mask", *mask));
      REPRISE_RETURN_IF_ERROR(CheckDevice("custom_mask", *mask, device_));
      batch.custom_mask = mask->const_data_ptr<uint8_t>();
      batch.custom_mask_bytes = mask->size(0);
    }
    if (!offset) return absl::OkStatus();
    REPRISE_RETURN_IF_ERROR(dims_.Check("custom_mask_offset", *offset, {"num_rows"}, at::kLong));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("custom_mask_offset", *offset));
    REPRISE_RETURN_IF_ERROR(CheckDevice("custom_mask_offset", *offset, device_));
    batch.custom_mask_offset = offset->const_data_ptr<int64_t>();
    return absl::OkStatus();
  }

 private:
  at::Device device_;
  ShapeChecker dims_;
};

absl::StatusOr<KeyPositions> ToKeyPositions(const std::vector<int64_t>& numbers) {
  if (numbers.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("key_positions must be [rank, world, interleave]: expected 3 numbers, got ",
                     numbers.size()));
  }
  for (const int64_t number : numbers)
    REPRISE_RETURN_IF_ERROR(CountArgument("key_positions", number).status());
  return KeyPositions{.rank = static_cast<int>(numbers[0]),
                      .world = static_cast<int>(numbers[1]),
                      .interleave = static_cast<int>(numbers[2])};
}

// Checks for the shape [num_rows + 1]. Binds num_rows.
absl::Status CheckStartLoc(const char* argument, const at::Tensor& loc, ShapeChecker& dims) {
  if (loc.dim() != 1 || loc.size(0) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        argument, " must be [num_rows + 1]: expected one dimension of at least 1, got ", loc.dim(),
        " dimensions and ", loc.numel(), " elements"));
  }
  dims.Bind("num_rows", loc.size(0) - 1);
  return absl::OkStatus();
}

}  // namespace

void ReadBatchArguments(OperatorCall& call, BatchArguments& arguments) {
  arguments.block_table = call.Tensor("block_table");
  arguments.seq_lens = call.Tensor("seq_lens");
  arguments.query_start_loc = call.Tensor("query_start_loc");
}

void ReadBatchOptions(OperatorCall& call, BatchArguments& arguments) {
  arguments.table_row = call.MaybeTensor("table_row");
  arguments.key_start = call.MaybeTensor("key_start");
  arguments.query_positions = call.MaybeTensor("query_positions");
  arguments.tail_len = call.MaybeTensor("tail_len");
  arguments.tail_mask = call.MaybeTensor("tail_mask");
  arguments.common_prefix_len = call.MaybeTensor("common_prefix_len");
  arguments.key_positions = call.MaybeInts("key_positions");
  arguments.causal = call.Bool("causal");
  arguments.max_query_len = call.MaybeInt("max_query_len");
  arguments.max_seq_len = call.MaybeInt("max_seq_len");
  arguments.custom_mask = call.MaybeTensor("custom_mask");
  arguments.custom_mask_offset = call.MaybeTensor("custom_mask_offset");
}

absl::StatusOr<PagedBatch> MakePagedBatch(const BatchArguments& arguments, int64_t num_tokens,
                                          int64_t block_size, at::Device device) {
  ArrayReader arrays(device);
  ShapeChecker& dims = arrays.dims();
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("query_start_loc", arguments.query_start_loc, dims));
  dims.Bind("num_tokens", num_tokens);
  const at::Tensor& table = arguments.block_table;
  REPRISE_RETURN_IF_ERROR(dims.Check("block_table", table, {"num_tables", "max_blocks"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("block_table", table));
  REPRISE_RETURN_IF_ERROR(CheckDevice("block_table", table, device));
  PagedBatch batch = {.block_table = table.const_data_ptr<int32_t>(),
                      .block_table_stride = table.stride(0),
                      .causal = arguments.causal,
                      .num_rows = static_cast<int>(dims.size("num_rows")),
                      .num_tokens = static_cast<int>(num_tokens),
                      .num_tables = static_cast<int>(table.size(0)),
                      .max_blocks = static_cast<int>(table.size(1))};
  REPRISE_ASSIGN_OR_RETURN(
      batch.query_start_loc,
      arrays.Ints("query_start_loc", arguments.query_start_loc, dims.size("num_rows") + 1));
  REPRISE_ASSIGN_OR_RETURN(batch.seq_lens, arrays.Ints("seq_lens", arguments.seq_lens, "num_rows"));
  REPRISE_ASSIGN_OR_RETURN(batch.table_row,
                           arrays.Ints("table_row", arguments.table_row, "num_rows"));
  REPRISE_ASSIGN_OR_RETURN(batch.key_start,
                           arrays.Ints("key_start", arguments.key_start, "num_rows"));
  REPRISE_ASSIGN_OR_RETURN(
      batch.query_positions,
      arrays.Ints("query_positions", arguments.query_positions, AtLeast("num_tokens")));
  REPRISE_ASSIGN_OR_RETURN(batch.tail_len, arrays.Ints("tail_len", arguments.tail_len, "num_rows"));
  REPRISE_ASSIGN_OR_RETURN(batch.tail_mask,
                           arrays.Masks("tail_mask", arguments.tail_mask, AtLeast("num_tokens")));
  REPRISE_ASSIGN_OR_RETURN(batch.common_prefix_len,
                           arrays.Ints("common_prefix_len", arguments.common_prefix_len, 1));
  REPRISE_RETURN_IF_ERROR(
      arrays.TakeCustomMask(arguments.custom_mask, arguments.custom_mask_offset, batch));
  if (arguments.key_positions) {
    REPRISE_ASSIGN_OR_RETURN(batch.key_positions, ToKeyPositions(*arguments.key_positions));
  }
  REPRISE_ASSIGN_OR_RETURN(batch.max_query_len,
                           Bound("max_query_len", arguments.max_query_len, num_tokens));
  REPRISE_ASSIGN_OR_RETURN(batch.max_seq_len,
                           Bound("max_seq_len", arguments.max_seq_len, table.size(1) * block_size));
  return batch;
}

absl::StatusOr<RaggedBatch> MakeRaggedBatch(const RaggedBatchArguments& arguments,
                                            int64_t num_tokens, int64_t num_keys,
                                            at::Device device) {
  ArrayReader arrays(device);
  ShapeChecker& dims = arrays.dims();
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("query_start_loc", arguments.query_start_loc, dims));
  dims.Bind("num_tokens", num_tokens);
  const int64_t num_rows = dims.size("num_rows");
  RaggedBatch batch = {.causal = arguments.causal,
                       .num_rows = static_cast<int>(num_rows),
                       .num_tokens = static_cast<int>(num_tokens),
                       .num_keys = static_cast<int>(num_keys)};
  REPRISE_ASSIGN_OR_RETURN(batch.query_start_loc,
                           arrays.Ints("query_start_loc", arguments.query_start_loc, num_rows + 1));
  REPRISE_ASSIGN_OR_RETURN(batch.key_start_loc,
                           arrays.Ints("key_start_loc", arguments.key_start_loc, num_rows + 1));
  REPRISE_ASSIGN_OR_RETURN(
      batch.query_positions,
      arrays.Ints("query_positions", arguments.query_positions, AtLeast("num_tokens")));
  REPRISE_ASSIGN_OR_RETURN(batch.max_query_len,
                           Bound("max_query_len", arguments.max_query_len, num_tokens));
  REPRISE_ASSIGN_OR_RETURN(batch.max_seq_len,
                           Bound("max_seq_len", arguments.max_seq_len, num_keys));
  REPRISE_RETURN_IF_ERROR(
      arrays.TakeCustomMask(arguments.custom_mask, arguments.custom_mask_offset, batch));
  return batch;
}

}  // namespace reprise
