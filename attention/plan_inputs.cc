#include "reprise/attention/plan_inputs.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "reprise/base/divisor.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

constexpr int64_t kAlignment = 256 / 4;  // elements

absl::Status CheckReserved(const char* name, int64_t most, int64_t got) {
  if (got >= 0 && got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must fit the planned capacity: expected 0 to ", most, ", got ", got));
}

// Copies `source` into `part`, whose address does not change.
void CopyInto(const at::Tensor& part, const at::Tensor& source) {
  if (source.numel() == 0) return;
  if (!source.is_cpu() || part.is_cpu()) {
    part.copy_(source);
    return;
  }
  // LibTorch does not reuse pinned memory before the copy has run.
  const at::Tensor pinned =
      at::empty(source.sizes(), at::TensorOptions().dtype(source.dtype()).pinned_memory(true));
  pinned.copy_(source);
  part.copy_(pinned, /*non_blocking=*/true);
}

// Views part of an array of 4-byte elements as `count` elements of `dtype`.
at::Tensor PartAs(const at::Tensor& arrays, int64_t offset, int64_t count, at::ScalarType dtype) {
  const int64_t num_bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
  return arrays.slice(0, offset, offset + CeilDiv(num_bytes, 4)).view(dtype).slice(0, 0, count);
}

at::Tensor Part(const at::Tensor& arrays, int64_t offset, int64_t count) {
  return arrays.slice(0, offset, offset + count);
}

// The elements of a contiguous array on the host.
absl::Span<const int32_t> SpanOf(const at::Tensor& array) {
  return {array.const_data_ptr<int32_t>(), static_cast<size_t>(array.numel())};
}
bool IsPacked(const PlanInputs& inputs) { return inputs.block_indptr.has_value(); }

bool IsPackedOnHost(const PlanInputs& inputs) {
  return inputs.block_indptr->is_cpu() && inputs.block_indices->is_cpu() &&
         inputs.last_block_len->is_cpu();
}

absl::Status CheckElement(const char* name, int64_t index, int64_t least, int64_t most,
                          int64_t got) {
  if (got >= least && got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, "[", index, "]: expected ", least, " to ", most, ", got ", got));
}

constexpr int kNumTableArrays = 5;  // the first elements of ArraysOf()

struct NamedArray {
  const char* name;
  const std::optional<at::Tensor>* array;
};

std::array<NamedArray, 8> ArraysOf(const PlanInputs& inputs) {
  return {{{"seq_lens", &inputs.seq_lens},
           {"block_table", &inputs.block_table},
           {"block_indptr", &inputs.block_indptr},
           {"block_indices", &inputs.block_indices},
           {"last_block_len", &inputs.last_block_len},
           {"query_start_loc", &inputs.query_start_loc},
           {"custom_mask", &inputs.custom_mask},
           {"custom_mask_offset", &inputs.custom_mask_offset}}};
}

absl::Status CheckForm(const PlanInputs& inputs) {
  const bool padded = inputs.seq_lens && inputs.block_table;
  const bool packed = inputs.block_indptr && inputs.block_indices && inputs.last_block_len;
  const bool some_padded = inputs.seq_lens || inputs.block_table;
  const bool some_packed = inputs.block_indptr || inputs.block_indices || inputs.last_block_len;
  if ((padded && !some_packed) || (packed && !some_padded)) return absl::OkStatus();
  std::string got;
  const auto arrays = ArraysOf(inputs);
  for (const auto& [name, array] : absl::MakeConstSpan(arrays).first(kNumTableArrays)) {
    if (array->has_value()) absl::StrAppend(&got, got.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the block table must be padded or packed: expected seq_lens and block_table, "
                   "or block_indptr, "
                   "block_indices and last_block_len, got ",
                   got.empty() ? "nothing" : got));
}

}  // namespace

const char* FirstInputOnHost(const PlanInputs& inputs) {
  for (const auto& [name, array] : ArraysOf(inputs)) {
    if (array->has_value() && (*array)->is_cpu()) return name;
  }
  return nullptr;
}

