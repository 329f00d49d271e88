#include "reprise/models/decoder/decoder_weights.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/models/model_weights.h"

namespace reprise {
namespace {

// The names of a layer's tensors that differ between families.
struct LayerNames {
  std::string mlp = "mlp";  // before ".gate_proj"
  std::string input_norm = "input_layernorm.weight";
  std::string attention_output_norm = {};  // empty: absent
  std::string mlp_norm = "post_attention_layernorm.weight";
  std::string mlp_output_norm = {};  // empty: there is none
};

LayerNames LayerNamesOf(const DecoderConfig& config) {
  LayerNames names;
  if (config.architecture == Architecture::kLlama4) names.mlp = "feed_forward";
  if (config.norm_placement == NormPlacement::kBeforeAndAfter) {
    names.attention_output_norm = "post_attention_layernorm.weight";
    names.mlp_norm = "pre_feedforward_layernorm.weight";
    names.mlp_output_norm = "post_feedforward_layernorm.weight";
  }
  return names;
}

// The value of a norm's weight that changes nothing.
double NeutralNorm(const DecoderConfig& config) {
  return config.norm_weight == NormWeight::kOnePlus ? 0 : 1;
}

// A rank's heads and its elements of the feed-forward. Blocks of columns stay whole if possible.
absl::StatusOr<HeadShare> HeadsOf(const DecoderConfig& config, const Ranks& ranks) {
  const int q_unit = config.block_columns / std::gcd(config.block_columns, config.head_dim);
  return HeadShareOf(config.num_q_heads, config.num_kv_heads, ranks, q_unit);
}

Share InnerOf(const DecoderConfig& config, const Ranks& ranks) {
  return AlignedShareOf(config.intermediate_size, ranks, std::max(64, config.block_columns));
}

struct FeedForward {
  std::optional<Linear> gate_up = {};
  std::optional<Linear> down = {};
  std::optional<ExpertWeights> experts = {};
};

// `name`: the feed-forward's, such as "mlp".
absl::StatusOr<FeedForward> ReadFeedForward(const DecoderConfig& config, const std::string& name,
                                            const LayerReader& in) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  FeedForward read;
  if (config.experts.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(read.experts, ReadExperts(*config.experts, in, hidden));
    return read;
  }
  const Share share = InnerOf(config, in.ranks());
  REPRISE_ASSIGN_OR_RETURN(
      read.gate_up, in.Projection({{.name = name + ".gate_proj", .num_rows = inner, .share = share},
                                   {.name = name + ".up_proj", .num_rows = inner, .share = share}},
                                  hidden, BiasIf(config.mlp_bias)));
  REPRISE_ASSIGN_OR_RETURN(read.down, in.SummedProjection(name + ".down_proj", hidden, inner, share,
                                                          BiasIf(config.mlp_bias)));
  return read;
}

absl::StatusOr<DecoderLayerWeights> ReadLayer(const DecoderConfig& config, int layer,
                                              WeightSource& source) {
  const LayerReader in(source, DecoderLayerPrefix(layer));
  const LayerNames names = LayerNamesOf(config);
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  REPRISE_ASSIGN_OR_RETURN(const HeadShare heads, HeadsOf(config, source.ranks()));
  const Share q_share = heads.q.Times(config.head_dim);
  const Share kv_share = heads.kv.Times(config.head_dim);
  const double neutral = NeutralNorm(config);
  const auto optional_norm = [&](const std::string& name, int64_t size,
                                 double one) -> absl::StatusOr<std::optional<at::Tensor>> {
    if (name.empty()) return std::optional<at::Tensor>();
    REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, in.Norm(name, size, one));
    return std::optional(std::move(norm));
  };
  std::optional<int> unzipped_head;
  if (config.rope_pairs == RopePairs::kNeighbours && config.AttentionOf(layer).rotates) {
    unzipped_head = config.head_dim;
  }
  const bool norms_heads = config.qk_norm == QkNorm::kWeighted;

  REPRISE_ASSIGN_OR_RETURN(at::Tensor input_norm, in.Norm(names.input_norm, hidden, neutral));
  REPRISE_ASSIGN_OR_RETURN(
      Linear qkv,
      in.Projection({{.name = "self_attn.q_proj",
                      .num_rows = q_size,
                      .unzipped_head = unzipped_head,
                      .share = q_share},
                     {.name = "self_attn.k_proj",
                      .num_rows = kv_size,
                      .unzipped_head = unzipped_head,
                      .share = kv_share},
                     {.name = "self_attn.v_proj", .num_rows = kv_size, .share = kv_share}},
                    hidden, BiasIf(config.qkv_bias)));
  REPRISE_ASSIGN_OR_RETURN(
      std::optional<at::Tensor> q_norm,
      optional_norm(norms_heads ? "self_attn.q_norm.weight" : "", config.head_dim, neutral));
  REPRISE_ASSIGN_OR_RETURN(
      std::optional<at::Tensor> k_norm,
      optional_norm(norms_heads ? "self_attn.k_norm.weight" : "", config.head_dim, neutral));
  std::optional<at::Tensor> sinks;
  if (config.sinks) {
    REPRISE_ASSIGN_OR_RETURN(sinks, in.Bias("self_attn.sinks", config.num_q_heads, heads.q));
  }
  REPRISE_ASSIGN_OR_RETURN(const StoredKvScales kv_scales, in.KvScales());
  REPRISE_ASSIGN_OR_RETURN(Linear o, in.SummedProjection("self_attn.o_proj", hidden, q_size,
                                                         q_share, BiasIf(config.o_bias)));
  REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> attention_output_norm,
                           optional_norm(names.attention_output_norm, hidden, neutral));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor mlp_norm, in.Norm(names.mlp_norm, hidden, neutral));
  REPRISE_ASSIGN_OR_RETURN(FeedForward feed_forward, ReadFeedForward(config, names.mlp, in));
  REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> mlp_output_norm,
                           optional_norm(names.mlp_output_norm, hidden, neutral));
  return DecoderLayerWeights{.input_norm = std::move(input_norm),
                             .qkv = std::move(qkv),
                             .q_norm = std::move(q_norm),
                             .k_norm = std::move(k_norm),
                             .sinks = std::move(sinks),
                             .kv_scales = kv_scales,
                             .o = std::move(o),
                             .attention_output_norm = std::move(attention_output_norm),
                             .mlp_norm = std::move(mlp_norm),
                             .gate_up = std::move(feed_forward.gate_up),
                             .down = std::move(feed_forward.down),
                             .experts = std::move(feed_forward.experts),
                             .mlp_output_norm = std::move(mlp_output_norm)};
}

