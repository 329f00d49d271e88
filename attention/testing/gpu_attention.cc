#include "reprise/attention/testing/gpu_attention.h"

#include <ATen/ops/as_strided.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/cuda/kernel_key.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<double> ToHost(const at::Tensor& tensor) {
  const at::Tensor host = tensor.contiguous().to(at::kCPU).to(at::kDouble);
  const double* data = host.const_data_ptr<double>();
  return {data, data + host.numel()};
}

absl::Status Checked(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

at::Tensor BytesOf(const at::Tensor& tensor) { return tensor.view(at::kByte); }

}  // namespace

// For head dims from 129 to kMaxHeadDimOfOneWarp, restricts the kernels to those that the call
// needs, like a caller that knows its calls. Schedules for other head dims serve every call.
template <typename Batch>
KernelChoice GpuAttention::KernelsOf(const Batch& batch, KernelChoice kernels,
                                     DType q_dtype) const {
  const int head_dim = std::max(layer_.head_dim_qk, layer_.head_dim_v);
  if (head_dim <= 128 || head_dim > kMaxHeadDimOfOneWarp) return kernels;
  const bool is_ragged = std::holds_alternative<RaggedBatch>(batch_);
  const AttentionKernelKey key = KernelKeyOf(layer_, is_ragged ? RaggedKv(layer_, Keys()) : kv_,
                                             {.q_dtype = q_dtype,
                                              .has_custom_mask = batch.custom_mask != nullptr,
                                              .has_new_keys = extras_.new_k != nullptr},
                                             kernels);
  if (NeedsGeneralKernels(key)) kernels.max_tier = 1;
  return kernels;
}

template <typename Batch>
void GpuAttention::Plan(const Batch& batch, const GpuAttentionOptions& options, DType q_dtype) {
  num_tokens_ = batch.num_tokens;
  const int64_t rows = num_tokens_ + options.num_extra_tokens;
  const int64_t heads = layer_.num_q_heads;
  const int64_t head_stride = layer_.head_dim_v + options.out_head_gap;
  const int64_t token_stride = heads * head_stride + options.out_token_gap;
  const auto gpu = [](at::ScalarType type) {
    return at::TensorOptions().dtype(type).device(at::kCUDA);
  };
  // LibTorch cannot fill fp8 tensors.
  out_memory_ = at::full({rows + 1, token_stride}, kNan, gpu(at::kFloat))
                    .to(ToScalarType(options.out_dtype.value_or(q_dtype)));
  out_ =
      at::as_strided(out_memory_, {rows, heads, layer_.head_dim_v}, {token_stride, head_stride, 1});
  lse_ = at::full({rows, heads}, kNan, gpu(at::kFloat));
  out_scale_ = options.out_scale;
  if (options.out_block > 0) {
    out_block_scales_ =
        at::full({rows, heads, layer_.head_dim_v / options.out_block}, kNan, gpu(at::kFloat));
    extras_.out_block_scales = &out_block_scales_;
  } else if (options.out_scale_in_memory) {
    out_scale_memory_ = at::full({1}, options.out_scale.value(), gpu(at::kFloat));
    extras_.out_scale.data = out_scale_memory_.data_ptr<float>();
  } else if (options.out_scale) {
    extras_.out_scale.value = *options.out_scale;
  }
  work_.emplace(TileScheduleOptions{.dtype = q_dtype,
                                    .num_q_heads = layer_.num_q_heads,
                                    .num_kv_heads = layer_.num_kv_heads,
                                    .head_dim_qk = layer_.head_dim_qk,
                                    .head_dim_v = layer_.head_dim_v,
                                    .max_rows = batch.num_rows,
                                    .max_tokens = batch.num_tokens,
                                    .max_query_len = std::max(1, batch.max_query_len),
                                    .max_seq_len = batch.max_seq_len,
                                    .device = {.num_sms = options.num_sms,
                                               .max_shared_bytes = options.max_shared_bytes,
                                               .compute_capability = ComputeCapability()},
                                    .mode = options.mode,
                                    .max_splits = options.max_splits,
                                    .kernels = KernelsOf(batch, options.kernels, q_dtype),
                                    .shared_prefix = options.shared_prefix,
                                    .shared_tiles = options.shared_tiles});
}

