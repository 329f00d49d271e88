#include "reprise/models/deepseek/mla_weights.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/share.h"
#include "reprise/models/model_weights.h"

namespace reprise {
namespace {

// [num_heads, nope + v, kv_lora_rank], of the rank's heads: `config` is the rank's here and below.
at::Tensor HeadsOf(const MlaConfig& config, const Linear& kv_b) {
  return kv_b.weight().unflatten(0,
                                 {config.num_heads, config.qk_nope_head_dim + config.v_head_dim});
}

// With kv_b's options, without values; FillAbsorb() sets them.
absl::StatusOr<HeadLinear> MakeAbsorb(const MlaConfig& config, const Linear& kv_b) {
  return HeadLinear::Create(at::empty(
      {config.num_heads, config.kv_lora_rank, config.qk_nope_head_dim}, kv_b.weight().options()));
}

// Call it after kv_b has its values.
absl::Status FillAbsorb(const MlaConfig& config, const MlaWeights& weights) {
  return CatchTorch([&] {
    for (const MlaLayerWeights& layer : weights.layers) {
      // Transposed, since products have the inner dimension last.
      at::Tensor weight = layer.absorb.weight();
      weight.copy_(
          HeadsOf(config, layer.kv_b).narrow(1, 0, config.qk_nope_head_dim).transpose(1, 2));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<MlaLayerWeights> ReadLayer(const MlaConfig& config, int layer,
                                          WeightSource& source) {
  REPRISE_ASSIGN_OR_RETURN(const MlaConfig own, MlaConfigOfRank(config, source.ranks()));
  const Share head_share = ShareOf(config.num_heads, source.ranks());
  const Share inner_share = AlignedShareOf(config.intermediate_size, source.ranks());
  const LayerReader in(source, DecoderLayerPrefix(layer));
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t heads = config.num_heads;
  const int64_t rank = config.kv_lora_rank;
  const LinearBias bias = BiasIf(config.attention_bias);
  const LinearBias mlp_bias = BiasIf(config.mlp_bias);
  const bool has_rank = config.q_lora_rank.has_value();
  const int64_t q_in = config.q_lora_rank.value_or(config.hidden_size);

  REPRISE_ASSIGN_OR_RETURN(at::Tensor input_norm, in.Norm("input_layernorm.weight", hidden));
  std::optional<Linear> q_a;
  std::optional<at::Tensor> q_a_norm;
  if (has_rank) {
    REPRISE_ASSIGN_OR_RETURN(q_a, in.Projection({{"self_attn.q_a_proj", q_in}}, hidden, bias));
    REPRISE_ASSIGN_OR_RETURN(q_a_norm, in.Norm("self_attn.q_a_layernorm.weight", q_in));
  }
  REPRISE_ASSIGN_OR_RETURN(
      Linear q, in.Projection({{.name = has_rank ? "self_attn.q_b_proj" : "self_attn.q_proj",
                                .num_rows = heads * config.qk_head_dim(),
                                .unzipped_head = config.qk_head_dim(),
                                .kept_rows = config.qk_nope_head_dim,
                                .share = head_share.Times(config.qk_head_dim())}},
                              q_in, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(Linear kv_a, in.Projection({{.name = "self_attn.kv_a_proj_with_mqa",
                                                        .num_rows = config.latent_dim(),
                                                        .unzipped_head = config.latent_dim(),
                                                        .kept_rows = config.kv_lora_rank}},
                                                      hidden, bias));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor kv_a_norm, in.Norm("self_attn.kv_a_layernorm.weight", rank));
  const int64_t kv_dim = config.qk_nope_head_dim + config.v_head_dim;
  REPRISE_ASSIGN_OR_RETURN(Linear kv_b, in.Projection({{.name = "self_attn.kv_b_proj",
                                                        .num_rows = heads * kv_dim,
                                                        .share = head_share.Times(kv_dim)}},
                                                      rank, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(HeadLinear absorb, MakeAbsorb(own, kv_b));
  REPRISE_ASSIGN_OR_RETURN(HeadLinear expand, HeadLinear::Create(HeadsOf(own, kv_b).narrow(
                                                  1, config.qk_nope_head_dim, config.v_head_dim)));
  REPRISE_ASSIGN_OR_RETURN(
      Linear o, in.SummedProjection("self_attn.o_proj", hidden, heads * config.v_head_dim,
                                    head_share.Times(config.v_head_dim), bias));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor mlp_norm, in.Norm("post_attention_layernorm.weight", hidden));
  REPRISE_ASSIGN_OR_RETURN(
      Linear gate_up,
      in.Projection({{.name = "mlp.gate_proj", .num_rows = inner, .share = inner_share},
                     {.name = "mlp.up_proj", .num_rows = inner, .share = inner_share}},
                    hidden, mlp_bias));
  REPRISE_ASSIGN_OR_RETURN(
      Linear down, in.SummedProjection("mlp.down_proj", hidden, inner, inner_share, mlp_bias));
  return MlaLayerWeights{.input_norm = std::move(input_norm),
                         .q_a = std::move(q_a),
                         .q_a_norm = std::move(q_a_norm),
                         .q = std::move(q),
                         .kv_a = std::move(kv_a),
                         .kv_a_norm = std::move(kv_a_norm),
                         .kv_b = std::move(kv_b),
                         .absorb = std::move(absorb),
                         .expand = std::move(expand),
                         .o = std::move(o),
                         .mlp_norm = std::move(mlp_norm),
                         .gate_up = std::move(gate_up),
                         .down = std::move(down)};
}

// All except the values of HeadLinears that are copies.
absl::StatusOr<MlaWeights> ReadAll(const MlaConfig& config, WeightSource& source) {
  // Refuses ranks that the model cannot be divided over.
  REPRISE_RETURN_IF_ERROR(MlaConfigOfRank(config, source.ranks()).status());
  return ReadDecoder<MlaWeights>({.vocab_size = config.vocab_size,
                                  .hidden_size = config.hidden_size,
                                  .num_layers = config.num_layers,
                                  .ties_embeddings = config.tie_word_embeddings},
                                 source,
                                 [&](int layer) { return ReadLayer(config, layer, source); });
}

std::vector<NamedWeight> NamedWeights(const MlaWeights& weights) {
  std::vector<NamedWeight> named = {Named("embedding", weights.embedding),
                                    Named("final_norm", weights.final_norm),
                                    Named("lm_head", weights.lm_head)};
  for (const MlaLayerWeights& layer : weights.layers) {
    named.insert(named.end(),
                 {Named("input_norm", layer.input_norm), Named("q_a", layer.q_a),
                  Named("q_a_norm", layer.q_a_norm), Named("q", layer.q), Named("kv_a", layer.kv_a),
                  Named("kv_a_norm", layer.kv_a_norm), Named("kv_b", layer.kv_b),
                  Named("absorb", layer.absorb.weight()), Named("expand", layer.expand.weight()),
                  Named("o", layer.o), Named("mlp_norm", layer.mlp_norm),
                  Named("gate_up", layer.gate_up), Named("down", layer.down)});
  }
  return named;
}

bool IsUnused(const MlaConfig& config, const std::string& name) {
  return IsUnusedDecoderTensor(name, {.ties_embeddings = config.tie_word_embeddings,
                                      .num_layers = config.num_layers,
                                      .num_prediction_layers = config.num_prediction_layers});
}

constexpr ModelWeights<MlaConfig, MlaWeights> kWeights = {
    .read = ReadAll, .named = NamedWeights, .is_unused = IsUnused};

}  // namespace

absl::StatusOr<MlaConfig> MlaConfigOfRank(const MlaConfig& config, const Ranks& ranks) {
  REPRISE_RETURN_IF_ERROR(CheckDivides("num_heads", config.num_heads, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("intermediate_size", config.intermediate_size, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("vocab_size", config.vocab_size, ranks));
  MlaConfig own = config;
  own.num_heads = static_cast<int>(ShareOf(config.num_heads, ranks).size);
  own.intermediate_size = static_cast<int>(AlignedShareOf(config.intermediate_size, ranks).size);
  return own;
}

std::vector<ExpectedTensor> MlaTensors(const MlaConfig& config) { return kWeights.Tensors(config); }

absl::StatusOr<MlaWeights> LoadMlaWeights(const std::string& folder, const MlaConfig& config,
                                          const LoadWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(MlaWeights weights, kWeights.Load(folder, config, options));
  REPRISE_ASSIGN_OR_RETURN(const MlaConfig own, MlaConfigOfRank(config, options.ranks));
  REPRISE_RETURN_IF_ERROR(FillAbsorb(own, weights));
  return weights;
}

absl::StatusOr<MlaWeights> MakeRandomMlaWeights(const MlaConfig& config,
                                                const RandomWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(MlaWeights weights,
                           kWeights.Random(config, options, RandomSpread::kLively));
  REPRISE_ASSIGN_OR_RETURN(const MlaConfig own, MlaConfigOfRank(config, options.ranks));
  REPRISE_RETURN_IF_ERROR(FillAbsorb(own, weights));
  return weights;
}

absl::Status CheckMlaWeights(const MlaConfig& config, const MlaWeights& weights,
                             const Ranks& ranks) {
  return kWeights.Check(config, weights, ranks);
}

}  // namespace reprise
