#include "reprise/runner/testing/toy_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <random>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kWidth = 48;
constexpr int kNumLayers = 2;

at::Tensor Random(std::mt19937_64& rng, int64_t rows, int64_t columns, double scale) {
  at::Tensor t = at::empty({rows, columns}, at::kFloat);
  std::normal_distribution<float> normal(0.0f, static_cast<float>(scale));
  float* data = t.data_ptr<float>();
  for (int64_t i = 0; i < t.numel(); ++i) data[i] = normal(rng);
  return t;
}

}  // namespace

ToyModel::ToyModel(const ToyModelOptions& options) : options_(options) {
  std::mt19937_64 rng(options.seed);
  const auto random = [&](int64_t rows, int64_t columns, double scale) {
    return Random(rng, rows, columns, scale).to(options.device);
  };
  const int64_t q_width = int64_t{options.num_q_heads} * options.head_dim;
  const int64_t kv_width = int64_t{options.num_kv_heads} * options.head_dim;
  token_embedding_ = random(options.vocab_size, kWidth, 1.0);
  position_embeddings_ = {random(options.max_position, kWidth, 0.5)};
  for (int i = 0; i < kNumLayers; ++i) {
    // The deviation keeps activations near 1 from layer to layer, so that errors do not grow.
    const double from_width = 1 / std::sqrt(kWidth);
    layers_.push_back({.q = random(kWidth, q_width, from_width),
                       .k = random(kWidth, kv_width, from_width),
                       .v = random(kWidth, kv_width, from_width),
                       .out = random(q_width, kWidth, 1 / std::sqrt(q_width))});
  }
  head_ = random(kWidth, options.vocab_size, 1 / std::sqrt(kWidth));
  for (int dim = 1; dim < options.num_position_dims; ++dim) {
    position_embeddings_.push_back(random(options.max_position, kWidth, 0.5));
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim));
  const LayerSpec layer = {.params = {.num_q_heads = options.num_q_heads,
                                      .num_kv_heads = options.num_kv_heads,
                                      .head_dim_qk = options.head_dim,
                                      .head_dim_v = options.head_dim,
                                      .scale = scale / options.kv_factor},
                           .k_scale = options.kv_scale,
                           .v_scale = options.kv_scale};
  spec_ = {.layers = std::vector<LayerSpec>(kNumLayers, layer),
           .vocab_size = options.vocab_size,
           .max_position = options.max_position,
           .dtype = options.dtype,
           .logits_dtype = options.logits_dtype,
           .input_embedding_dim = options.takes_embeddings ? kWidth : 0,
           .num_position_dims = options.num_position_dims,
           .device = options.device};
}

at::Tensor ToyModel::Product(const at::Tensor& x, const at::Tensor& weight) const {
  if (!options_.row_by_row) return at::mm(x, weight);
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < x.size(0); ++row) {
    rows.push_back(at::mm(x.narrow(0, row, 1), weight));
  }
  return at::cat(rows);
}

at::Tensor ToyModel::PositionEmbeddings(const at::Tensor& positions) const {
  if (options_.num_position_dims == 1) {
    return position_embeddings_[0].index_select(0, positions.view({-1}));
  }
  at::Tensor sum = position_embeddings_[0].index_select(0, positions[0]);
  for (int dim = 1; dim < options_.num_position_dims; ++dim) {
    sum = sum + position_embeddings_[dim].index_select(0, positions[dim]);
  }
  return sum;
}

at::Tensor ToyModel::Embeddings(absl::Span<const int32_t> tokens) const {
  const at::Tensor ids =
      at::tensor(at::ArrayRef<int32_t>(tokens.data(), tokens.size()), at::kInt).to(options_.device);
  return token_embedding_.index_select(0, ids);
}

absl::StatusOr<at::Tensor> ToyModel::Forward(const Step& step) {
  ++num_forwards_;
  const int64_t n = step.num_tokens();
  const at::ScalarType dtype = ToScalarType(options_.dtype);
  at::Tensor x = token_embedding_.index_select(0, step.token_ids());  // [n, width]
  if (options_.takes_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(x, step.Embed(x));
  }
  x = x + PositionEmbeddings(step.positions());
  for (int i = 0; i < kNumLayers; ++i) {
    const Layer& layer = layers_[i];
    const auto heads = [&](const at::Tensor& weight, int num_heads) {
      return Product(x, weight).view({n, num_heads, options_.head_dim}).to(dtype);
    };
    REPRISE_ASSIGN_OR_RETURN(
        const at::Tensor out,
        step.Attend(i, heads(layer.q, options_.num_q_heads),
                    heads(layer.k, options_.num_kv_heads) * options_.kv_factor,
                    heads(layer.v, options_.num_kv_heads) * options_.kv_factor));
    x = x + Product(out.view({n, -1}).to(at::kFloat) / options_.kv_factor, layer.out);
  }
  return Product(x.index_select(0, step.logits_indices()), head_);
}

at::Tensor ToyModel::DenseLogits(absl::Span<const int32_t> tokens) const {
  return AllDenseLogits(tokens)[static_cast<int64_t>(tokens.size()) - 1];
}

at::Tensor ToyModel::AllDenseLogits(absl::Span<const int32_t> tokens) const {
  const int64_t n = static_cast<int64_t>(tokens.size());
  const at::Tensor positions = at::arange(n, at::TensorOptions(options_.device).dtype(at::kInt));
  return AllDenseLogitsOf(Embeddings(tokens), positions.expand({options_.num_position_dims, n}));
}

at::Tensor ToyModel::DenseLogitsOf(const at::Tensor& embeddings,
                                   const at::Tensor& positions) const {
  return AllDenseLogitsOf(embeddings, positions)[embeddings.size(0) - 1];
}

at::Tensor ToyModel::AllDenseLogitsOf(const at::Tensor& embeddings,
                                      const at::Tensor& positions) const {
  const int64_t n = embeddings.size(0);
  const int group_size = options_.num_q_heads / options_.num_kv_heads;
  const at::Tensor hidden =
      at::ones({n, n}, at::TensorOptions(options_.device).dtype(at::kBool)).tril().logical_not();
  at::Tensor x = embeddings + PositionEmbeddings(positions);
  for (const Layer& layer : layers_) {
    // [heads, n, head_dim]
    const auto heads = [&](const at::Tensor& weight, int num_heads) {
      return at::mm(x, weight).view({n, num_heads, options_.head_dim}).transpose(0, 1);
    };
    const at::Tensor q = heads(layer.q, options_.num_q_heads);
    const at::Tensor k = heads(layer.k, options_.num_kv_heads).repeat_interleave(group_size, 0);
    const at::Tensor v = heads(layer.v, options_.num_kv_heads).repeat_interleave(group_size, 0);
    const at::Tensor scores =
        at::matmul(q, k.transpose(1, 2)) / std::sqrt(static_cast<double>(options_.head_dim));
    const at::Tensor p = at::softmax(
        scores.masked_fill(hidden, -std::numeric_limits<float>::infinity()), -1);  // [heads, n, n]
    x = x + at::mm(at::matmul(p, v).transpose(0, 1).reshape({n, -1}), layer.out);
  }
  return at::mm(x, head_);
}

}  // namespace reprise