void GpuAttention::Place(const PagedFixture& fixture) {
  layer_ = fixture.Layer(memory_.Placement());
  batch_ = fixture.Batch(memory_.Placement());
  const PagedBatch& batch = std::get<PagedBatch>(batch_);
  kv_ = fixture.Kv(memory_.Placement());
  q_ = TensorOf(fixture.Q(memory_.Placement()), batch.num_tokens, layer_.num_q_heads,
                layer_.head_dim_qk);
  if (const NewKeys keys = fixture.New(memory_.Placement()); keys.k.data != nullptr) {
    new_k_ = TensorOf(keys.k, batch.num_tokens, layer_.num_kv_heads, layer_.head_dim_qk);
    new_v_ = TensorOf(keys.v, batch.num_tokens, layer_.num_kv_heads, layer_.head_dim_v);
    extras_.new_k = &new_k_;
    extras_.new_v = &new_v_;
  }
}

void GpuAttention::Place(const RaggedFixture& fixture) {
  layer_ = fixture.Layer(memory_.Placement());
  batch_ = fixture.Batch(memory_.Placement());
  const RaggedBatch& batch = std::get<RaggedBatch>(batch_);
  q_ = TensorOf(fixture.q.View(memory_.Placement()), batch.num_tokens, layer_.num_q_heads,
                layer_.head_dim_qk);
  k_ = TensorOf(fixture.k.View(memory_.Placement()), batch.num_keys, layer_.num_kv_heads,
                layer_.head_dim_qk);
  v_ = TensorOf(fixture.v.View(memory_.Placement()), batch.num_keys, layer_.num_kv_heads,
                layer_.head_dim_v);
  k_scale_ = fixture.layer.k_scale.View(memory_.Placement());
  v_scale_ = fixture.layer.v_scale.View(memory_.Placement());
}

GpuAttention::GpuAttention(const PagedFixture& fixture, const GpuAttentionOptions& options) {
  Place(fixture);
  Plan(std::get<PagedBatch>(batch_), options, fixture.q.dtype);
}

GpuAttention::GpuAttention(const RaggedFixture& fixture, const GpuAttentionOptions& options) {
  Place(fixture);
  Plan(std::get<RaggedBatch>(batch_), options, fixture.q.dtype);
}

void GpuAttention::Write(const PagedFixture& fixture) {
  memory_.Rewind();
  Place(fixture);
}

void GpuAttention::Write(const RaggedFixture& fixture) {
  memory_.Rewind();
  Place(fixture);
}

void GpuAttention::WriteOutScale(float scale) {
  out_scale_memory_.fill_(scale);
  out_scale_ = scale;
}

absl::Status GpuAttention::Run() {
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  const LayerWindow window = WindowOf(layer_);
  if (const auto* paged = std::get_if<PagedBatch>(&batch_)) {
    REPRISE_ASSIGN_OR_RETURN(const BatchSchedule work,
                             LaunchTileSchedule(*paged, window, work_->schedule(), stream));
    return PagedAttentionCuda(layer_, *paged, work, q_, kv_, {out_, &lse_}, extras_);
  }
  const auto& ragged = std::get<RaggedBatch>(batch_);
  REPRISE_ASSIGN_OR_RETURN(const BatchSchedule work,
                           LaunchTileSchedule(ragged, window, work_->schedule(), stream));
  return RaggedAttentionCuda(layer_, ragged, work, q_, Keys(), {out_, &lse_}, extras_);
}

absl::StatusOr<std::string> GpuAttention::KernelName() {
  const LayerWindow window = WindowOf(layer_);
  if (const auto* paged = std::get_if<PagedBatch>(&batch_)) {
    return PagedAttentionKernelName(layer_, *paged, WorkOf(*paged, window, work_->schedule()), q_,
                                    kv_, out_, extras_);
  }
  const auto& ragged = std::get<RaggedBatch>(batch_);
  return RaggedAttentionKernelName(layer_, ragged, WorkOf(ragged, window, work_->schedule()), q_,
                                   Keys(), out_, extras_);
}