PlanInputSpace::PlanInputSpace(const PlanCapacities& capacities)
    : capacities_(capacities),
      max_blocks_(static_cast<int>(CeilDiv(capacities.max_seq_len, capacities.block_size))),
      max_block_indices_(
          capacities.max_block_indices.value_or(int64_t{capacities.max_rows} * max_blocks_)) {
  const auto place = [this](int64_t count) {
    return std::exchange(size_, CeilDiv(size_ + count, kAlignment) * kAlignment);
  };
  const int64_t rows = capacities.max_rows;
  query_start_loc_ = place(rows + 1);
  seq_lens_ = place(rows);
  block_table_ = place(rows * max_blocks_);
  block_indptr_ = place(rows + 1);
  last_block_len_ = place(rows);
  block_indices_ = place(max_block_indices_);
  if (capacities.max_custom_mask_bytes == 0) return;
  mask_offset_ = place(2 * rows);
  mask_ = place(CeilDiv(capacities.max_custom_mask_bytes, 4));
}

absl::Status PlanInputSpace::CheckTable(const PlanInputs& inputs, int64_t num_rows) const {
  ShapeChecker dims;
  if (!IsPacked(inputs)) {
    const at::Tensor& table = *inputs.block_table;
    REPRISE_RETURN_IF_ERROR(dims.Check("block_table", table, {num_rows, "columns"}, at::kInt));
    return CheckReserved("block_table's columns", max_blocks_, table.size(1));
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("block_indptr", *inputs.block_indptr, {num_rows + 1}, at::kInt));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("block_indices", *inputs.block_indices, {"num_indices"}, at::kInt));
  return CheckReserved("block_indices", max_block_indices_, inputs.block_indices->size(0));
}

absl::Status PlanInputSpace::CheckMask(const PlanInputs& inputs, int64_t num_rows) const {
  if (!inputs.custom_mask && !inputs.custom_mask_offset) return absl::OkStatus();
  if (!inputs.custom_mask || !inputs.custom_mask_offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("custom_mask and custom_mask_offset must be given together: got ",
                     inputs.custom_mask ? "custom_mask" : "custom_mask_offset", " alone"));
  }
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      dims.Check("custom_mask", *inputs.custom_mask, {"mask_bytes"}, at::kByte));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("custom_mask_offset", *inputs.custom_mask_offset, {num_rows}, at::kLong));
  const int64_t num_bytes = dims.size("mask_bytes");
  REPRISE_RETURN_IF_ERROR(
      CheckReserved("custom_mask's bytes", capacities_.max_custom_mask_bytes, num_bytes));
  if (!inputs.custom_mask_offset->is_cpu()) return absl::OkStatus();
  const at::Tensor offsets = inputs.custom_mask_offset->contiguous();
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t offset = offsets.const_data_ptr<int64_t>()[r];
    REPRISE_RETURN_IF_ERROR(CheckElement("custom_mask_offset", r, -1, num_bytes, offset));
  }
  return absl::OkStatus();
}

absl::Status PlanInputSpace::CheckLengthsOnHost(const PlanInputs& inputs, int64_t num_rows) const {
  if (!IsPacked(inputs) && inputs.seq_lens->is_cpu()) {
    const at::Tensor lens = inputs.seq_lens->contiguous();
    const int64_t most = std::min<int64_t>(capacities_.max_seq_len,
                                           inputs.block_table->size(1) * capacities_.block_size);
    for (int64_t r = 0; r < num_rows; ++r) {
      REPRISE_RETURN_IF_ERROR(CheckElement("seq_lens", r, 0, most, SpanOf(lens)[r]));
    }
  }
  if (!inputs.query_start_loc || !inputs.query_start_loc->is_cpu()) return absl::OkStatus();
  const at::Tensor starts = inputs.query_start_loc->contiguous();
  const absl::Span<const int32_t> loc = SpanOf(starts);
  REPRISE_RETURN_IF_ERROR(CheckElement("query_start_loc", 0, 0, 0, loc[0]));
  for (int64_t r = 0; r < num_rows; ++r) {
    REPRISE_RETURN_IF_ERROR(CheckElement("query_start_loc", r + 1, loc[r],
                                         int64_t{loc[r]} + capacities_.max_query_len, loc[r + 1]));
  }
  return absl::OkStatus();
}

