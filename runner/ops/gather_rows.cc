#include "runner/ops/gather_rows.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#ifdef REPRISE_WITH_CUDA
#include "runner/ops/cuda_launch.h"
#include "runner/ops/gather_rows_args.h"
#endif

namespace reprise {
namespace {

absl::Status GatherOnHost(const at::Tensor& table, const at::Tensor& indices,
                          const at::Tensor& out) {
  const int32_t* index = indices.const_data_ptr<int32_t>();
  const int64_t num_rows = table.size(0);
  for (int64_t i = 0; i < indices.numel(); ++i) {
    if (index[i] < 0 || index[i] >= num_rows) {
      return absl::OutOfRangeError(absl::StrCat("indices must be rows of table: expected [0, ",
                                                num_rows, "), got ", index[i], " at ", i));
    }
  }
  const int64_t element_bytes = table.element_size();
  const char* source = static_cast<const char*>(table.const_data_ptr());
  char* target = static_cast<char*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < indices.numel(); ++i) {
    std::memcpy(target + i * out.stride(0) * element_bytes,
                source + index[i] * table.stride(0) * element_bytes, table.size(1) * element_bytes);
  }
  return absl::OkStatus();
}

#ifdef REPRISE_WITH_CUDA
absl::Status GatherOnGpu(const at::Tensor& table, const at::Tensor& indices,
                         const at::Tensor& out) {
  const int64_t element_bytes = table.element_size();
  const GatherRowsArgs args = {
      .table = table.const_data_ptr(),
      .table_stride_bytes = table.stride(0) * element_bytes,
      .indices = indices.const_data_ptr<int32_t>(),
      .out = out.mutable_data_ptr(),
      .out_stride_bytes = out.stride(0) * element_bytes,
      .row_bytes = table.size(1) * element_bytes,
      .num_rows = table.size(0),
      .num_indices = static_cast<int>(indices.numel()),
  };
  return LaunchOnCurrentStream(out,
                               [&](cudaStream_t stream) { return LaunchGatherRows(args, stream); });
}
#endif

}  // namespace

absl::Status GatherRows(const at::Tensor& table, const at::Tensor& indices, const at::Tensor& out) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("table", table, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("table", table));
  REPRISE_RETURN_IF_ERROR(dims.Check("indices", indices, {"num_indices"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("indices", indices));
  REPRISE_RETURN_IF_ERROR(CheckDevice("indices", indices, table.device()));
  REPRISE_RETURN_IF_ERROR(dims.Check("out", out, {"num_indices", "size"}, table.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("out", out));
  REPRISE_RETURN_IF_ERROR(CheckDevice("out", out, table.device()));
  if (out.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (table.is_cuda()) return GatherOnGpu(table, indices, out);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("table", table, at::kCPU));
  return GatherOnHost(table, indices, out);
}

}  // namespace reprise