absl::StatusOr<DecoderWeights> ReadAll(const DecoderConfig& config, WeightSource& source) {
  // Refuses ranks that the model cannot be divided over.
  REPRISE_RETURN_IF_ERROR(DecoderConfigOfRank(config, source.ranks()).status());
  return ReadDecoder<DecoderWeights>({.vocab_size = config.vocab_size,
                                      .hidden_size = config.hidden_size,
                                      .num_layers = config.num_layers,
                                      .ties_embeddings = config.tie_word_embeddings,
                                      .neutral_norm = NeutralNorm(config)},
                                     source,
                                     [&](int layer) { return ReadLayer(config, layer, source); });
}

std::vector<NamedWeight> NamedWeights(const DecoderWeights& weights) {
  std::vector<NamedWeight> named = {Named("embedding", weights.embedding),
                                    Named("final_norm", weights.final_norm),
                                    Named("lm_head", weights.lm_head)};
  for (const DecoderLayerWeights& layer : weights.layers) {
    named.insert(
        named.end(),
        {Named("input_norm", layer.input_norm), Named("qkv", layer.qkv),
         Named("q_norm", layer.q_norm), Named("k_norm", layer.k_norm), Named("sinks", layer.sinks),
         Named("o", layer.o), Named("attention_output_norm", layer.attention_output_norm),
         Named("mlp_norm", layer.mlp_norm), Named("gate_up", layer.gate_up),
         Named("down", layer.down), Named("mlp_output_norm", layer.mlp_output_norm)});
    const std::vector<NamedWeight> experts = NamedExpertWeights(layer.experts);
    named.insert(named.end(), experts.begin(), experts.end());
  }
  return named;
}

// Scales of attention are no weights: ReadLayer() reads them separately.
bool IsUnused(const DecoderConfig& config, const std::string& name) {
  return IsAttentionScale(name) ||
         IsUnusedDecoderTensor(name, {.ties_embeddings = config.tie_word_embeddings,
                                      .num_layers = config.num_layers,
                                      .num_prediction_layers = config.num_prediction_layers});
}

constexpr ModelWeights<DecoderConfig, DecoderWeights> kWeights = {
    .read = ReadAll, .named = NamedWeights, .is_unused = IsUnused};

}  // namespace

absl::StatusOr<DecoderConfig> DecoderConfigOfRank(const DecoderConfig& config, const Ranks& ranks) {
  DecoderConfig own = config;
  REPRISE_ASSIGN_OR_RETURN(const HeadShare heads, HeadsOf(config, ranks));
  own.num_q_heads = static_cast<int>(heads.q.size);
  own.num_kv_heads = static_cast<int>(heads.kv.size);
  REPRISE_RETURN_IF_ERROR(CheckDivides("vocab_size", config.vocab_size, ranks));
  if (config.experts.has_value()) {
    REPRISE_RETURN_IF_ERROR(CheckDivides("experts.inner_size", config.experts->inner_size, ranks));
    own.experts->inner_size =
        static_cast<int>(AlignedShareOf(config.experts->inner_size, ranks).size);
  } else {
    REPRISE_RETURN_IF_ERROR(CheckDivides("intermediate_size", config.intermediate_size, ranks));
    own.intermediate_size = static_cast<int>(InnerOf(config, ranks).size);
  }
  return own;
}

std::vector<ExpectedTensor> DecoderTensors(const DecoderConfig& config) {
  return kWeights.Tensors(config);
}

absl::Status CheckDecoderTensors(const DecoderConfig& config, const TensorViews& tensors) {
  return kWeights.CheckCheckpoint(config, tensors);
}

absl::StatusOr<DecoderWeights> LoadDecoderWeights(const std::string& folder,
                                                  const DecoderConfig& config,
                                                  const LoadWeightsOptions& options) {
  return kWeights.Load(folder, config, options);
}

absl::StatusOr<DecoderWeights> MakeRandomWeights(const DecoderConfig& config,
                                                 const RandomWeightsOptions& options) {
  return kWeights.Random(config, options, RandomSpread::kUntrained);
}

absl::Status CheckDecoderWeights(const DecoderConfig& config, const DecoderWeights& weights,
                                 const Ranks& ranks) {
  return kWeights.Check(config, weights, ranks);
}

}  // namespace reprise
