#include "reprise/attention/attention.h"

#include <ATen/Parallel.h>

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/checks.h"
#include "reprise/attention/cpu/host_attention.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/token_view.h"
#include "reprise/attention/validate.h"
#include "reprise/base/parallel/parallel_for.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

TokenView ViewOf(const at::Tensor& tensor, void* data) {
  return {.data = data,
          .dtype = *FromScalarType(tensor.scalar_type()),
          .token_stride = tensor.stride(0),
          .head_stride = tensor.stride(1)};
}

TokenView ViewOf(const at::Tensor& tensor) {
  return ViewOf(tensor, const_cast<void*>(tensor.const_data_ptr()));
}

HostOutput OutputOf(const AttentionOutput& tensors, const AttentionExtras& extras) {
  at::Tensor& out = tensors.out;
  HostOutput output = {.out = ViewOf(out, out.mutable_data_ptr()), .num_out_tokens = out.size(0)};
  if (at::Tensor* const lse = tensors.lse) {
    output.lse = lse->mutable_data_ptr<float>();
    output.lse_token_stride = lse->stride(0);
    output.lse_head_stride = lse->stride(1);
    output.num_lse_tokens = lse->size(0);
  }
  output.scale = extras.out_scale;
  if (at::Tensor* scales = extras.out_block_scales) {
    output.block_scales = scales->mutable_data_ptr<float>();
    output.block_token_stride = scales->stride(0);
    output.block_head_stride = scales->stride(1);
    output.block = static_cast<int>(out.size(2) / scales->size(2));
  }
  return output;
}

NewKeys NewKeysOf(const AttentionExtras& extras) {
  if (extras.new_k == nullptr) return {};
  return {.k = ViewOf(*extras.new_k), .v = ViewOf(*extras.new_v)};
}

// Uses LibTorch's thread pool, which LibTorch's matrix products also use.
void RunOnTorchThreads(int num_shares, absl::FunctionRef<void(int)> run_share) {
  ParallelFor(0, num_shares, /*grain=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t share = begin; share < end; ++share) run_share(static_cast<int>(share));
  });
}

HostThreads TorchThreads() { return {.run = RunOnTorchThreads, .count = at::get_num_threads()}; }

absl::Status CheckIsHost(const at::Tensor& q) {
  if (q.is_cpu()) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("q must be on the CPU or on a CUDA device, got ", q.device().str()));
}

}  // namespace

absl::Status PagedAttention(const AttentionParams& layer, const PagedBatch& batch,
                            const BatchSchedule& work, const at::Tensor& q, const KvLayer& kv,
                            const AttentionOutput& output, const AttentionExtras& extras) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(ValidatePagedAttention(layer, batch, q, kv, output, extras));
    if (q.is_cuda()) return PagedAttentionCuda(layer, batch, work, q, kv, output, extras);
    REPRISE_RETURN_IF_ERROR(CheckIsHost(q));
    REPRISE_RETURN_IF_ERROR(CheckBatchArrays(layer, batch, kv));
    PagedAttentionOnHost({.layer = layer,
                          .kv = kv,
                          .q = ViewOf(q),
                          .output = OutputOf(output, extras),
                          .new_keys = NewKeysOf(extras)},
                         batch, TorchThreads());
    return absl::OkStatus();
  });
}

absl::Status RaggedAttention(const AttentionParams& layer, const RaggedBatch& batch,
                             const BatchSchedule& work, const at::Tensor& q,
                             const ContiguousKeys& keys, const AttentionOutput& output,
                             const AttentionExtras& extras) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(ValidateRaggedAttention(layer, batch, q, keys, output, extras));
    if (q.is_cuda()) return RaggedAttentionCuda(layer, batch, work, q, keys, output, extras);
    REPRISE_RETURN_IF_ERROR(CheckIsHost(q));
    REPRISE_RETURN_IF_ERROR(CheckBatchArrays(batch));
    RaggedAttentionOnHost({.layer = layer,
                           .kv = ContiguousKv(layer, ViewOf(keys.k), ViewOf(keys.v),
                                              {.k = keys.k_scale, .v = keys.v_scale}),
                           .q = ViewOf(q),
                           .output = OutputOf(output, extras)},
                          batch, TorchThreads());
    return absl::OkStatus();
  });
}

}  // namespace reprise
