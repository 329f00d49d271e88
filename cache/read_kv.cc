#include "cache/read_kv.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "cache/kv_layout.h"
#include "cache/read_kv_cpu.h"
#include "cache/read_kv_params.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "base/cuda_status.h"
#include "cache/read_kv_kernel.h"
#endif

namespace reprise {
namespace {

absl::Status CheckLayer(const KvLayer& kv) {
  if (kv.num_blocks < 1 || kv.block_size < 1 || kv.num_kv_heads < 1 || kv.head_dim_qk < 1 ||
      kv.head_dim_v < 1 || kv.k.dim_chunk < 1 || kv.v.dim_chunk < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv must have positive sizes: got num_blocks ", kv.num_blocks, ", block_size ",
                     kv.block_size, ", num_kv_heads ", kv.num_kv_heads, ", head_dim_qk ",
                     kv.head_dim_qk, ", head_dim_v ", kv.head_dim_v));
  }
  if (kv.k.data != nullptr && kv.v.data != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("kv must point to memory: got null for ", kv.k.data == nullptr ? "k" : "v"));
}

// REQUIRES: "num_tokens" is bound.
absl::Status CheckDestinations(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                               ShapeChecker& dims) {
  dims.Bind("num_kv_heads", kv.num_kv_heads);
  dims.Bind("head_dim_qk", kv.head_dim_qk);
  dims.Bind("head_dim_v", kv.head_dim_v);
  REPRISE_RETURN_IF_ERROR(
      dims.Check("k", k, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_qk"}));
  if (IsLatent(kv)) {
    if (!v.defined()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "v must be undefined for a latent cache: expected none, got a tensor");
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("v", v, {AtLeast("num_tokens"), "num_kv_heads", "head_dim_v"}));
  REPRISE_RETURN_IF_ERROR(CheckDType("v", v, {k.scalar_type()}));
  return CheckDevice("v", v, k.device());
}

KvDestination DestinationOf(const at::Tensor& tensor) {
  return {.data = tensor.mutable_data_ptr(),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1),
          .dim_stride = tensor.stride(2)};
}

// Runs `params`, whose destinations are still to be set.
absl::Status Run(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v, ReadKvParams params) {
  const std::optional<DType> dtype = FromScalarType(k.scalar_type());
  if (!dtype.has_value() || IsFp8(*dtype) || (*dtype == DType::kFloat64 && !k.is_cpu())) {
    return absl::UnimplementedError(absl::StrCat(
        "no KV read into the dtype of k: expected float32, float16 or bfloat16",
        k.is_cpu() ? " or float64" : "", ", got ", c10::getDtypeNames(k.scalar_type()).first));
  }
  params.kv = kv;
  params.k = DestinationOf(k);
  params.num_sides = v.defined() ? 2 : 1;
  if (v.defined()) params.v = DestinationOf(v);
  params.dtype = *dtype;
  if (params.num_tokens == 0) return absl::OkStatus();
  if (k.is_cpu()) {
    ReadKvOnCpu(params);
    return absl::OkStatus();
  }
#ifdef REPRISE_WITH_CUDA
  if (k.is_cuda()) {
    if (kv.dtype == DType::kFloat64) {
      return absl::UnimplementedError("no KV read of a float64 cache on CUDA");
    }
    const c10::cuda::CUDAGuard guard(k.device());
    return CudaStatus(
        LaunchReadKv(params, c10::cuda::getCurrentCUDAStream(k.device().index()).stream()),
        "the KV read");
  }
#endif
  return absl::UnimplementedError(
      absl::StrCat("no KV read for the device of k: expected cpu or cuda, got ", k.device().str()));
}

absl::Status CheckOptional(ShapeChecker& dims, const char* name, const at::Tensor& tensor,
                           at::Device device) {
  if (!tensor.defined()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {"num_rows"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, tensor));
  return CheckDevice(name, tensor, device);
}

const int32_t* DataOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<int32_t>() : nullptr;
}

}  // namespace

absl::Status ReadKv(const KvLayer& kv, const at::Tensor& slot_mapping, const at::Tensor& k,
                    const at::Tensor& v) {
  REPRISE_RETURN_IF_ERROR(CheckLayer(kv));
  for (const Scale* scale : {&kv.k_scale, &kv.v_scale}) {
    if (scale->data == nullptr || scale->row_stride == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("scales of kv must not depend on the table row: expected row_stride 0, got ",
                     scale->row_stride));
  }
  return CatchTorch([&]() -> absl::Status {
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_tokens"}, at::kLong));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("slot_mapping", slot_mapping));
    REPRISE_RETURN_IF_ERROR(CheckDestinations(kv, k, v, dims));
    REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slot_mapping, k.device()));
    return Run(kv, k, v,
               {.num_tokens = slot_mapping.size(0),
                .slot_mapping = slot_mapping.const_data_ptr<int64_t>()});
  });
}

absl::Status ReadKvRows(const KvLayer& kv, const KvRows& rows, const at::Tensor& k,
                        const at::Tensor& v) {
  REPRISE_RETURN_IF_ERROR(CheckLayer(kv));
  return CatchTorch([&]() -> absl::Status {
    ShapeChecker dims;
    dims.Bind("num_tokens", 0);
    REPRISE_RETURN_IF_ERROR(CheckDestinations(kv, k, v, dims));
    REPRISE_RETURN_IF_ERROR(
        dims.Check("block_table", rows.block_table, {"num_tables", "max_blocks"}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("block_table", rows.block_table));
    REPRISE_RETURN_IF_ERROR(CheckDevice("block_table", rows.block_table, k.device()));
    REPRISE_RETURN_IF_ERROR(dims.Check("start_loc", rows.start_loc, {AtLeast(Dim(1))}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("start_loc", rows.start_loc));
    REPRISE_RETURN_IF_ERROR(CheckDevice("start_loc", rows.start_loc, k.device()));
    dims.Bind("num_rows", rows.start_loc.size(0) - 1);
    REPRISE_RETURN_IF_ERROR(CheckOptional(dims, "table_row", rows.table_row, k.device()));
    REPRISE_RETURN_IF_ERROR(CheckOptional(dims, "key_start", rows.key_start, k.device()));
    const int64_t num_tokens = v.defined() ? std::min(k.size(0), v.size(0)) : k.size(0);
    return Run(kv, k, v,
               {.num_tokens = num_tokens,
                .block_table = rows.block_table.const_data_ptr<int32_t>(),
                .table_stride = rows.block_table.stride(0),
                .num_tables = static_cast<int>(rows.block_table.size(0)),
                .max_blocks = static_cast<int>(rows.block_table.size(1)),
                .start_loc = rows.start_loc.const_data_ptr<int32_t>(),
                .table_row = DataOf(rows.table_row),
                .key_start = DataOf(rows.key_start),
                .num_rows = static_cast<int>(rows.start_loc.size(0) - 1)});
  });
}

}  // namespace reprise
