#include "reprise/runner/ops/gather_rows.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#include "reprise/runner/ops/gather_rows_args.h"
#endif

namespace reprise {
namespace {

// Rows whose index is not in the table become zero.
absl::Status GatherOnHost(const at::Tensor& table, int64_t first_row, const at::Tensor& indices,
                          const at::Tensor& out) {
  const int32_t* index = indices.const_data_ptr<int32_t>();
  const int64_t num_rows = table.size(0);
  const int64_t element_bytes = table.element_size();
  const char* source = static_cast<const char*>(table.const_data_ptr());
  char* target = static_cast<char*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < indices.numel(); ++i) {
    char* const to = target + i * out.stride(0) * element_bytes;
    const int64_t row = index[i] - first_row;
    if (row < 0 || row >= num_rows) {
      std::memset(to, 0, table.size(1) * element_bytes);
    } else {
      std::memcpy(to, source + row * table.stride(0) * element_bytes,
                  table.size(1) * element_bytes);
    }
  }
  return absl::OkStatus();
}

// Checks indices in host memory.
absl::Status CheckIndices(const at::Tensor& indices, int64_t num_rows) {
  const int32_t* index = indices.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < indices.numel(); ++i) {
    if (index[i] < 0 || index[i] >= num_rows) {
      return absl::OutOfRangeError(absl::StrCat("indices must be rows of table: expected [0, ",
                                                num_rows, "), got ", index[i], " at ", i));
    }
  }
  return absl::OkStatus();
}

#ifdef REPRISE_WITH_CUDA
absl::Status GatherOnGpu(const at::Tensor& table, int64_t first_row, const at::Tensor& indices,
                         const at::Tensor& out) {
  const int64_t element_bytes = table.element_size();
  const GatherRowsArgs args = {
      .table = table.const_data_ptr(),
      .table_stride_bytes = table.stride(0) * element_bytes,
      .indices = indices.const_data_ptr<int32_t>(),
      .out = out.mutable_data_ptr(),
      .out_stride_bytes = out.stride(0) * element_bytes,
      .row_bytes = table.size(1) * element_bytes,
      .first_row = first_row,
      .num_rows = table.size(0),
      .num_indices = static_cast<int>(indices.numel()),
  };
  return LaunchOnCurrentStream(out,
                               [&](cudaStream_t stream) { return LaunchGatherRows(args, stream); });
}
#endif

absl::Status CheckGather(const at::Tensor& table, const at::Tensor& indices,
                         const at::Tensor& out) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("table", table, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("table", table));
  REPRISE_RETURN_IF_ERROR(dims.Check("indices", indices, {"num_indices"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("indices", indices));
  REPRISE_RETURN_IF_ERROR(CheckDevice("indices", indices, table.device()));
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_indices", "size"}, table.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  return CheckDevice("out", out, table.device());
}

absl::Status Gather(const at::Tensor& table, int64_t first_row, const at::Tensor& indices,
                    const at::Tensor& out) {
  if (out.numel() == 0) return absl::OkStatus();
#ifdef REPRISE_WITH_CUDA
  if (table.is_cuda()) return GatherOnGpu(table, first_row, indices, out);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("table", table, at::kCPU));
  return GatherOnHost(table, first_row, indices, out);
}

}  // namespace

absl::Status GatherRows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(CheckGather(table, indices, out));
  if (indices.is_cpu() && out.numel() > 0) {
    REPRISE_RETURN_IF_ERROR(CheckIndices(indices, table.size(0)));
  }
  return Gather(table, 0, indices, out);
}

absl::Status GatherSomeRows(const at::Tensor& table, int64_t first_row, const at::Tensor& indices,
                            const at::Tensor& out) {
  REPRISE_RETURN_IF_ERROR(CheckGather(table, indices, out));
  if (first_row < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_row must not be negative: expected >= 0, got ", first_row));
  }
  return Gather(table, first_row, indices, out);
}

}  // namespace reprise
