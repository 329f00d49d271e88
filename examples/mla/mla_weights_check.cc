#include "examples/mla/mla_weights_check.h"

#include <cstdint>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"

namespace reprise {
namespace {

absl::Status CheckMatrix(const char* name, const Linear& linear, int64_t in, int64_t out) {
  ShapeChecker dims;
  return dims.Check(name, linear.weight(), {out, in});
}

absl::Status CheckQueries(const MlaConfig& config, const MlaLayerWeights& layer) {
  const int64_t q_size = int64_t{config.num_heads} * config.qk_head_dim();
  const bool has_rank = config.q_lora_rank.has_value();
  if (layer.q_a.has_value() != has_rank || layer.q_a_norm.has_value() != has_rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("q_a and q_a_norm must be there exactly if the config has a q_lora_rank: "
                     "expected ",
                     has_rank ? "both" : "none"));
  }
  if (!has_rank) return CheckMatrix("q", layer.q, config.hidden_size, q_size);
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(CheckMatrix("q_a", *layer.q_a, config.hidden_size, *config.q_lora_rank));
  REPRISE_RETURN_IF_ERROR(dims.Check("q_a_norm", *layer.q_a_norm, {*config.q_lora_rank}));
  return CheckMatrix("q", layer.q, *config.q_lora_rank, q_size);
}

absl::Status CheckLayer(const MlaConfig& config, const MlaLayerWeights& layer) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t heads = config.num_heads;
  const int64_t rank = config.kv_lora_rank;
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("input_norm", layer.input_norm, {hidden}));
  REPRISE_RETURN_IF_ERROR(CheckQueries(config, layer));
  REPRISE_RETURN_IF_ERROR(CheckMatrix("kv_a", layer.kv_a, hidden, config.latent_dim()));
  REPRISE_RETURN_IF_ERROR(dims.Check("kv_a_norm", layer.kv_a_norm, {rank}));
  REPRISE_RETURN_IF_ERROR(
      CheckMatrix("kv_b", layer.kv_b, rank, heads * (config.qk_nope_head_dim + config.v_head_dim)));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("absorb", layer.absorb.weight(), {heads, rank, config.qk_nope_head_dim}));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("expand", layer.expand.weight(), {heads, config.v_head_dim, rank}));
  REPRISE_RETURN_IF_ERROR(CheckMatrix("o", layer.o, heads * config.v_head_dim, hidden));
  REPRISE_RETURN_IF_ERROR(dims.Check("mlp_norm", layer.mlp_norm, {hidden}));
  REPRISE_RETURN_IF_ERROR(CheckMatrix("gate_up", layer.gate_up, hidden, 2 * inner));
  return CheckMatrix("down", layer.down, inner, hidden);
}

}  // namespace

absl::Status CheckMlaWeights(const MlaConfig& config, const MlaWeights& weights) {
  const int64_t hidden = config.hidden_size;
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("embedding", weights.embedding, {config.vocab_size, hidden},
                                     ToScalarType(weights.dtype)));
  REPRISE_RETURN_IF_ERROR(dims.Check("final_norm", weights.final_norm, {hidden}));
  REPRISE_RETURN_IF_ERROR(CheckMatrix("lm_head", weights.lm_head, hidden, config.vocab_size));
  if (static_cast<int>(weights.layers.size()) != config.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat("layers must be num_layers: expected ",
                                                   config.num_layers, ", got ",
                                                   weights.layers.size()));
  }
  for (const MlaLayerWeights& layer : weights.layers) {
    REPRISE_RETURN_IF_ERROR(CheckLayer(config, layer));
  }
  return absl::OkStatus();
}

}  // namespace reprise
