#include "reprise/runner/testing/layered_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "glog/logging.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kWidth = 48;

class RandomTensors {
 public:
  RandomTensors(uint64_t seed, c10::Device device, at::ScalarType dtype)
      : rng_(seed), device_(device), dtype_(dtype) {}

  at::Tensor operator()(int64_t rows, int64_t columns, double scale) {
    at::Tensor t = at::empty({rows, columns}, at::kFloat);
    std::normal_distribution<float> normal(0.0f, static_cast<float>(scale));
    float* data = t.data_ptr<float>();
    for (int64_t i = 0; i < t.numel(); ++i) data[i] = normal(rng_);
    return t.to(device_, dtype_);
  }

  // The deviation keeps activations near 1.
  std::optional<Linear> Weight(int64_t out, int64_t in) {
    auto linear = Linear::Create((*this)(out, in, 1 / std::sqrt(in)), std::nullopt);
    CHECK(linear.ok()) << linear.status();
    return *std::move(linear);
  }

 private:
  std::mt19937_64 rng_;
  c10::Device device_;
  at::ScalarType dtype_;
};

at::Tensor Double(const at::Tensor& t) { return t.to(at::kCPU).to(at::kDouble); }

}  // namespace

LayeredModel::LayeredModel(const LayeredModelOptions& options) : options_(options) {
  RandomTensors random(options.seed, options.device, ToScalarType(options.dtype));
  token_embedding_ = random(options.vocab_size, kWidth, 1.0);
  position_embedding_ =
      random(std::max(options.max_position, options.max_encoder_position), kWidth, 0.5);
  int max_q_heads = 1;
  for (const LayerSpec& spec : options.layers) {
    const AttentionParams& p = spec.params;
    max_q_heads = std::max(max_q_heads, p.num_q_heads);
    Layer layer = {.q = random.Weight(int64_t{p.num_q_heads} * p.head_dim_qk, kWidth),
                   .k = {},
                   .v = {},
                   .out = random.Weight(kWidth, int64_t{p.num_q_heads} * p.head_dim_v)};
    if (!spec.shares_kv_with) {
      layer.k = random.Weight(int64_t{p.num_kv_heads} * p.head_dim_qk, kWidth);
      if (!spec.v_in_k) layer.v = random.Weight(int64_t{p.num_kv_heads} * p.head_dim_v, kWidth);
    }
    layers_.push_back(std::move(layer));
  }
  head_ = random.Weight(options.vocab_size, kWidth);
  sinks_ = random(static_cast<int64_t>(options.layers.size()), max_q_heads, 1.0).to(at::kFloat);
  spec_ = {.layers = options.layers,
           .vocab_size = options.vocab_size,
           .max_position = options.max_position,
           .max_encoder_position = options.max_encoder_position,
           .dtype = options.dtype,
           .device = options.device};
  using Hidden = LayeredModelOptions::Hidden;
  if (options.hidden != Hidden::kNone) {
    spec_.hidden_dim = options.hidden == Hidden::kStream ? kWidth : options.max_position;
  }
  if (options.prompts == LayeredModelOptions::Prompts::kInTwoParts) {
    for (const LayerSpec& layer : options.layers) spec_.within.push_back(layer.params);
  }
  for (const int layer : options.sink_layers) {
    spec_.layers[layer].params.sinks = sinks_[layer].data_ptr<float>();
  }
}

absl::StatusOr<at::Tensor> LayeredModel::Heads(LinearContext& linears,
                                               const std::optional<Linear>& weight, int num_heads,
                                               const at::Tensor& x) const {
  const at::Tensor out = at::empty({x.size(0), weight->out_features()}, x.options());
  REPRISE_RETURN_IF_ERROR(weight->Apply(linears, x, out));
  return out.view({x.size(0), num_heads, -1});
}

