#include "examples/models/llama/llama_weights.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "glog/logging.h"

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

LayerNames LayerNamesOf(const LlamaConfig& config) {
  LayerNames names;
  if (config.architecture == Architecture::kLlama4) names.mlp = "feed_forward";
  if (config.norm_placement == NormPlacement::kBeforeAndAfter) {
    names.attention_output_norm = "post_attention_layernorm.weight";
    names.mlp_norm = "pre_feedforward_layernorm.weight";
    names.mlp_output_norm = "post_feedforward_layernorm.weight";
  }
  return names;
}

absl::StatusOr<LlamaLayerWeights> ReadLayer(const LlamaConfig& config, int layer,
                                            WeightSource& source) {
  const LayerReader in(source, DecoderLayerPrefix(layer));
  const LayerNames names = LayerNamesOf(config);
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const double neutral = config.norm_weight == NormWeight::kOnePlus ? 0 : 1;
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
  REPRISE_ASSIGN_OR_RETURN(Linear qkv, in.Projection({{"self_attn.q_proj", q_size, unzipped_head},
                                                      {"self_attn.k_proj", kv_size, unzipped_head},
                                                      {"self_attn.v_proj", kv_size}},
                                                     hidden, BiasIf(config.qkv_bias)));
  REPRISE_ASSIGN_OR_RETURN(
      std::optional<at::Tensor> q_norm,
      optional_norm(norms_heads ? "self_attn.q_norm.weight" : "", config.head_dim, 1));
  REPRISE_ASSIGN_OR_RETURN(
      std::optional<at::Tensor> k_norm,
      optional_norm(norms_heads ? "self_attn.k_norm.weight" : "", config.head_dim, 1));
  REPRISE_ASSIGN_OR_RETURN(
      Linear o, in.Projection({{"self_attn.o_proj", hidden}}, q_size, BiasIf(config.o_bias)));
  REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> attention_output_norm,
                           optional_norm(names.attention_output_norm, hidden, neutral));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor mlp_norm, in.Norm(names.mlp_norm, hidden, neutral));
  REPRISE_ASSIGN_OR_RETURN(Linear gate_up, in.Projection({{names.mlp + ".gate_proj", inner},
                                                          {names.mlp + ".up_proj", inner}},
                                                         hidden, BiasIf(config.mlp_bias)));
  REPRISE_ASSIGN_OR_RETURN(Linear down, in.Projection({{names.mlp + ".down_proj", hidden}}, inner,
                                                      BiasIf(config.mlp_bias)));
  REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> mlp_output_norm,
                           optional_norm(names.mlp_output_norm, hidden, neutral));
  return LlamaLayerWeights{.input_norm = std::move(input_norm),
                           .qkv = std::move(qkv),
                           .q_norm = std::move(q_norm),
                           .k_norm = std::move(k_norm),
                           .o = std::move(o),
                           .attention_output_norm = std::move(attention_output_norm),
                           .mlp_norm = std::move(mlp_norm),
                           .gate_up = std::move(gate_up),
                           .down = std::move(down),
                           .mlp_output_norm = std::move(mlp_output_norm)};
}

absl::StatusOr<LlamaWeights> ReadAll(const LlamaConfig& config, WeightSource& source) {
  const LayerReader in(source, "");
  const int64_t hidden = config.hidden_size;
  const double neutral = config.norm_weight == NormWeight::kOnePlus ? 0 : 1;
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding,
                           in.Matrix("model.embed_tokens.weight", {config.vocab_size, hidden}));
  std::vector<LlamaLayerWeights> layers;
  layers.reserve(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(LlamaLayerWeights read, ReadLayer(config, layer, source));
    layers.push_back(std::move(read));
  }
  REPRISE_ASSIGN_OR_RETURN(at::Tensor final_norm, in.Norm("model.norm.weight", hidden, neutral));
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(head, in.Matrix("lm_head.weight", {config.vocab_size, hidden}));
  }
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  return LlamaWeights{.embedding = std::move(embedding),
                      .layers = std::move(layers),
                      .final_norm = std::move(final_norm),
                      .lm_head = std::move(lm_head),
                      .dtype = source.dtype()};
}

auto ReaderOf(const LlamaConfig& config) {
  return [&config](WeightSource& source) { return ReadAll(config, source); };
}

std::vector<NamedWeight> NamedWeights(const LlamaWeights& weights) {
  std::vector<NamedWeight> named = {Named("embedding", weights.embedding),
                                    Named("final_norm", weights.final_norm),
                                    Named("lm_head", weights.lm_head)};
  for (const LlamaLayerWeights& layer : weights.layers) {
    named.insert(named.end(),
                 {Named("input_norm", layer.input_norm), Named("qkv", layer.qkv),
                  Named("q_norm", layer.q_norm), Named("k_norm", layer.k_norm), Named("o", layer.o),
                  Named("attention_output_norm", layer.attention_output_norm),
                  Named("mlp_norm", layer.mlp_norm), Named("gate_up", layer.gate_up),
                  Named("down", layer.down), Named("mlp_output_norm", layer.mlp_output_norm)});
  }
  return named;
}

}  // namespace

std::vector<ExpectedTensor> LlamaTensors(const LlamaConfig& config) {
  absl::StatusOr<std::vector<ExpectedTensor>> tensors = ListTensors(ReaderOf(config));
  CHECK(tensors.ok()) << tensors.status();
  return *std::move(tensors);
}

absl::Status CheckLlamaTensors(const LlamaConfig& config, const TensorViews& tensors) {
  return CheckTensors(LlamaTensors(config), tensors, [&](const std::string& name) {
    return IsUnusedDecoderTensor(name, config.tie_word_embeddings);
  });
}

absl::StatusOr<LlamaWeights> LoadLlamaWeights(const std::string& folder, const LlamaConfig& config,
                                              const LoadWeightsOptions& options) {
  const auto is_unused = [&](const std::string& name) {
    return IsUnusedDecoderTensor(name, config.tie_word_embeddings);
  };
  return LoadWeights(folder, options, is_unused, ReaderOf(config));
}

absl::StatusOr<LlamaWeights> MakeRandomWeights(const LlamaConfig& config,
                                               const RandomWeightsOptions& options) {
  return MakeRandom(options, ReaderOf(config));
}

absl::Status CheckLlamaWeights(const LlamaConfig& config, const LlamaWeights& weights) {
  REPRISE_ASSIGN_OR_RETURN(const LlamaWeights shapes, ShapesOf(ReaderOf(config)));
  if (weights.layers.size() != shapes.layers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("layers must be num_layers: expected ",
                                                   shapes.layers.size(), ", got ",
                                                   weights.layers.size()));
  }
  REPRISE_RETURN_IF_ERROR(CheckWeights(NamedWeights(shapes), NamedWeights(weights)));
  return CheckDType("embedding", weights.embedding, {ToScalarType(weights.dtype)});
}

}  // namespace reprise