absl::StatusOr<PlanShape> PlanInputSpace::Check(const PlanInputs& inputs, at::Device device) const {
  REPRISE_RETURN_IF_ERROR(CheckForm(inputs));
  for (const auto& [name, array] : ArraysOf(inputs)) {
    if (!array->has_value() || (*array)->is_cpu()) continue;
    REPRISE_RETURN_IF_ERROR(CheckDevice(name, **array, device));
  }
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(
      IsPacked(inputs)
          ? dims.Check("last_block_len", *inputs.last_block_len, {"num_rows"}, at::kInt)
          : dims.Check("seq_lens", *inputs.seq_lens, {"num_rows"}, at::kInt));
  const int64_t num_rows = dims.size("num_rows");
  REPRISE_RETURN_IF_ERROR(CheckReserved("num_rows", capacities_.max_rows, num_rows));
  REPRISE_RETURN_IF_ERROR(CheckTable(inputs, num_rows));
  int64_t num_tokens = num_rows;
  int64_t num_live_tokens = num_rows;
  if (inputs.query_start_loc) {
    const at::Tensor& starts = *inputs.query_start_loc;
    REPRISE_RETURN_IF_ERROR(dims.Check("query_start_loc", starts, {num_rows + 1}, at::kInt));
    num_tokens = capacities_.max_tokens;
    num_live_tokens = 0;
    if (starts.is_cpu()) num_tokens = num_live_tokens = starts[num_rows].item<int32_t>();
  }
  REPRISE_RETURN_IF_ERROR(CheckLengthsOnHost(inputs, num_rows));
  REPRISE_RETURN_IF_ERROR(CheckMask(inputs, num_rows));
  num_tokens = inputs.num_tokens.value_or(num_tokens);
  REPRISE_RETURN_IF_ERROR(CheckReserved("num_tokens", capacities_.max_tokens, num_tokens));
  if (num_tokens < num_live_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_tokens must hold all queries: expected at least ", num_live_tokens,
                     ", got ", num_tokens));
  }
  return PlanShape{.num_rows = static_cast<int>(num_rows),
                   .num_tokens = static_cast<int>(num_tokens)};
}

ConvertTablesArgs PlanInputSpace::Unpacking(const PackedBlockTable& packed, int32_t* entries,
                                            int32_t* seq_lens) const {
  return {.packed = packed,
          .num_rows = packed.num_rows,
          .out = {.table = {.entries = entries,
                            .row_stride = max_blocks_,
                            .num_tables = packed.num_rows,
                            .max_blocks = max_blocks_,
                            .block_size = packed.block_size},
                  .seq_lens = seq_lens}};
}

absl::Status PlanInputSpace::CopyPackedFromHost(const PlanInputs& inputs, const PlanShape& shape,
                                                const at::Tensor& arrays) const {
  const at::Tensor indptr = inputs.block_indptr->contiguous();
  const at::Tensor indices = inputs.block_indices->contiguous();
  const at::Tensor last = inputs.last_block_len->contiguous();
  const int64_t num_entries = int64_t{shape.num_rows} * max_blocks_;
  const at::Tensor lens = at::empty({shape.num_rows}, at::kInt);
  const at::Tensor table = at::empty({num_entries}, at::kInt);
  REPRISE_RETURN_IF_ERROR(ConvertTables(
      Unpacking({.block_indptr = indptr.const_data_ptr<int32_t>(),
                 .block_indices = indices.const_data_ptr<int32_t>(),
                 .last_block_len = last.const_data_ptr<int32_t>(),
                 .num_rows = shape.num_rows,
                 .max_indices = static_cast<int>(indices.numel()),
                 .block_size = capacities_.block_size},
                table.mutable_data_ptr<int32_t>(), lens.mutable_data_ptr<int32_t>())));
  for (int64_t r = 0; r < shape.num_rows; ++r) {
    REPRISE_RETURN_IF_ERROR(
        CheckElement("keys of row", r, 0, capacities_.max_seq_len, SpanOf(lens)[r]));
  }
  CopyInto(Part(arrays, seq_lens_, shape.num_rows), lens);
  CopyInto(Part(arrays, block_table_, num_entries), table);
  return absl::OkStatus();
}

