#include "examples/mla/mla_weights.h"

#include <ATen/ops/empty.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/checkpoint_reader.h"
#include "examples/llama/linear_reader.h"

namespace reprise {
namespace {

// [num_heads, nope + v, kv_lora_rank]
at::Tensor HeadsOf(const MlaConfig& config, const Linear& kv_b) {
  return kv_b.weight().unflatten(0,
                                 {config.num_heads, config.qk_nope_head_dim + config.v_head_dim});
}

// Asks a reader for the tensors of one layer.
class LayerReader {
 public:
  LayerReader(CheckpointReader& reader, const MlaConfig& config, int layer)
      : reader_(reader), config_(config), layer_(layer) {}

  absl::StatusOr<MlaLayerWeights> Read() {
    const bool has_bias = config_.attention_bias;
    const bool has_rank = config_.q_lora_rank.has_value();
    REPRISE_ASSIGN_OR_RETURN(at::Tensor input_norm, Tensor("input_layernorm.weight"));
    std::optional<Linear> q_a;
    std::optional<at::Tensor> q_a_norm;
    if (has_rank) {
      REPRISE_ASSIGN_OR_RETURN(q_a, Projection({{"self_attn.q_a_proj"}}, has_bias));
      REPRISE_ASSIGN_OR_RETURN(q_a_norm, Tensor("self_attn.q_a_layernorm.weight"));
    }
    REPRISE_ASSIGN_OR_RETURN(
        Linear q, Projection({{.name = has_rank ? "self_attn.q_b_proj" : "self_attn.q_proj",
                               .unzipped_head = config_.qk_head_dim(),
                               .kept_rows = config_.qk_nope_head_dim}},
                             false));
    REPRISE_ASSIGN_OR_RETURN(Linear kv_a, Projection({{.name = "self_attn.kv_a_proj_with_mqa",
                                                       .unzipped_head = config_.latent_dim(),
                                                       .kept_rows = config_.kv_lora_rank}},
                                                     has_bias));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor kv_a_norm, Tensor("self_attn.kv_a_layernorm.weight"));
    REPRISE_ASSIGN_OR_RETURN(Linear kv_b, Projection({{"self_attn.kv_b_proj"}}, false));
    REPRISE_ASSIGN_OR_RETURN(HeadLinear absorb, MakeAbsorb(config_, kv_b));
    REPRISE_ASSIGN_OR_RETURN(HeadLinear expand, MakeExpand(config_, kv_b));
    REPRISE_ASSIGN_OR_RETURN(Linear o, Projection({{"self_attn.o_proj"}}, has_bias));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor mlp_norm, Tensor("post_attention_layernorm.weight"));
    REPRISE_ASSIGN_OR_RETURN(Linear gate_up,
                             Projection({{"mlp.gate_proj"}, {"mlp.up_proj"}}, config_.mlp_bias));
    REPRISE_ASSIGN_OR_RETURN(Linear down, Projection({{"mlp.down_proj"}}, config_.mlp_bias));
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

 private:
  absl::StatusOr<at::Tensor> Tensor(const std::string& name) {
    return reader_.Add({{LayerTensorName(layer_, name)}});
  }

  absl::StatusOr<Linear> Projection(const std::vector<TensorPart>& parts, bool biased) {
    return AddLinear(reader_, LayerTensorName(layer_, ""), parts, BiasIf(biased));
  }

  CheckpointReader& reader_;
  const MlaConfig& config_;
  const int layer_;
};

absl::StatusOr<MlaWeights> ReadAll(CheckpointReader& reader, const MlaConfig& config, DType dtype,
                                   const LoadMlaWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, reader.Add({{kEmbeddingTensor}}));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor final_norm, reader.Add({{kFinalNormTensor}}));
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(head, reader.Add({{kLmHeadTensor}}));
  }
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  MlaWeights weights = {.embedding = std::move(embedding),
                        .layers = {},
                        .final_norm = std::move(final_norm),
                        .lm_head = std::move(lm_head),
                        .dtype = dtype};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(MlaLayerWeights read, LayerReader(reader, config, layer).Read());
    weights.layers.push_back(std::move(read));
  }
  REPRISE_RETURN_IF_ERROR(reader.Run({.on_progress = options.on_progress}));
  for (const MlaLayerWeights& layer : weights.layers) {
    REPRISE_RETURN_IF_ERROR(FillAbsorb(config, layer.kv_b, layer.absorb));
  }
  return weights;
}

}  // namespace