absl::Status LayeredModel::Add(LinearContext& linears, const Layer& layer,
                               const at::Tensor& attended, at::Tensor& x) const {
  const at::Tensor added = at::empty_like(x);
  REPRISE_RETURN_IF_ERROR(layer.out->Apply(linears, attended.flatten(1), added));
  x = x + added;
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> LayeredModel::AttendInTwoParts(const Step& step, int layer,
                                                          const at::Tensor& q, const at::Tensor& k,
                                                          const at::Tensor& v) const {
  REPRISE_RETURN_IF_ERROR(step.Write(layer, k, v));
  REPRISE_ASSIGN_OR_RETURN(const AttentionPart within, step.AttendWithin(layer, q, k, v));
  REPRISE_ASSIGN_OR_RETURN(const AttentionPart before, step.AttendBefore(layer, q));
  const at::Tensor share = at::sigmoid(before.lse - within.lse).unsqueeze(2);  // weight of `before`
  // A padded token attends to nothing: its weight is NaN, and its output is not used.
  return before.out * share + within.out * (1 - share);
}

absl::StatusOr<at::Tensor> LayeredModel::Stream(const Step& step) const {
  at::Tensor x = token_embedding_.index_select(0, step.token_ids()) +
                 position_embedding_.index_select(0, step.positions());  // [n, width]
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const LayerSpec& spec = options_.layers[i];
    if (spec.kind == AttentionKind::kEncoder) continue;
    const Layer& layer = layers_[i];
    LinearContext& linears = step.linears();
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor q,
                             Heads(linears, layer.q, spec.params.num_q_heads, x));
    at::Tensor out;
    if (spec.shares_kv_with || spec.kind == AttentionKind::kEncoderDecoder) {
      REPRISE_ASSIGN_OR_RETURN(out, step.Attend(i, q));
    } else {
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor k,
                               Heads(linears, layer.k, spec.params.num_kv_heads, x));
      if (spec.v_in_k) {
        REPRISE_ASSIGN_OR_RETURN(out, step.Attend(i, q, k));
      } else {
        REPRISE_ASSIGN_OR_RETURN(const at::Tensor v,
                                 Heads(linears, layer.v, spec.params.num_kv_heads, x));
        if (options_.prompts == LayeredModelOptions::Prompts::kInTwoParts &&
            step.max_query_len() > 1) {
          REPRISE_ASSIGN_OR_RETURN(out, AttendInTwoParts(step, i, q, k, v));
        } else {
          REPRISE_ASSIGN_OR_RETURN(out, step.Attend(i, q, k, v));
        }
      }
    }
    REPRISE_RETURN_IF_ERROR(Add(linears, layer, out, x));
  }
  return x;
}

absl::StatusOr<at::Tensor> LayeredModel::Forward(const Step& step) {
  using Hidden = LayeredModelOptions::Hidden;
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor x, Stream(step));
  if (options_.hidden == Hidden::kStream) {
    REPRISE_RETURN_IF_ERROR(step.KeepHidden(x));
  } else if (options_.hidden == Hidden::kPosition && step.keeps_hidden()) {
    const at::Tensor position = step.positions().unsqueeze(1);
    const at::Tensor all = at::arange(options_.max_position, position.options()).unsqueeze(0);
    REPRISE_RETURN_IF_ERROR(step.KeepHidden((position == all).to(x.dtype())));
  }
  const at::Tensor last = x.index_select(0, step.logits_indices());
  REPRISE_RETURN_IF_ERROR(head_->Apply(step.linears(), last, step.logits()));
  return step.logits();
}

absl::Status LayeredModel::Encode(const EncoderStep& step) {
  at::Tensor x = token_embedding_.index_select(0, step.token_ids()) +
                 position_embedding_.index_select(0, step.positions());
  LinearContext& linears = step.linears();
  const auto keys_and_values = [&](int i) -> absl::StatusOr<std::pair<at::Tensor, at::Tensor>> {
    const int num_heads = options_.layers[i].params.num_kv_heads;
    REPRISE_ASSIGN_OR_RETURN(at::Tensor k, Heads(linears, layers_[i].k, num_heads, x));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor v, Heads(linears, layers_[i].v, num_heads, x));
    return std::pair(std::move(k), std::move(v));
  };
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    if (options_.layers[i].kind != AttentionKind::kEncoder) continue;
    REPRISE_ASSIGN_OR_RETURN(
        const at::Tensor q, Heads(linears, layers_[i].q, options_.layers[i].params.num_q_heads, x));
    REPRISE_ASSIGN_OR_RETURN(const auto kv, keys_and_values(i));
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor out, step.Attend(i, q, kv.first, kv.second));
    REPRISE_RETURN_IF_ERROR(Add(linears, layers_[i], out, x));
  }
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const LayerSpec& spec = options_.layers[i];
    if (spec.kind != AttentionKind::kEncoderDecoder || spec.shares_kv_with) continue;
    REPRISE_ASSIGN_OR_RETURN(const auto kv, keys_and_values(i));
    REPRISE_RETURN_IF_ERROR(step.WriteKeys(i, kv.first, kv.second));
  }
  return absl::OkStatus();
}