absl::Status GpuAttention::Capture() {
  // Work of other streams must not use the memory of the capture.
  REPRISE_RETURN_IF_ERROR(Checked(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  REPRISE_RETURN_IF_ERROR(
      Checked(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture"));
  const absl::Status status = Run();
  cudaGraph_t graph = nullptr;
  const absl::Status ended = Checked(cudaStreamEndCapture(stream, &graph), "end capture");
  cudaGraphExec_t exec = nullptr;
  absl::Status made = status.ok() ? ended : status;
  if (made.ok()) made = Checked(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (made.ok()) graph_ = std::shared_ptr<CUgraphExec_st>(exec, cudaGraphExecDestroy);
  return made;
}

void GpuAttention::Poison() {
  work_->Poison();
  BytesOf(out_memory_).fill_(0xff);  // NaN in every type
  BytesOf(lse_).fill_(0xff);
  if (out_block_scales_.defined()) BytesOf(out_block_scales_).fill_(0xff);
}

absl::Status GpuAttention::Replay() {
  Poison();
  REPRISE_RETURN_IF_ERROR(Checked(cudaDeviceSynchronize(), "before a replay"));
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  REPRISE_RETURN_IF_ERROR(Checked(cudaGraphLaunch(graph_.get(), stream), "cudaGraphLaunch"));
  return Checked(cudaStreamSynchronize(stream), "a replay");
}

GpuAttention::Bits GpuAttention::CopyBits() const {
  Bits bits = {.out = BytesOf(out_.slice(0, 0, num_tokens_).contiguous()).clone(),
               .lse = BytesOf(lse_).clone(),
               .block_scales = {}};
  if (out_block_scales_.defined()) bits.block_scales = BytesOf(out_block_scales_).clone();
  return bits;
}

std::string GpuAttention::DifferenceFrom(const Bits& bits) const {
  const Bits own = CopyBits();
  if (!at::equal(own.out, bits.out)) return "out";
  if (!at::equal(own.lse, bits.lse)) return "lse";
  if (bits.block_scales.defined() && !at::equal(own.block_scales, bits.block_scales)) {
    return "out_block_scales";
  }
  return "";
}

AttentionValues GpuAttention::Values() const {
  AttentionValues values = {.out = ToHost(out_.slice(0, 0, num_tokens_)),
                            .lse = ToHost(lse_.slice(0, 0, num_tokens_))};
  if (out_block_scales_.defined()) {
    const std::vector<double> scales = ToHost(out_block_scales_);
    const size_t block = layer_.head_dim_v / out_block_scales_.size(2);
    for (size_t i = 0; i < values.out.size(); ++i) values.out[i] *= scales[i / block];
  } else if (out_scale_) {
    for (double& out : values.out) out *= *out_scale_;
  }
  return values;
}

std::string GpuAttention::FaultOutside() const {
  const std::vector<double> all = ToHost(out_memory_);
  const std::vector<double> lse = ToHost(lse_);
  const int64_t heads = layer_.num_q_heads;
  const int64_t token_stride = out_memory_.size(1);
  const int64_t head_stride = out_.stride(1);
  for (int64_t token = 0; token < out_memory_.size(0); ++token) {
    for (int64_t at = 0; at < token_stride; ++at) {
      const double value = all[token * token_stride + at];
      const bool is_out =
          token < out_.size(0) && at / head_stride < heads && at % head_stride < layer_.head_dim_v;
      if (!is_out && !std::isnan(value)) {
        return absl::StrCat("the gap at ", at, " of token ", token, " became ", value);
      }
      if (is_out && token >= num_tokens_ && value != 0) {
        return absl::StrCat("inert token ", token, " has out ", value);
      }
    }
    if (token < num_tokens_ || token >= out_.size(0)) continue;
    for (int64_t head = 0; head < heads; ++head) {
      const double value = lse[token * heads + head];
      if (value != -std::numeric_limits<double>::infinity()) {
        return absl::StrCat("inert token ", token, " has lse ", value);
      }
    }
  }
  return "";
}

}  // namespace reprise