absl::StatusOr<HeadLinear> MakeAbsorb(const MlaConfig& config, const Linear& kv_b) {
  return CatchTorchOr([&] {
    return HeadLinear::Create(at::empty(
        {config.num_heads, config.kv_lora_rank, config.qk_nope_head_dim}, kv_b.weight().options()));
  });
}

absl::Status FillAbsorb(const MlaConfig& config, const Linear& kv_b, const HeadLinear& absorb) {
  return CatchTorch([&] {
    // The other way round, for products have the inner dimension last.
    at::Tensor weight = absorb.weight();
    weight.copy_(HeadsOf(config, kv_b).narrow(1, 0, config.qk_nope_head_dim).transpose(1, 2));
    return absl::OkStatus();
  });
}

absl::StatusOr<HeadLinear> MakeExpand(const MlaConfig& config, const Linear& kv_b) {
  return HeadLinear::Create(
      HeadsOf(config, kv_b).narrow(1, config.qk_nope_head_dim, config.v_head_dim));
}

std::vector<ExpectedTensor> MlaTensors(const MlaConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t heads = config.num_heads;
  std::vector<ExpectedTensor> tensors = {{kEmbeddingTensor, {config.vocab_size, hidden}}};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      tensors.push_back({LayerTensorName(layer, name), std::move(shape)});
    };
    const auto add_projection = [&](const std::string& name, int64_t out, int64_t in, bool biased) {
      add(name + ".weight", {out, in});
      if (biased) add(name + ".bias", {out});
    };
    add("input_layernorm.weight", {hidden});
    if (config.q_lora_rank.has_value()) {
      add_projection("self_attn.q_a_proj", *config.q_lora_rank, hidden, config.attention_bias);
      add("self_attn.q_a_layernorm.weight", {*config.q_lora_rank});
      add_projection("self_attn.q_b_proj", heads * config.qk_head_dim(), *config.q_lora_rank,
                     false);
    } else {
      add_projection("self_attn.q_proj", heads * config.qk_head_dim(), hidden, false);
    }
    add_projection("self_attn.kv_a_proj_with_mqa", config.latent_dim(), hidden,
                   config.attention_bias);
    add("self_attn.kv_a_layernorm.weight", {config.kv_lora_rank});
    add_projection("self_attn.kv_b_proj", heads * (config.qk_nope_head_dim + config.v_head_dim),
                   config.kv_lora_rank, false);
    add_projection("self_attn.o_proj", hidden, heads * config.v_head_dim, config.attention_bias);
    add("post_attention_layernorm.weight", {hidden});
    add_projection("mlp.gate_proj", inner, hidden, config.mlp_bias);
    add_projection("mlp.up_proj", inner, hidden, config.mlp_bias);
    add_projection("mlp.down_proj", hidden, inner, config.mlp_bias);
  }
  tensors.push_back({kFinalNormTensor, {hidden}});
  if (!config.tie_word_embeddings) tensors.push_back({kLmHeadTensor, {config.vocab_size, hidden}});
  return tensors;
}

absl::StatusOr<MlaWeights> LoadMlaWeights(const std::string& folder, const MlaConfig& config,
                                          const LoadMlaWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::Open(folder));
  const absl::Status fits =
      CheckTensors(MlaTensors(config), opened.tensors(), [&](const std::string& name) {
        return absl::EndsWith(name, ".rotary_emb.inv_freq") ||
               (config.tie_word_embeddings && name == kLmHeadTensor);
      });
  if (!fits.ok()) return absl::Status(fits.code(), absl::StrCat(folder, ": ", fits.message()));
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  REPRISE_ASSIGN_OR_RETURN(const DType dtype,
                           ChooseDType(*checkpoint, kEmbeddingTensor, options.dtype));
  return CatchTorchOr([&]() -> absl::StatusOr<MlaWeights> {
    CheckpointReader reader(checkpoint, options.device, dtype);
    return ReadAll(reader, config, dtype, options);
  });
}

}  // namespace reprise
