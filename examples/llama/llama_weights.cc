#include "examples/llama/llama_weights.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/torch_status.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/checkpoint_reader.h"
#include "examples/llama/linear_reader.h"
#include "examples/llama/llama_tensors.h"

namespace reprise {
namespace {

// Asks a reader for the tensors of one layer.
class LayerReader {
 public:
  LayerReader(CheckpointReader& reader, const LlamaConfig& config, int layer)
      : reader_(reader), config_(config), layer_(layer) {
    if (config.rope_pairs == RopePairs::kNeighbours && config.AttentionOf(layer).rotates) {
      unzipped_head_ = config.head_dim;
    }
  }

  absl::StatusOr<LlamaLayerWeights> Read() {
    const LayerNames names = LayerNamesOf(config_);
    REPRISE_ASSIGN_OR_RETURN(at::Tensor input_norm, Tensor(names.input_norm));
    REPRISE_ASSIGN_OR_RETURN(Linear qkv, Projection({{"self_attn.q_proj", unzipped_head_},
                                                     {"self_attn.k_proj", unzipped_head_},
                                                     {"self_attn.v_proj"}},
                                                    config_.qkv_bias));
    const bool norms_heads = config_.qk_norm == QkNorm::kWeighted;
    REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> q_norm,
                             Optional(norms_heads ? "self_attn.q_norm.weight" : ""));
    REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> k_norm,
                             Optional(norms_heads ? "self_attn.k_norm.weight" : ""));
    REPRISE_ASSIGN_OR_RETURN(Linear o, Projection({{"self_attn.o_proj"}}, config_.o_bias));
    REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> attention_output_norm,
                             Optional(names.attention_output_norm));
    REPRISE_ASSIGN_OR_RETURN(at::Tensor mlp_norm, Tensor(names.mlp_norm));
    REPRISE_ASSIGN_OR_RETURN(
        Linear gate_up,
        Projection({{names.mlp + ".gate_proj"}, {names.mlp + ".up_proj"}}, config_.mlp_bias));
    REPRISE_ASSIGN_OR_RETURN(Linear down,
                             Projection({{names.mlp + ".down_proj"}}, config_.mlp_bias));
    REPRISE_ASSIGN_OR_RETURN(std::optional<at::Tensor> mlp_output_norm,
                             Optional(names.mlp_output_norm));
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

 private:
  absl::StatusOr<at::Tensor> Tensor(const std::string& name) {
    return reader_.Add({{LayerTensorName(layer_, name)}});
  }

  // Nothing if there is no name.
  absl::StatusOr<std::optional<at::Tensor>> Optional(const std::string& name) {
    if (name.empty()) return std::optional<at::Tensor>();
    REPRISE_ASSIGN_OR_RETURN(at::Tensor tensor, Tensor(name));
    return std::optional(std::move(tensor));
  }

  // One or several matrices side by side: their names without ".weight" and ".bias".
  absl::StatusOr<Linear> Projection(const std::vector<TensorPart>& parts, bool biased) {
    return AddLinear(reader_, LayerTensorName(layer_, ""), parts, BiasIf(biased));
  }

  CheckpointReader& reader_;
  const LlamaConfig& config_;
  const int layer_;
  std::optional<int> unzipped_head_;
};

absl::StatusOr<LlamaWeights> ReadAll(CheckpointReader& reader, const LlamaConfig& config,
                                     DType dtype, const LoadLlamaWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, reader.Add({{kEmbeddingTensor}}));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor final_norm, reader.Add({{kFinalNormTensor}}));
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(head, reader.Add({{kLmHeadTensor}}));
  }
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  LlamaWeights weights = {.embedding = std::move(embedding),
                          .layers = {},
                          .final_norm = std::move(final_norm),
                          .lm_head = std::move(lm_head),
                          .dtype = dtype};
  weights.layers.reserve(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(LlamaLayerWeights read, LayerReader(reader, config, layer).Read());
    weights.layers.push_back(std::move(read));
  }
  REPRISE_RETURN_IF_ERROR(reader.Run({.on_progress = options.on_progress}));
  return weights;
}

}  // namespace

absl::StatusOr<LlamaWeights> LoadLlamaWeights(const std::string& folder, const LlamaConfig& config,
                                              const LoadLlamaWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(Checkpoint opened, Checkpoint::Open(folder));
  if (const absl::Status status = CheckLlamaTensors(config, opened.tensors()); !status.ok()) {
    return absl::Status(status.code(), absl::StrCat(folder, ": ", status.message()));
  }
  const auto checkpoint = std::make_shared<const Checkpoint>(std::move(opened));
  REPRISE_ASSIGN_OR_RETURN(const DType dtype,
                           ChooseDType(*checkpoint, kEmbeddingTensor, options.dtype));
  return CatchTorchOr([&]() -> absl::StatusOr<LlamaWeights> {
    CheckpointReader reader(checkpoint, options.device, dtype);
    return ReadAll(reader, config, dtype, options);
  });
}

}  // namespace reprise
