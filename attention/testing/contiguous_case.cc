#include "reprise/attention/testing/contiguous_case.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <vector>

#include "reprise/attention/attention.h"
#include "reprise/attention/contiguous_decode.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

// All bits set is NaN in every dtype. LibTorch cannot fill fp8 tensors.
void FillWithNan(at::Tensor& tensor) { tensor.view(at::kByte).fill_(0xff); }

}  // namespace

ContiguousCase::ContiguousCase(const ContiguousCaseOptions& options)
    : options_(options),
      layer_{.num_q_heads = options.num_kv_heads * options.group_size,
             .num_kv_heads = options.num_kv_heads,
             .head_dim_qk = options.head_dim,
             .head_dim_v = options.head_dim} {
  const auto of = [&](at::ScalarType type) {
    return at::TensorOptions().dtype(type).device(options.device);
  };
  const int64_t capacity = options.capacity, heads = options.num_kv_heads, dim = options.head_dim;
  const std::vector<int64_t> shape = options.is_hnd ? std::vector<int64_t>{heads, capacity, dim}
                                                    : std::vector<int64_t>{capacity, heads, dim};
  k_memory_ = at::empty(shape, of(ToScalarType(options.kv_dtype)));
  v_memory_ = at::empty(shape, of(ToScalarType(options.kv_dtype)));
  q_ = at::zeros({options.max_query_len, layer_.num_q_heads, dim},
                 of(ToScalarType(options.q_dtype)));
  out_ = at::empty(q_.sizes(), q_.options());
  k_scales_ = at::zeros({heads}, of(at::kFloat));
  v_scales_ = at::zeros({heads}, of(at::kFloat));
  bounds_ = at::zeros({4}, of(at::kInt));
  batch_ = ContiguousDecode(bounds_.const_data_ptr<int32_t>(),
                            {.capacity = options.capacity, .max_query_len = options.max_query_len});
}

at::Tensor ContiguousCase::WriteKeys(at::Tensor& memory, at::Tensor& scales, int num_keys) {
  FillWithNan(memory);
  at::Tensor keys = at::randn({num_keys, options_.num_kv_heads, options_.head_dim},
                              at::TensorOptions().dtype(at::kFloat).device(options_.device));
  at::Tensor tokens = options_.is_hnd ? TokensOfHnd(memory) : memory;
  if (!is_quantised()) {
    keys = keys.to(ToScalarType(options_.kv_dtype));
    tokens.slice(0, 0, num_keys).copy_(keys);
    return keys.to(at::kDouble);
  }
  // Scales from 1/16 to 4.
  scales.copy_(at::rand({options_.num_kv_heads}, scales.options()).mul(6).sub(4).exp2());
  const at::Tensor of_heads = scales.view({1, -1, 1});
  const at::Tensor stored = keys.div(of_heads).to(ToScalarType(options_.kv_dtype));
  tokens.view(at::kByte).slice(0, 0, num_keys).copy_(stored.view(at::kByte));
  return stored.to(at::kFloat).to(at::kDouble) * of_heads.to(at::kDouble);
}

void ContiguousCase::Write(int num_keys, int num_queries) {
  num_queries_ = num_queries;
  q_.copy_(at::rand(q_.sizes(), q_.options().dtype(at::kFloat)));
  keys_ = WriteKeys(k_memory_, k_scales_, num_keys);
  values_ = WriteKeys(v_memory_, v_scales_, num_keys);
  bounds_.copy_(at::tensor({0, num_queries, 0, num_keys}, at::kInt));
  FillWithNan(out_);
}

absl::Status ContiguousCase::Run(const BatchSchedule& work) {
  const at::Tensor k = options_.is_hnd ? TokensOfHnd(k_memory_) : k_memory_;
  const at::Tensor v = options_.is_hnd ? TokensOfHnd(v_memory_) : v_memory_;
  const auto scale_of = [this](const at::Tensor& scales) {
    return is_quantised() ? Scale{.data = scales.const_data_ptr<float>(), .head_stride = 1}
                          : Scale{};
  };
  return RaggedAttention(layer_, batch_, work, q_, {k, v, scale_of(k_scales_), scale_of(v_scales_)},
                         {out_});
}

double ContiguousCase::Error() const {
  const int64_t num_keys = keys_.size(0);
  const auto of_heads = [&](const at::Tensor& all) {  // [q heads, num_keys, head_dim]
    return all.repeat_interleave(options_.group_size, 1).transpose(0, 1);
  };
  const at::Tensor q = q_.slice(0, 0, num_queries_).to(at::kDouble).transpose(0, 1);
  const auto places = q.options().dtype(at::kLong);
  // The last query sees all keys. Each earlier query sees one key less than its successor.
  const at::Tensor last_seen = at::arange(num_keys - num_queries_, num_keys, places).unsqueeze(1);
  const at::Tensor is_hidden = at::arange(num_keys, places).unsqueeze(0) > last_seen;
  const at::Tensor scores =
      q.matmul(of_heads(keys_).transpose(1, 2)) / std::sqrt(options_.head_dim);
  const at::Tensor expected =
      scores.masked_fill(is_hidden, -std::numeric_limits<double>::infinity())
          .softmax(-1)
          .matmul(of_heads(values_))
          .transpose(0, 1);
  at::Tensor error = out_.to(at::kDouble);
  error.slice(0, 0, num_queries_).sub_(expected);
  return error.abs().nan_to_num(std::numeric_limits<double>::infinity()).max().item<double>();
}

TileScheduleOptions ContiguousCase::tile_schedule_options() const {
  return {.dtype = options_.q_dtype,
          .num_q_heads = layer_.num_q_heads,
          .num_kv_heads = layer_.num_kv_heads,
          .head_dim_qk = layer_.head_dim_qk,
          .head_dim_v = layer_.head_dim_v,
          .max_rows = 1,
          .max_tokens = options_.max_query_len,
          .max_query_len = options_.max_query_len,
          .max_seq_len = options_.capacity};
}

}  // namespace reprise
