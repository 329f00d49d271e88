#include "examples/llama/llama_weights_check.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"

namespace reprise {
namespace {

absl::Status CheckProjection(const char* name, const Linear& linear, int64_t in, int64_t out) {
  ShapeChecker dims;
  return dims.Check(name, linear.weight(), {out, in});
}

absl::Status CheckNorm(const char* name, const std::optional<at::Tensor>& norm, int64_t size,
                       bool wanted) {
  if (norm.has_value() != wanted) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        wanted ? " must be there, as the config asks for it: expected ["
               : " must not be there, as the config does without: expected none, got [",
        size, "]", wanted ? ", got none" : ""));
  }
  if (!wanted) return absl::OkStatus();
  ShapeChecker dims;
  return dims.Check(name, *norm, {size});
}

absl::Status CheckLayer(const LlamaConfig& config, const LlamaLayerWeights& layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const bool norms_heads = config.qk_norm == QkNorm::kWeighted;
  const bool norms_outputs = config.norm_placement == NormPlacement::kBeforeAndAfter;
  REPRISE_RETURN_IF_ERROR(CheckNorm("input_norm", layer.input_norm, hidden, true));
  REPRISE_RETURN_IF_ERROR(CheckProjection("qkv", layer.qkv, hidden, q_size + 2 * kv_size));
  REPRISE_RETURN_IF_ERROR(CheckNorm("q_norm", layer.q_norm, config.head_dim, norms_heads));
  REPRISE_RETURN_IF_ERROR(CheckNorm("k_norm", layer.k_norm, config.head_dim, norms_heads));
  REPRISE_RETURN_IF_ERROR(CheckProjection("o", layer.o, q_size, hidden));
  REPRISE_RETURN_IF_ERROR(
      CheckNorm("attention_output_norm", layer.attention_output_norm, hidden, norms_outputs));
  REPRISE_RETURN_IF_ERROR(CheckNorm("mlp_norm", layer.mlp_norm, hidden, true));
  REPRISE_RETURN_IF_ERROR(
      CheckProjection("gate_up", layer.gate_up, hidden, 2 * int64_t{config.intermediate_size}));
  REPRISE_RETURN_IF_ERROR(CheckProjection("down", layer.down, config.intermediate_size, hidden));
  return CheckNorm("mlp_output_norm", layer.mlp_output_norm, hidden, norms_outputs);
}

}  // namespace

absl::Status CheckLlamaWeights(const LlamaConfig& config, const LlamaWeights& weights) {
  const int64_t hidden = config.hidden_size;
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
    REPRISE_RETURN_IF_ERROR(CheckLayer(config, layer));
  }
  return absl::OkStatus();
}

}  // namespace reprise
