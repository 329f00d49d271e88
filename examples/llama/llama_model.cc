#include "examples/llama/llama_model.h"

#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "examples/llama/rope_frequencies.h"
#include "runner/ops/gather_rows.h"
#include "runner/ops/linear.h"
#include "runner/ops/rms_norm.h"
#include "runner/ops/rotary.h"
#include "runner/ops/rotary_table.h"
#include "runner/ops/silu_mul.h"

namespace reprise {
namespace {

absl::Status CheckProjection(const char* name, const Linear& linear, int64_t in, int64_t out) {
  ShapeChecker dims;
  return dims.Check(name, linear.weight(), {out, in});
}

absl::Status CheckWeights(const LlamaConfig& config, const LlamaWeights& weights) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("embedding", weights.embedding, {config.vocab_size, hidden},
                                     ToScalarType(weights.dtype)));
  REPRISE_RETURN_IF_ERROR(dims.Check("final_norm", weights.final_norm, {hidden}));
  REPRISE_RETURN_IF_ERROR(CheckProjection("lm_head", weights.lm_head, hidden, config.vocab_size));
  if (static_cast<int>(weights.layers.size()) != config.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers must be num_layers: expected ",
                                                   config.num_layers, ", got ",
                                                   weights.layers.size()));
  }
  for (const LlamaLayerWeights& layer : weights.layers) {
    REPRISE_RETURN_IF_ERROR(dims.Check("input_norm", layer.input_norm, {hidden}));
    REPRISE_RETURN_IF_ERROR(dims.Check("attention_norm", layer.attention_norm, {hidden}));
    REPRISE_RETURN_IF_ERROR(CheckProjection("qkv", layer.qkv, hidden, q_size + 2 * kv_size));
    REPRISE_RETURN_IF_ERROR(CheckProjection("o", layer.o, q_size, hidden));
    REPRISE_RETURN_IF_ERROR(
        CheckProjection("gate_up", layer.gate_up, hidden, 2 * config.intermediate_size));
    REPRISE_RETURN_IF_ERROR(CheckProjection("down", layer.down, config.intermediate_size, hidden));
  }
  return absl::OkStatus();
}

}  // namespace

// The activations of one step. Layers come one after the other and use the same memory.
struct LlamaModel::Scratch {
  Scratch(const LlamaConfig& config, int64_t num_tokens, const at::TensorOptions& options) {
    const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
    const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
    hidden = at::empty({num_tokens, config.hidden_size}, options);
    normed = at::empty({num_tokens, config.hidden_size}, options);
    qkv = at::empty({num_tokens, q_size + 2 * kv_size}, options);
    gate_up = at::empty({num_tokens, 2 * int64_t{config.intermediate_size}}, options);
    gated = at::empty({num_tokens, config.intermediate_size}, options);
    const auto heads = [&](int64_t begin, int64_t num_heads) {
      return qkv.narrow(1, begin, num_heads * config.head_dim)
          .unflatten(1, {num_heads, config.head_dim});
    };
    q = heads(0, config.num_q_heads);
    k = heads(q_size, config.num_kv_heads);
    v = heads(q_size + kv_size, config.num_kv_heads);
  }

  at::Tensor hidden;   // [num_tokens, hidden_size], the residual stream
  at::Tensor normed;   // [num_tokens, hidden_size], into a sublayer and out of it
  at::Tensor qkv;      // [num_tokens, q_size + 2 * kv_size]
  at::Tensor q;        // [num_tokens, num_q_heads, head_dim], of qkv's memory
  at::Tensor k;        // [num_tokens, num_kv_heads, head_dim], likewise
  at::Tensor v;        // [num_tokens, num_kv_heads, head_dim], likewise
  at::Tensor gate_up;  // [num_tokens, 2 * intermediate_size]
  at::Tensor gated;    // [num_tokens, intermediate_size]
};

absl::StatusOr<std::unique_ptr<LlamaModel>> LlamaModel::Create(const LlamaConfig& config,
                                                               LlamaWeights weights,
                                                               const LlamaModelOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckWeights(config, weights));
  const int max_position = options.max_position.value_or(config.max_seq_len);
  if (max_position < 1 || max_position > config.max_seq_len) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_position must be in [1, ", config.max_seq_len, "]: got ", max_position));
  }
  REPRISE_ASSIGN_OR_RETURN(
      at::Tensor table, MakeRotaryTable(RopeFrequencies(config.rope, config.head_dim), max_position,
                                        /*attention_factor=*/1, weights.embedding.device()));
  return std::unique_ptr<LlamaModel>(
      new LlamaModel(config, std::move(weights), std::move(table), max_position));
}

