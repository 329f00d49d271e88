#include "reprise/models/bart/bart_weights.h"

#include <ATen/ops/zeros.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/checkpoint.h"

namespace reprise {
namespace {

// The first rows of the positions are unused: fairseq counted from the padding token's id.
constexpr int kPositionOffset = 2;

absl::StatusOr<BartNorm> ReadNorm(const LayerReader& in, const std::string& name, int64_t width) {
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight, in.Norm(name + ".weight", width));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor bias, in.Bias(name + ".bias", width));
  return BartNorm{.weight = std::move(weight), .bias = std::move(bias)};
}

// This rank's rows of a product.
WeightPart PartOf(const char* name, int64_t num_rows, const Share& rows) {
  return {.name = name, .num_rows = num_rows, .share = rows};
}

// `heads`: elements of the rank's heads.
absl::StatusOr<BartSelfAttention> ReadSelf(const LayerReader& in, int64_t width,
                                           const Share& heads) {
  REPRISE_ASSIGN_OR_RETURN(Linear qkv, in.Projection({PartOf("self_attn.q_proj", width, heads),
                                                      PartOf("self_attn.k_proj", width, heads),
                                                      PartOf("self_attn.v_proj", width, heads)},
                                                     width, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(Linear out, in.SummedProjection("self_attn.out_proj", width, width,
                                                           heads, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(BartNorm norm, ReadNorm(in, "self_attn_layer_norm", width));
  return BartSelfAttention{.qkv = std::move(qkv), .out = std::move(out), .norm = std::move(norm)};
}

absl::StatusOr<BartCrossAttention> ReadCross(const LayerReader& in, int64_t width,
                                             const Share& heads) {
  REPRISE_ASSIGN_OR_RETURN(Linear q, in.Projection({PartOf("encoder_attn.q_proj", width, heads)},
                                                   width, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(Linear kv, in.Projection({PartOf("encoder_attn.k_proj", width, heads),
                                                     PartOf("encoder_attn.v_proj", width, heads)},
                                                    width, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(Linear out, in.SummedProjection("encoder_attn.out_proj", width, width,
                                                           heads, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(BartNorm norm, ReadNorm(in, "encoder_attn_layer_norm", width));
  return BartCrossAttention{
      .q = std::move(q), .kv = std::move(kv), .out = std::move(out), .norm = std::move(norm)};
}

absl::StatusOr<BartFeedForward> ReadFeedForward(const LayerReader& in, int64_t width, int64_t inner,
                                                const Share& own) {
  REPRISE_ASSIGN_OR_RETURN(Linear up,
                           in.Projection({PartOf("fc1", inner, own)}, width, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(Linear down,
                           in.SummedProjection("fc2", width, inner, own, LinearBias::kAdded));
  REPRISE_ASSIGN_OR_RETURN(BartNorm norm, ReadNorm(in, "final_layer_norm", width));
  return BartFeedForward{.up = std::move(up), .down = std::move(down), .norm = std::move(norm)};
}

absl::StatusOr<BartInput> ReadInput(const LayerReader& in, const BartConfig& config) {
  REPRISE_ASSIGN_OR_RETURN(
      const at::Tensor positions,
      in.Matrix("embed_positions.weight",
                {int64_t{config.max_seq_len} + kPositionOffset, config.d_model}));
  REPRISE_ASSIGN_OR_RETURN(BartNorm norm, ReadNorm(in, "layernorm_embedding", config.d_model));
  return BartInput{.positions = positions.narrow(0, kPositionOffset, config.max_seq_len),
                   .norm = std::move(norm)};
}

// The names of a checkpoint that depend on the class that was saved.
struct BartNames {
  std::string prefix = "model.";
  bool has_logits_bias = true;
};

absl::StatusOr<BartWeights> ReadAll(const BartConfig& config, const BartNames& names,
                                    WeightSource& source) {
  const int64_t width = config.d_model;
  REPRISE_ASSIGN_OR_RETURN(const BartShare share, BartShareOf(config, source.ranks()));
  const LayerReader in(source, "");
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding,
                           in.Matrix(names.prefix + "shared.weight", {config.vocab_size, width},
                                     AlignedShareOf(config.vocab_size, source.ranks())));
  at::Tensor logits_bias = at::zeros({1, config.vocab_size}, embedding.options());
  if (names.has_logits_bias) {
    REPRISE_ASSIGN_OR_RETURN(logits_bias, in.Matrix("final_logits_bias", {1, config.vocab_size}));
  }
  REPRISE_ASSIGN_OR_RETURN(BartInput encoder_input,
                           ReadInput(LayerReader(source, names.prefix + "encoder."), config));
  REPRISE_ASSIGN_OR_RETURN(BartInput decoder_input,
                           ReadInput(LayerReader(source, names.prefix + "decoder."), config));
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(embedding, std::nullopt));
  BartWeights weights = {.embedding = std::move(embedding),
                         .encoder_input = std::move(encoder_input),
                         .encoder = {},
                         .decoder_input = std::move(decoder_input),
                         .decoder = {},
                         .lm_head = std::move(lm_head),
                         .logits_bias = std::move(logits_bias),
                         .dtype = source.dtype()};
  const Share encoder_heads = share.encoder.heads.Times(width / config.encoder.num_heads);
  for (int i = 0; i < config.encoder.num_layers; ++i) {
    const LayerReader layer(source, absl::StrCat(names.prefix, "encoder.layers.", i, "."));
    REPRISE_ASSIGN_OR_RETURN(BartSelfAttention self, ReadSelf(layer, width, encoder_heads));
    REPRISE_ASSIGN_OR_RETURN(
        BartFeedForward feed_forward,
        ReadFeedForward(layer, width, config.encoder.ffn_dim, share.encoder.inner));
    weights.encoder.push_back({.self = std::move(self), .feed_forward = std::move(feed_forward)});
  }
  const Share decoder_heads = share.decoder.heads.Times(width / config.decoder.num_heads);
  for (int i = 0; i < config.decoder.num_layers; ++i) {
    const LayerReader layer(source, absl::StrCat(names.prefix, "decoder.layers.", i, "."));
    REPRISE_ASSIGN_OR_RETURN(BartSelfAttention self, ReadSelf(layer, width, decoder_heads));
    REPRISE_ASSIGN_OR_RETURN(BartCrossAttention cross, ReadCross(layer, width, decoder_heads));
    REPRISE_ASSIGN_OR_RETURN(
        BartFeedForward feed_forward,
        ReadFeedForward(layer, width, config.decoder.ffn_dim, share.decoder.inner));
    weights.decoder.push_back({.self = std::move(self),
                               .cross = std::move(cross),
                               .feed_forward = std::move(feed_forward)});
  }
  return weights;
}

auto ReaderOf(const BartConfig& config, const BartNames& names = {}) {
  return [&config, names](WeightSource& source) { return ReadAll(config, names, source); };
}

std::vector<NamedWeight> NamedWeights(const BartWeights& weights) {
  std::vector<NamedWeight> named = {Named("embedding", weights.embedding),
                                    Named("logits_bias", weights.logits_bias),
                                    Named("lm_head", weights.lm_head)};
  const auto add = [&](std::initializer_list<NamedWeight> more) {
    named.insert(named.end(), more.begin(), more.end());
  };
  const auto add_self = [&](const BartSelfAttention& self) {
    add({Named("self.qkv", self.qkv), Named("self.out", self.out),
         Named("self.norm.weight", self.norm.weight), Named("self.norm.bias", self.norm.bias)});
  };
  const auto add_feed_forward = [&](const BartFeedForward& layer) {
    add({Named("feed_forward.up", layer.up), Named("feed_forward.down", layer.down),
         Named("feed_forward.norm.weight", layer.norm.weight),
         Named("feed_forward.norm.bias", layer.norm.bias)});
  };
  for (const BartInput* input : {&weights.encoder_input, &weights.decoder_input}) {
    add({Named("positions", input->positions), Named("input.norm.weight", input->norm.weight),
         Named("input.norm.bias", input->norm.bias)});
  }
  for (const BartEncoderLayer& layer : weights.encoder) {
    add_self(layer.self);
    add_feed_forward(layer.feed_forward);
  }
  for (const BartDecoderLayer& layer : weights.decoder) {
    add_self(layer.self);
    add({Named("cross.q", layer.cross.q), Named("cross.kv", layer.cross.kv),
         Named("cross.out", layer.cross.out), Named("cross.norm.weight", layer.cross.norm.weight),
         Named("cross.norm.bias", layer.cross.norm.bias)});
    add_feed_forward(layer.feed_forward);
  }
  return named;
}

absl::Status CheckNumLayers(const char* name, size_t expected, size_t got) {
  if (got == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have num_layers: expected ", expected, ", got ", got));
}

// Names of what is tied to the embedding.
bool IsTied(const std::string& name) {
  for (const char* const tied :
       {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
        "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
    if (name == tied) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<BartShare> BartShareOf(const BartConfig& config, const Ranks& ranks) {
  REPRISE_RETURN_IF_ERROR(CheckDivides("encoder.num_heads", config.encoder.num_heads, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("decoder.num_heads", config.decoder.num_heads, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("encoder.ffn_dim", config.encoder.ffn_dim, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("decoder.ffn_dim", config.decoder.ffn_dim, ranks));
  REPRISE_RETURN_IF_ERROR(CheckDivides("vocab_size", config.vocab_size, ranks));
  const auto share_of = [&](const BartStackConfig& stack) {
    return BartStackShare{.heads = ShareOf(stack.num_heads, ranks),
                          .inner = AlignedShareOf(stack.ffn_dim, ranks)};
  };
  return BartShare{.encoder = share_of(config.encoder), .decoder = share_of(config.decoder)};
}

std::vector<ExpectedTensor> BartTensors(const BartConfig& config) {
  absl::StatusOr<std::vector<ExpectedTensor>> tensors = ListTensors(ReaderOf(config));
  CHECK(tensors.ok()) << tensors.status();
  return *std::move(tensors);
}

absl::StatusOr<BartWeights> LoadBartWeights(const std::string& folder, const BartConfig& config,
                                            const LoadWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(folder));
  BartNames names;
  if (checkpoint.tensors().contains("shared.weight")) {
    names = {.prefix = "", .has_logits_bias = checkpoint.tensors().contains("final_logits_bias")};
  }
  return LoadWeights(folder, options, IsTied, ReaderOf(config, names));
}

absl::Status CheckBartWeights(const BartConfig& config, const BartWeights& weights,
                              const Ranks& ranks) {
  REPRISE_ASSIGN_OR_RETURN(const BartWeights shapes, ShapesOf(ReaderOf(config), ranks));
  REPRISE_RETURN_IF_ERROR(CheckNumLayers("encoder", shapes.encoder.size(), weights.encoder.size()));
  REPRISE_RETURN_IF_ERROR(CheckNumLayers("decoder", shapes.decoder.size(), weights.decoder.size()));
  REPRISE_RETURN_IF_ERROR(CheckWeights(NamedWeights(shapes), NamedWeights(weights)));
  return CheckDType("embedding", weights.embedding, {ToScalarType(weights.dtype)});
}

}  // namespace reprise
