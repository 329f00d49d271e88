#include "reprise/models/gpt/gpt_weights.h"

#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/models/model_weights.h"

namespace reprise {
namespace {

constexpr char kPrefix[] = "transformer.";

// The names of a family's tensors.
struct GptNames {
  const char* embedding;
  const char* attention_norm;
  const char* qkv;
  const char* out;
  const char* mlp_norm;
  const char* up;
  const char* down;
};

constexpr GptNames kGpt2Names = {.embedding = "wte.weight",
                                 .attention_norm = "ln_1",
                                 .qkv = "attn.c_attn",
                                 .out = "attn.c_proj",
                                 .mlp_norm = "ln_2",
                                 .up = "mlp.c_fc",
                                 .down = "mlp.c_proj"};
constexpr GptNames kBloomNames = {.embedding = "word_embeddings.weight",
                                  .attention_norm = "input_layernorm",
                                  .qkv = "self_attention.query_key_value",
                                  .out = "self_attention.dense",
                                  .mlp_norm = "post_attention_layernorm",
                                  .up = "mlp.dense_h_to_4h",
                                  .down = "mlp.dense_4h_to_h"};

const GptNames& NamesOf(const GptConfig& config) {
  return config.family == GptFamily::kGpt2 ? kGpt2Names : kBloomNames;
}

absl::StatusOr<GptNorm> ReadNorm(const LayerReader& in, const std::string& name, int64_t size) {
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight, in.Norm(name + ".weight", size));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor bias, in.Bias(name + ".bias", size));
  return GptNorm{.weight = std::move(weight), .bias = std::move(bias)};
}

absl::StatusOr<GptLayerWeights> ReadLayer(const GptConfig& config, const LayerReader& in) {
  const GptNames& names = NamesOf(config);
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.inner_size;
  REPRISE_ASSIGN_OR_RETURN(const GptShare share, GptShareOf(config, in.ranks()));
  const Share head_elements = share.heads.Times(config.head_dim());
  const auto part_of = [&](const char* name, int64_t out_features, int64_t in_features) {
    WeightPart part = {.name = name, .num_rows = out_features};
    if (config.family == GptFamily::kGpt2) {
      part.stored_shape = {in_features, out_features};
      part.is_transposed = true;
    }
    return part;
  };
  // This rank's outputs of each `period`, and of all.
  const auto read = [&](const char* name, int64_t out_features, int64_t in_features,
                        const Share& rows, int64_t period) {
    WeightPart part = part_of(name, out_features, in_features);
    part.share = rows;
    part.period = period;
    return in.Projection({part}, in_features, LinearBias::kAdded);
  };
  // Of this rank's inputs.
  const auto read_summed = [&](const char* name, int64_t out_features, int64_t in_features,
                               const Share& columns) -> absl::StatusOr<Linear> {
    WeightPart part = part_of(name, out_features, in_features);
    if (in.ranks().world == 1) return in.Projection({part}, in_features, LinearBias::kAdded);
    part.name += ".weight";
    REPRISE_ASSIGN_OR_RETURN(at::Tensor weight,
                             in.Rows({part}, {in_features}, WeightKind::kMatrix, columns));
    std::optional<at::Tensor> bias;
    if (in.ranks().rank == 0) {
      REPRISE_ASSIGN_OR_RETURN(bias, in.Bias(absl::StrCat(name, ".bias"), out_features));
    }
    return Linear::Create(std::move(weight), std::move(bias));
  };
  // GPT-2's q, k and v follow each other; BLOOM's heads do.
  const bool by_head = config.family == GptFamily::kBloom;
  REPRISE_ASSIGN_OR_RETURN(GptNorm attention_norm, ReadNorm(in, names.attention_norm, hidden));
  REPRISE_ASSIGN_OR_RETURN(Linear qkv, read(names.qkv, 3 * hidden, hidden,
                                            by_head ? head_elements.Times(3) : head_elements,
                                            by_head ? 3 * hidden : hidden));
  REPRISE_ASSIGN_OR_RETURN(Linear out, read_summed(names.out, hidden, hidden, head_elements));
  REPRISE_ASSIGN_OR_RETURN(GptNorm mlp_norm, ReadNorm(in, names.mlp_norm, hidden));
  REPRISE_ASSIGN_OR_RETURN(Linear up, read(names.up, inner, hidden, share.inner, inner));
  REPRISE_ASSIGN_OR_RETURN(Linear down, read_summed(names.down, hidden, inner, share.inner));
  return GptLayerWeights{.attention_norm = std::move(attention_norm),
                         .qkv = std::move(qkv),
                         .out = std::move(out),
                         .mlp_norm = std::move(mlp_norm),
                         .up = std::move(up),
                         .down = std::move(down)};
}

