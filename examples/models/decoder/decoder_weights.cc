#include "reprise/models/decoder/decoder_weights.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "reprise/distributed/share.h"
#include "reprise/models/model_weights.h"

namespace reprise {
namespace {

// The value of a norm's weight that changes nothing.
double NeutralNorm(const DecoderConfig& config) {
  return config.norm_weight == NormWeight::kOnePlus ? 0 : 1;
}

// A rank's heads and its elements of the feed-forward. Blocks of columns stay whole if possible.
absl::StatusOr<HeadShare> HeadsOf(const DecoderConfig& config, const Ranks& ranks) {
  const int q_unit = config.block_columns / std::gcd(config.block_columns, config.head_dim);
  const int num_kv_heads = config.latent.has_value() ? config.num_q_heads : config.num_kv_heads;
  return HeadShareOf(config.num_q_heads, num_kv_heads, ranks, q_unit);
}

Share InnerOf(const DecoderConfig& config, const Ranks& ranks) {
  return AlignedShareOf(config.intermediate_size, ranks, std::max(64, config.block_columns));
}

std::string Joined(std::string_view prefix, std::string_view name) {
  return std::string(prefix).append(".").append(name);
}

// The parts of one product: tensors of their own, or rows of one stored tensor `fused`.
std::vector<WeightPart> PartsOf(std::vector<WeightPart> parts, bool is_fused,
                                const std::string& fused) {
  if (!is_fused) return parts;
  int64_t num_stored_rows = 0;
  for (const WeightPart& part : parts) num_stored_rows += part.num_rows;
  int64_t first_row = 0;
  for (WeightPart& part : parts) {
    part.name = fused;
    part.first_row = first_row;
    part.num_stored_rows = num_stored_rows;
    first_row += part.num_rows;
  }
  return parts;
}

// [size], in the form of the config's norms; nullopt without a name.
absl::StatusOr<std::optional<at::Tensor>> ReadNorm(const DecoderConfig& config,
                                                   const LayerReader& in, std::string_view name,
                                                   int64_t size) {
  if (name.empty()) return std::optional<at::Tensor>();
  REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, in.Norm(name, size, NeutralNorm(config)));
  return std::optional(std::move(norm));
}

struct FeedForward {
  std::optional<Linear> gate_up = {};
  std::optional<Linear> down = {};
  std::optional<ExpertWeights> experts = {};
};

absl::StatusOr<FeedForward> ReadFeedForward(const DecoderConfig& config, int layer,
                                            const LayerReader& in) {
  FeedForward read;
  const int64_t hidden = config.hidden_size;
  if (config.HasExperts(layer)) {
    REPRISE_ASSIGN_OR_RETURN(read.experts, ReadExperts(*config.experts, in, hidden));
    return read;
  }
  const int64_t inner = config.intermediate_size;
  const std::string_view mlp = config.names.mlp;
  const Share share = InnerOf(config, in.ranks());
  const auto part = [&](std::string_view name) {
    return WeightPart{.name = Joined(mlp, name), .num_rows = inner, .share = share};
  };
  REPRISE_ASSIGN_OR_RETURN(
      read.gate_up, in.Projection(PartsOf({part("gate_proj"), part("up_proj")},
                                          config.names.is_fused, Joined(mlp, "gate_up_proj")),
                                  hidden, BiasIf(config.mlp_bias)));
  REPRISE_ASSIGN_OR_RETURN(read.down, in.SummedProjection(Joined(mlp, "down_proj"), hidden, inner,
                                                          share, BiasIf(config.mlp_bias)));
  return read;
}

// All of attention but its output projection.
struct Attention {
  std::optional<Linear> qkv = {};
  std::optional<at::Tensor> q_norm = {};
  std::optional<at::Tensor> k_norm = {};
  std::optional<at::Tensor> sinks = {};
  StoredKvScales kv_scales = {};
  std::optional<LatentWeights> latent = {};
};

absl::StatusOr<Attention> ReadGrouped(const DecoderConfig& config, int layer,
                                      const LayerReader& in) {
  Attention read;
  REPRISE_ASSIGN_OR_RETURN(const HeadShare heads, HeadsOf(config, in.ranks()));
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const Share kv_share = heads.kv.Times(config.head_dim);
  std::optional<int> unzipped_head;
  if (config.rope_pairs == RopePairs::kNeighbours && config.AttentionOf(layer).rotates) {
    unzipped_head = config.head_dim;
  }
  REPRISE_ASSIGN_OR_RETURN(
      read.qkv,
      in.Projection(PartsOf({{.name = "self_attn.q_proj",
                              .num_rows = q_size,
                              .unzipped_head = unzipped_head,
                              .share = heads.q.Times(config.head_dim)},
                             {.name = "self_attn.k_proj",
                              .num_rows = kv_size,
                              .unzipped_head = unzipped_head,
                              .share = kv_share},
                             {.name = "self_attn.v_proj", .num_rows = kv_size, .share = kv_share}},
                            config.names.is_fused, "self_attn.qkv_proj"),
                    config.hidden_size, BiasIf(config.qkv_bias)));
  const bool norms_all = config.qk_norm == QkNorm::kAllHeads;
  if (norms_all || config.qk_norm == QkNorm::kWeighted) {
    REPRISE_ASSIGN_OR_RETURN(read.q_norm, ReadNorm(config, in, "self_attn.q_norm.weight",
                                                   norms_all ? q_size : config.head_dim));
    REPRISE_ASSIGN_OR_RETURN(read.k_norm, ReadNorm(config, in, "self_attn.k_norm.weight",
                                                   norms_all ? kv_size : config.head_dim));
  }
  if (config.sinks) {
    REPRISE_ASSIGN_OR_RETURN(read.sinks, in.Bias("self_attn.sinks", config.num_q_heads, heads.q));
  }
  REPRISE_ASSIGN_OR_RETURN(read.kv_scales, in.KvScales());
  return read;
}

// [heads, nope_dim + v_dim, kv_rank].
at::Tensor HeadsOfLatents(const LatentAttention& latent, const Linear& kv_b) {
  return kv_b.weight().unflatten(0, {-1, latent.nope_dim + latent.v_dim});
}

// All except the values of `absorb`, which FillAbsorbed() sets.
absl::StatusOr<LatentWeights> ReadLatent(const DecoderConfig& config, const LayerReader& in) {
  const LatentAttention& latent = *config.latent;
  REPRISE_ASSIGN_OR_RETURN(const HeadShare heads, HeadsOf(config, in.ranks()));
  const LinearBias bias = BiasIf(config.qkv_bias);
  // The rows of q and k after those that do not rotate.
  const auto unzipped = [&](int num_rows) {
    return config.rope_pairs == RopePairs::kNeighbours ? std::optional(num_rows) : std::nullopt;
  };
  const int64_t hidden = config.hidden_size;
  const bool has_rank = latent.q_rank.has_value();
  const int64_t q_in = latent.q_rank.value_or(config.hidden_size);
  const int64_t kv_dim = latent.nope_dim + latent.v_dim;
  std::optional<Linear> q_a;
  std::optional<at::Tensor> q_a_norm;
  if (has_rank) {
    REPRISE_ASSIGN_OR_RETURN(q_a, in.Projection({{"self_attn.q_a_proj", q_in}}, hidden, bias));
    REPRISE_ASSIGN_OR_RETURN(q_a_norm, in.Norm("self_attn.q_a_layernorm.weight", q_in));
  }
  REPRISE_ASSIGN_OR_RETURN(
      Linear q, in.Projection({{.name = has_rank ? "self_attn.q_b_proj" : "self_attn.q_proj",
                                .num_rows = int64_t{config.num_q_heads} * latent.qk_dim(),
                                .unzipped_head = unzipped(latent.qk_dim()),
                                .kept_rows = latent.nope_dim,
                                .share = heads.q.Times(latent.qk_dim())}},
                              q_in, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(Linear kv_a,
                           in.Projection({{.name = "self_attn.kv_a_proj_with_mqa",
                                           .num_rows = latent.latent_dim(),
                                           .unzipped_head = unzipped(latent.latent_dim()),
                                           .kept_rows = latent.kv_rank}},
                                         hidden, bias));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor kv_a_norm,
                           in.Norm("self_attn.kv_a_layernorm.weight", latent.kv_rank));
  REPRISE_ASSIGN_OR_RETURN(Linear kv_b,
                           in.Projection({{.name = "self_attn.kv_b_proj",
                                           .num_rows = int64_t{config.num_q_heads} * kv_dim,
                                           .share = heads.q.Times(kv_dim)}},
                                         latent.kv_rank, LinearBias::kNone));
  const at::Tensor per_head = HeadsOfLatents(latent, kv_b);
  REPRISE_ASSIGN_OR_RETURN(
      HeadLinear absorb,
      HeadLinear::Create(
          at::empty({per_head.size(0), latent.kv_rank, latent.nope_dim}, kv_b.weight().options())));
  REPRISE_ASSIGN_OR_RETURN(HeadLinear expand,
                           HeadLinear::Create(per_head.narrow(1, latent.nope_dim, latent.v_dim)));
  return LatentWeights{.q_a = std::move(q_a),
                       .q_a_norm = std::move(q_a_norm),
                       .q = std::move(q),
                       .kv_a = std::move(kv_a),
                       .kv_a_norm = std::move(kv_a_norm),
                       .kv_b = std::move(kv_b),
                       .absorb = std::move(absorb),
                       .expand = std::move(expand)};
}

// Call it after kv_b has its values.
absl::Status FillAbsorbed(const DecoderConfig& config, const DecoderWeights& weights) {
  if (!config.latent.has_value()) return absl::OkStatus();
  return CatchTorch([&] {
    for (const DecoderLayerWeights& layer : weights.layers) {
      // Transposed, since products have the inner dimension last.
      at::Tensor weight = layer.latent->absorb.weight();
      weight.copy_(HeadsOfLatents(*config.latent, layer.latent->kv_b)
                       .narrow(1, 0, config.latent->nope_dim)
                       .transpose(1, 2));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<Attention> ReadAttention(const DecoderConfig& config, int layer,
                                        const LayerReader& in) {
  if (!config.latent.has_value()) return ReadGrouped(config, layer, in);
  Attention read;
  REPRISE_ASSIGN_OR_RETURN(read.latent, ReadLatent(config, in));
  return read;
}

absl::StatusOr<DecoderLayerWeights> ReadLayer(const DecoderConfig& config, int layer,
                                              WeightSource& source) {
  const LayerReader in(source, DecoderLayerPrefix(layer));
  const LayerNames& names = config.names;
  const int64_t hidden = config.hidden_size;
  REPRISE_ASSIGN_OR_RETURN(const HeadShare heads, HeadsOf(config, source.ranks()));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor input_norm,
                           in.Norm(names.input_norm, hidden, NeutralNorm(config)));
  REPRISE_ASSIGN_OR_RETURN(Attention attention, ReadAttention(config, layer, in));
  REPRISE_ASSIGN_OR_RETURN(
      Linear o,
      in.SummedProjection("self_attn.o_proj", hidden, int64_t{config.num_q_heads} * config.v_dim(),
                          heads.q.Times(config.v_dim()), BiasIf(config.o_bias)));
  // A StatusOr, as gcc 12 takes an optional that is moved twice for uninitialised.
  absl::StatusOr<std::optional<at::Tensor>> attention_output_norm =
      ReadNorm(config, in, names.attention_output_norm, hidden);
  REPRISE_RETURN_IF_ERROR(attention_output_norm.status());
  REPRISE_ASSIGN_OR_RETURN(at::Tensor mlp_norm,
                           in.Norm(names.mlp_norm, hidden, NeutralNorm(config)));
  REPRISE_ASSIGN_OR_RETURN(FeedForward feed_forward, ReadFeedForward(config, layer, in));
  absl::StatusOr<std::optional<at::Tensor>> mlp_output_norm =
      ReadNorm(config, in, names.mlp_output_norm, hidden);
  REPRISE_RETURN_IF_ERROR(mlp_output_norm.status());
  return DecoderLayerWeights{.input_norm = std::move(input_norm),
                             .qkv = std::move(attention.qkv),
                             .q_norm = std::move(attention.q_norm),
                             .k_norm = std::move(attention.k_norm),
                             .sinks = std::move(attention.sinks),
                             .kv_scales = attention.kv_scales,
                             .latent = std::move(attention.latent),
                             .o = std::move(o),
                             .attention_output_norm = *std::move(attention_output_norm),
                             .mlp_norm = std::move(mlp_norm),
                             .gate_up = std::move(feed_forward.gate_up),
                             .down = std::move(feed_forward.down),
                             .experts = std::move(feed_forward.experts),
                             .mlp_output_norm = *std::move(mlp_output_norm)};
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

std::vector<NamedWeight> NamedLatentWeights(const std::optional<LatentWeights>& weights) {
  if (!weights.has_value()) {
    return {{"q_a", nullptr},    {"q_a_norm", nullptr},  {"q", nullptr},
            {"kv_a", nullptr},   {"kv_a_norm", nullptr}, {"kv_b", nullptr},
            {"absorb", nullptr}, {"expand", nullptr}};
  }
  return {Named("q_a", weights->q_a),
          Named("q_a_norm", weights->q_a_norm),
          Named("q", weights->q),
          Named("kv_a", weights->kv_a),
          Named("kv_a_norm", weights->kv_a_norm),
          Named("kv_b", weights->kv_b),
          Named("absorb", weights->absorb.weight()),
          Named("expand", weights->expand.weight())};
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
    const std::vector<NamedWeight> latent = NamedLatentWeights(layer.latent);
    named.insert(named.end(), latent.begin(), latent.end());
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
  if (config.qk_norm == QkNorm::kAllHeads && ranks.world > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "norms of all heads together are not divided: expected 1 rank, got ", ranks.world));
  }
  if (config.experts.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(own.experts, ExpertsOfRank(*config.experts, ranks));
  }
  if (config.HasDenseLayer()) {
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
  REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, kWeights.Load(folder, config, options));
  REPRISE_RETURN_IF_ERROR(FillAbsorbed(config, weights));
  return weights;
}

absl::StatusOr<DecoderWeights> MakeRandomWeights(const DecoderConfig& config,
                                                 const RandomWeightsOptions& options,
                                                 RandomSpread spread) {
  REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, kWeights.Random(config, options, spread));
  REPRISE_RETURN_IF_ERROR(FillAbsorbed(config, weights));
  return weights;
}

absl::Status CheckDecoderWeights(const DecoderConfig& config, const DecoderWeights& weights,
                                 const Ranks& ranks) {
  return kWeights.Check(config, weights, ranks);
}

}  // namespace reprise
