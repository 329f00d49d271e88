#include "examples/llama/llama_weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/llama_tensors.h"
#include "examples/llama/tensor_view.h"

namespace reprise {
namespace {

absl::StatusOr<DType> ChooseDType(const Checkpoint& checkpoint, std::optional<DType> wanted) {
  REPRISE_ASSIGN_OR_RETURN(const TensorView embedding, checkpoint.Find(kEmbeddingTensor));
  const DType stored = *ToDType(embedding.type);  // CheckLlamaTensors() has passed
  const DType dtype = wanted.value_or(stored == DType::kFloat64 ? DType::kFloat32 : stored);
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat16:
    case DType::kBFloat16:
      return dtype;
    default:
      return absl::InvalidArgumentError(absl::StrCat(
          "dtype must be float32, float16 or bfloat16: got ", std::string(DTypeName(dtype))));
  }
}

// Makes tensors of a checkpoint's views. Throws LibTorch's exceptions.
class TensorReader {
 public:
  TensorReader(std::shared_ptr<const Checkpoint> checkpoint, c10::Device device, DType dtype)
      : checkpoint_(std::move(checkpoint)),
        options_(at::TensorOptions(device).dtype(ToScalarType(dtype))) {}

  absl::StatusOr<at::Tensor> Read(const std::string& name) const {
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor stored, Stored(name));
    if (options_.device().is_cpu() && stored.dtype() == options_.dtype()) return stored;
    at::Tensor tensor = at::empty(stored.sizes(), options_);
    tensor.copy_(stored);
    return tensor;
  }

  // The tensors one below the other.
  absl::StatusOr<at::Tensor> ReadFused(absl::Span<const std::string> names) const {
    std::vector<at::Tensor> parts;
    int64_t num_rows = 0;
    for (const std::string& name : names) {
      REPRISE_ASSIGN_OR_RETURN(parts.emplace_back(), Stored(name));
      num_rows += parts.back().size(0);
    }
    std::vector<int64_t> shape = parts.front().sizes().vec();
    shape[0] = num_rows;
    at::Tensor fused = at::empty(shape, options_);
    int64_t row = 0;
    for (const at::Tensor& part : parts) {
      fused.narrow(0, row, part.size(0)).copy_(part);
      row += part.size(0);
    }
    return fused;
  }

 private:
  // The tensor as it lies in the file, which it keeps mapped.
  absl::StatusOr<at::Tensor> Stored(const std::string& name) const {
    REPRISE_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Find(name));
    const auto options = at::TensorOptions().dtype(ToScalarType(*ToDType(view.type)));
    if (!view.IsAligned()) {
      at::Tensor copy = at::empty(view.shape, options);
      std::memcpy(copy.data_ptr(), view.bytes.data(), view.bytes.size());
      return copy;
    }
    // LibTorch has no tensors of constant memory; nobody writes weights.
    void* const data = const_cast<char*>(view.bytes.data());
    return at::from_blob(
        data, view.shape, [kept = checkpoint_](void*) {}, options);
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  at::TensorOptions options_;
};

// A projection of one or several matrices side by side: their names without ".weight" and ".bias".
absl::StatusOr<Linear> ReadLinear(const TensorReader& reader, int layer,
                                  std::initializer_list<const char*> names, bool biased) {
  const auto read = [&](const char* suffix) -> absl::StatusOr<at::Tensor> {
    std::vector<std::string> full_names;
    for (const char* const name : names) {
      full_names.push_back(LayerTensorName(layer, absl::StrCat(name, suffix)));
    }
    if (full_names.size() == 1) return reader.Read(full_names.front());
    return reader.ReadFused(full_names);
  };
  REPRISE_ASSIGN_OR_RETURN(at::Tensor weight, read(".weight"));
  std::optional<at::Tensor> bias;
  if (biased) {
    REPRISE_ASSIGN_OR_RETURN(bias, read(".bias"));
  }
  return Linear::Create(std::move(weight), std::move(bias));
}

absl::StatusOr<LlamaLayerWeights> ReadLayer(const TensorReader& reader, const LlamaConfig& config,
                                            int layer) {
  REPRISE_ASSIGN_OR_RETURN(at::Tensor input_norm,
                           reader.Read(LayerTensorName(layer, "input_layernorm.weight")));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor attention_norm,
                           reader.Read(LayerTensorName(layer, "post_attention_layernorm.weight")));
  REPRISE_ASSIGN_OR_RETURN(
      Linear qkv,
      ReadLinear(reader, layer, {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                 config.attention_bias));
  REPRISE_ASSIGN_OR_RETURN(Linear o,
                           ReadLinear(reader, layer, {"self_attn.o_proj"}, config.attention_bias));
  REPRISE_ASSIGN_OR_RETURN(
      Linear gate_up, ReadLinear(reader, layer, {"mlp.gate_proj", "mlp.up_proj"}, config.mlp_bias));
  REPRISE_ASSIGN_OR_RETURN(Linear down,
                           ReadLinear(reader, layer, {"mlp.down_proj"}, config.mlp_bias));
  return LlamaLayerWeights{.input_norm = std::move(input_norm),
                           .qkv = std::move(qkv),
                           .o = std::move(o),
                           .attention_norm = std::move(attention_norm),
                           .gate_up = std::move(gate_up),
                           .down = std::move(down)};
}

absl::StatusOr<LlamaWeights> ReadAll(const TensorReader& reader, const LlamaConfig& config,
                                     DType dtype, const LoadLlamaWeightsOptions& options) {
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, reader.Read(kEmbeddingTensor));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor final_norm, reader.Read(kFinalNormTensor));
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) {
    REPRISE_ASSIGN_OR_RETURN(head, reader.Read(kLmHeadTensor));
  }
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  LlamaWeights weights = {.embedding = std::move(embedding),
                          .layers = {},
                          .final_norm = std::move(final_norm),
                          .lm_head = std::move(lm_head),
                          .dtype = dtype};
  weights.layers.reserve(config.num_layers);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(LlamaLayerWeights read, ReadLayer(reader, config, layer));
    weights.layers.push_back(std::move(read));
    if (options.on_layer) options.on_layer(layer + 1, config.num_layers);
  }
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
  REPRISE_ASSIGN_OR_RETURN(const DType dtype, ChooseDType(*checkpoint, options.dtype));
  return CatchTorchOr([&]() -> absl::StatusOr<LlamaWeights> {
    return ReadAll(TensorReader(checkpoint, options.device, dtype), config, dtype, options);
  });
}

}  // namespace reprise