absl::StatusOr<GptWeights> ReadWithPrefix(const GptConfig& config, std::string_view prefix,
                                          WeightSource& source) {
  const LayerReader in(source, std::string(prefix));
  const int64_t hidden = config.hidden_size;
  const Share vocabulary = AlignedShareOf(config.vocab_size, source.ranks());
  REPRISE_ASSIGN_OR_RETURN(
      at::Tensor embedding,
      in.Matrix(NamesOf(config).embedding, {config.vocab_size, hidden}, vocabulary));
  std::optional<at::Tensor> positions;
  std::optional<GptNorm> embedding_norm;
  if (config.family == GptFamily::kGpt2) {
    REPRISE_ASSIGN_OR_RETURN(positions, in.Matrix("wpe.weight", {config.max_seq_len, hidden}));
  } else {
    REPRISE_ASSIGN_OR_RETURN(embedding_norm, ReadNorm(in, "word_embeddings_layernorm", hidden));
  }
  std::vector<GptLayerWeights> layers;
  layers.reserve(config.num_layers);
  for (int i = 0; i < config.num_layers; ++i) {
    const LayerReader layer(source, absl::StrCat(std::string(prefix), "h.", i, "."));
    REPRISE_ASSIGN_OR_RETURN(GptLayerWeights read, ReadLayer(config, layer));
    layers.push_back(std::move(read));
  }
  REPRISE_ASSIGN_OR_RETURN(GptNorm final_norm, ReadNorm(in, "ln_f", hidden));
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(
        head,
        LayerReader(source, "").Matrix("lm_head.weight", {config.vocab_size, hidden}, vocabulary));
  }
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  return GptWeights{.embedding = std::move(embedding),
                    .positions = std::move(positions),
                    .embedding_norm = std::move(embedding_norm),
                    .layers = std::move(layers),
                    .final_norm = std::move(final_norm),
                    .lm_head = std::move(lm_head),
                    .dtype = source.dtype()};
}

absl::StatusOr<GptWeights> ReadAll(const GptConfig& config, WeightSource& source) {
  return ReadWithPrefix(config, kPrefix, source);
}

absl::StatusOr<GptWeights> ReadAllWithoutPrefix(const GptConfig& config, WeightSource& source) {
  return ReadWithPrefix(config, "", source);
}

void AddNorm(const char* name, const GptNorm& norm, std::vector<NamedWeight>& named) {
  named.push_back(Named(name, norm.weight));
  named.push_back(Named(name, norm.bias));
}

std::vector<NamedWeight> NamedWeights(const GptWeights& weights) {
  std::vector<NamedWeight> named = {Named("embedding", weights.embedding),
                                    Named("positions", weights.positions),
                                    Named("lm_head", weights.lm_head)};
  named.push_back({"embedding_norm",
                   weights.embedding_norm.has_value() ? &weights.embedding_norm->weight : nullptr});
  named.push_back({"embedding_norm",
                   weights.embedding_norm.has_value() ? &weights.embedding_norm->bias : nullptr});
  AddNorm("final_norm", weights.final_norm, named);
  for (const GptLayerWeights& layer : weights.layers) {
    AddNorm("attention_norm", layer.attention_norm, named);
    AddNorm("mlp_norm", layer.mlp_norm, named);
    named.insert(named.end(), {Named("qkv", layer.qkv), Named("qkv bias", layer.qkv.bias()),
                               Named("out", layer.out), Named("out bias", layer.out.bias()),
                               Named("up", layer.up), Named("up bias", layer.up.bias()),
                               Named("down", layer.down), Named("down bias", layer.down.bias())});
  }
  return named;
}

// Causal masks of old files, and what is tied to the embedding.
bool IsUnused(const GptConfig& config, const std::string& name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

constexpr ModelWeights<GptConfig, GptWeights> kWeights = {
    .read = ReadAll, .named = NamedWeights, .is_unused = IsUnused};
constexpr ModelWeights<GptConfig, GptWeights> kWeightsWithoutPrefix = {
    .read = ReadAllWithoutPrefix, .named = NamedWeights, .is_unused = IsUnused};

}  // namespace

absl::StatusOr<GptShare> GptShareOf(const GptConfig& config, const Ranks& ranks) {
  REPRISE_RETURN_IF_ERROR(CheckDivides("num_heads", config.num_heads, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("inner_size", config.inner_size, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("vocab_size", config.vocab_size, ranks));
  return GptShare{.heads = ShareOf(config.num_heads, ranks),
                  .inner = AlignedShareOf(config.inner_size, ranks)};
}

std::vector<ExpectedTensor> GptTensors(const GptConfig& config) { return kWeights.Tensors(config); }

absl::StatusOr<GptWeights> LoadGptWeights(const std::string& folder, const GptConfig& config,
                                          const LoadWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  const bool has_prefix = !checkpoint.tensors().contains(NamesOf(config).embedding);
  return (has_prefix ? kWeights : kWeightsWithoutPrefix).Load(folder, config, options);
}

absl::StatusOr<GptWeights> MakeRandomGptWeights(const GptConfig& config,
                                                const RandomWeightsOptions& options) {
  return kWeights.Random(config, options, RandomSpread::kLively);
}

absl::Status CheckGptWeights(const GptConfig& config, const GptWeights& weights,
                             const Ranks& ranks) {
  return kWeights.Check(config, weights, ranks);
}

}  // namespace reprise