absl::Status PlanInputSpace::Unpack(const PlanInputs& inputs, const PlanShape& shape,
                                    const at::Tensor& arrays, CUstream_st* stream) const {
  const int num_indices = static_cast<int>(inputs.block_indices->size(0));
  CopyInto(Part(arrays, block_indptr_, shape.num_rows + 1), *inputs.block_indptr);
  CopyInto(Part(arrays, last_block_len_, shape.num_rows), *inputs.last_block_len);
  CopyInto(Part(arrays, block_indices_, num_indices), *inputs.block_indices);
  int32_t* const data = arrays.mutable_data_ptr<int32_t>();
  const ConvertTablesArgs args = Unpacking({.block_indptr = data + block_indptr_,
                                            .block_indices = data + block_indices_,
                                            .last_block_len = data + last_block_len_,
                                            .num_rows = shape.num_rows,
                                            .max_indices = num_indices,
                                            .block_size = capacities_.block_size},
                                           data + block_table_, data + seq_lens_);
#ifdef REPRISE_WITH_CUDA
  return LaunchConvertTables(args, stream);
#else
  static_cast<void>(args);
  static_cast<void>(stream);
  return absl::UnimplementedError(
      "packed tables on a GPU: expected a build with CUDA, got one without");
#endif
}

absl::Status PlanInputSpace::Copy(const PlanInputs& inputs, const PlanShape& shape,
                                  const at::Tensor& memory, CUstream_st* stream) const {
  const at::Tensor arrays = memory.slice(0, 0, num_bytes()).view(at::kInt);
  // Packed tables on the host come first, because their content is checked before anything is
  // copied.
  if (IsPacked(inputs) && IsPackedOnHost(inputs)) {
    REPRISE_RETURN_IF_ERROR(CopyPackedFromHost(inputs, shape, arrays));
  } else if (IsPacked(inputs)) {
    REPRISE_RETURN_IF_ERROR(Unpack(inputs, shape, arrays, stream));
  } else {
    const at::Tensor table = Part(arrays, block_table_, int64_t{shape.num_rows} * max_blocks_)
                                 .view({shape.num_rows, max_blocks_});
    const int64_t columns = inputs.block_table->size(1);
    if (inputs.block_table->is_cpu() && !table.is_cpu() && columns < max_blocks_) {
      at::Tensor wide = at::zeros({shape.num_rows, max_blocks_}, at::kInt);
      wide.slice(1, 0, columns).copy_(*inputs.block_table);
      CopyInto(table, wide);  // a single contiguous copy
    } else {
      CopyInto(table.slice(1, 0, columns), *inputs.block_table);
    }
    CopyInto(Part(arrays, seq_lens_, shape.num_rows), *inputs.seq_lens);
  }
  at::Tensor starts = Part(arrays, query_start_loc_, shape.num_rows + 1);
  if (inputs.query_start_loc) {
    CopyInto(starts, *inputs.query_start_loc);
  } else {
    at::arange_out(starts, shape.num_rows + 1);
  }
  if (capacities_.max_custom_mask_bytes > 0) CopyMask(inputs, shape, arrays);
  return absl::OkStatus();
}

void PlanInputSpace::CopyMask(const PlanInputs& inputs, const PlanShape& shape,
                              const at::Tensor& arrays) const {
  const at::Tensor offsets = PartAs(arrays, mask_offset_, shape.num_rows, at::kLong);
  if (!inputs.custom_mask) {
    offsets.fill_(-1);
    return;
  }
  CopyInto(offsets, *inputs.custom_mask_offset);
  CopyInto(PartAs(arrays, mask_, inputs.custom_mask->size(0), at::kByte), *inputs.custom_mask);
}

PagedBatch PlanInputSpace::BatchOf(const PlanShape& shape, const at::Tensor& memory) const {
  const auto* data = static_cast<const int32_t*>(memory.const_data_ptr());
  const bool has_masks = capacities_.max_custom_mask_bytes > 0;
  return {.query_start_loc = data + query_start_loc_,
          .seq_lens = data + seq_lens_,
          .block_table = data + block_table_,
          .block_table_stride = max_blocks_,
          .custom_mask = has_masks ? reinterpret_cast<const uint8_t*>(data + mask_) : nullptr,
          .custom_mask_offset =
              has_masks ? reinterpret_cast<const int64_t*>(data + mask_offset_) : nullptr,
          .num_rows = shape.num_rows,
          .num_tokens = shape.num_tokens,
          .max_query_len = capacities_.max_query_len,
          .max_seq_len = capacities_.max_seq_len,
          .num_tables = shape.num_rows,
          .max_blocks = max_blocks_,
          .custom_mask_bytes = capacities_.max_custom_mask_bytes};
}

}  // namespace reprise