absl::StatusOr<std::unique_ptr<LlamaModel>> LlamaModel::Load(const std::string& folder,
                                                             const LoadOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const LlamaConfig config, LoadLlamaConfig(folder));
  REPRISE_ASSIGN_OR_RETURN(
      LlamaWeights weights,
      LoadLlamaWeights(folder, config, {.device = options.device, .dtype = options.dtype}));
  return Create(config, std::move(weights), {});
}

LlamaModel::LlamaModel(const LlamaConfig& config, LlamaWeights weights, at::Tensor rotary_table,
                       int max_position)
    : config_(config),
      weights_(std::move(weights)),
      rotary_table_(std::move(rotary_table)),
      spec_{.layers = std::vector<LayerSpec>(
                config.num_layers, LayerSpec{.params = {.num_q_heads = config.num_q_heads,
                                                        .num_kv_heads = config.num_kv_heads,
                                                        .head_dim_qk = config.head_dim,
                                                        .head_dim_v = config.head_dim}}),
            .vocab_size = config.vocab_size,
            .max_position = max_position,
            .dtype = weights_.dtype,
            .device = weights_.embedding.device()} {}

absl::StatusOr<at::Tensor> LlamaModel::Forward(const Step& step) {
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const at::TensorOptions options = weights_.embedding.options();
    Scratch scratch(config_, step.num_tokens(), options);
    REPRISE_RETURN_IF_ERROR(GatherRows(weights_.embedding, step.token_ids(), scratch.hidden));
    const float eps = static_cast<float>(config_.rms_norm_eps);
    REPRISE_RETURN_IF_ERROR(
        RmsNorm(scratch.hidden, weights_.layers.front().input_norm, eps, scratch.normed));
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const bool is_last = layer + 1 == config_.num_layers;
      REPRISE_RETURN_IF_ERROR(Attention(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(AddAndNormalise(weights_.layers[layer].attention_norm, scratch));
      REPRISE_RETURN_IF_ERROR(FeedForward(step, layer, scratch));
      REPRISE_RETURN_IF_ERROR(AddAndNormalise(
          is_last ? weights_.final_norm : weights_.layers[layer + 1].input_norm, scratch));
    }
    const int64_t num_logits = step.logits_indices().size(0);
    const at::Tensor last = at::empty({num_logits, config_.hidden_size}, options);
    REPRISE_RETURN_IF_ERROR(GatherRows(scratch.normed, step.logits_indices(), last));
    REPRISE_RETURN_IF_ERROR(weights_.lm_head.Apply(step.linears(), last, step.logits()));
    return step.logits();
  });
}

absl::Status LlamaModel::Attention(const Step& step, int layer, Scratch& scratch) const {
  const LlamaLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(weights.qkv.Apply(step.linears(), scratch.normed, scratch.qkv));
  REPRISE_RETURN_IF_ERROR(RotaryWriteKv(scratch.q, scratch.k, scratch.v, step.positions(),
                                        rotary_table_, step.kv(layer), step.slot_mapping()));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended, step.Attend(layer, scratch.q));
  return weights.o.Apply(step.linears(), attended.flatten(1), scratch.normed);
}

absl::Status LlamaModel::FeedForward(const Step& step, int layer, Scratch& scratch) const {
  const LlamaLayerWeights& weights = weights_.layers[layer];
  REPRISE_RETURN_IF_ERROR(weights.gate_up.Apply(step.linears(), scratch.normed, scratch.gate_up));
  REPRISE_RETURN_IF_ERROR(SiluMul(scratch.gate_up, scratch.gated));
  return weights.down.Apply(step.linears(), scratch.gated, scratch.normed);
}

absl::Status LlamaModel::AddAndNormalise(const at::Tensor& norm, Scratch& scratch) const {
  return AddRmsNorm(scratch.normed, scratch.hidden, norm, static_cast<float>(config_.rms_norm_eps),
                    scratch.normed);
}

}  // namespace reprise