int LayeredModel::SourceOf(int layer) const {
  const std::optional<int> source = options_.layers[layer].shares_kv_with;
  return source ? *source : layer;
}

at::Tensor LayeredModel::DenseEmbedding(absl::Span<const int32_t> text) const {
  const int64_t n = static_cast<int64_t>(text.size());
  const at::Tensor ids = at::tensor(at::ArrayRef<int32_t>(text.data(), text.size()), at::kInt);
  return Double(token_embedding_).index_select(0, ids) +
         Double(position_embedding_).narrow(0, 0, n);
}

at::Tensor LayeredModel::DenseAttention(int index, const at::Tensor& x,
                                        const at::Tensor& keys_from) const {
  const LayerSpec& spec = options_.layers[index];
  const AttentionParams& p = spec.params;
  const Layer& source = layers_[SourceOf(index)];
  const int64_t n = x.size(0);
  const int64_t m = keys_from.size(0);
  const auto heads = [](const at::Tensor& from, const std::optional<Linear>& weight,
                        int64_t num_heads) {  // [heads, tokens, head_dim]
    return at::matmul(from, Double(weight->weight()).t())
        .view({from.size(0), num_heads, -1})
        .transpose(0, 1);
  };
  const at::Tensor q = heads(x, layers_[index].q, p.num_q_heads);
  at::Tensor k = heads(keys_from, source.k, p.num_kv_heads);
  at::Tensor v =
      spec.v_in_k ? k.narrow(2, 0, p.head_dim_v) : heads(keys_from, source.v, p.num_kv_heads);
  k = k.repeat_interleave(p.group_size(), 0);
  v = v.repeat_interleave(p.group_size(), 0);

  at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * p.resolved_scale();
  if (p.softcap) scores = *p.softcap * at::tanh(scores / *p.softcap);
  const at::Tensor i = at::arange(n, at::kLong).view({n, 1});
  const at::Tensor j = at::arange(m, at::kLong).view({1, m});
  if (spec.kind == AttentionKind::kDecoder) {
    at::Tensor hidden = j > i;
    if (p.window_left) hidden = hidden.logical_or(j < i - *p.window_left);
    if (spec.chunk_size) {
      hidden =
          hidden.logical_or(j.div(*spec.chunk_size, "floor") != i.div(*spec.chunk_size, "floor"));
    }
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  const bool has_sinks =
      std::count(options_.sink_layers.begin(), options_.sink_layers.end(), index) > 0;
  if (has_sinks) {
    const at::Tensor sinks = Double(sinks_)[index].narrow(0, 0, p.num_q_heads).view({-1, 1, 1});
    scores = at::cat({scores, sinks.expand({p.num_q_heads, n, 1})}, 2);
  }
  const at::Tensor weights = at::softmax(scores, -1).narrow(2, 0, m);
  const at::Tensor attended = at::matmul(weights, v).transpose(0, 1).reshape({n, -1});
  return x + at::matmul(attended, Double(layers_[index].out->weight()).t());
}

at::Tensor LayeredModel::DenseLogits(absl::Span<const int32_t> text,
                                     absl::Span<const int32_t> encoder_text) const {
  const int num_layers = static_cast<int>(layers_.size());
  at::Tensor encoded = DenseEmbedding(encoder_text);
  for (int i = 0; i < num_layers; ++i) {
    if (options_.layers[i].kind != AttentionKind::kEncoder || encoder_text.empty()) continue;
    encoded = DenseAttention(i, encoded, encoded);
  }
  at::Tensor x = DenseEmbedding(text);
  std::vector<at::Tensor> inputs(num_layers);  // the stream from which each layer computes its keys
  for (int i = 0; i < num_layers; ++i) {
    const LayerSpec& spec = options_.layers[i];
    if (spec.kind == AttentionKind::kEncoder) continue;
    inputs[i] = spec.kind == AttentionKind::kEncoderDecoder ? encoded : x;
    if (inputs[SourceOf(i)].size(0) > 0) x = DenseAttention(i, x, inputs[SourceOf(i)]);
  }
  return at::matmul(x, Double(head_->weight()).t());
}

}  // namespace reprise
