// Which tensors a Llama checkpoint must hold: names and shapes, as Hugging Face has them.
//
//   REPRISE_RETURN_IF_ERROR(CheckLlamaTensors(config, checkpoint.tensors()));
//   TensorView q = checkpoint.Find(LayerTensorName(3, "self_attn.q_proj.weight"));
//
// Thread safety: pure functions.

#ifndef EXAMPLES_LLAMA_LLAMA_TENSORS_H_
#define EXAMPLES_LLAMA_LLAMA_TENSORS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "examples/llama/llama_config.h"
#include "examples/llama/safetensors.h"

namespace reprise {

inline constexpr char kEmbeddingTensor[] =
    "model.embed_tokens.weight";                                 // [vocab_size, hidden_size]
inline constexpr char kFinalNormTensor[] = "model.norm.weight";  // [hidden_size]
inline constexpr char kLmHeadTensor[] = "lm_head.weight";        // [vocab_size, hidden_size]

// "model.layers.3.self_attn.q_proj.weight".
std::string LayerTensorName(int layer, std::string_view name);

// What the tensors of a layer are called that families name differently; see LayerTensorName().
struct LayerNames {
  std::string mlp = "mlp";  // before ".gate_proj"
  std::string input_norm = "input_layernorm.weight";
  std::string attention_output_norm = {};  // empty: there is none
  std::string mlp_norm = "post_attention_layernorm.weight";
  std::string mlp_output_norm = {};  // empty: there is none
};
LayerNames LayerNamesOf(const LlamaConfig& config);

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// InvalidArgument unless `tensors` are exactly those expected, of floating types, but for names
// that `is_unused` knows. One message names all that are missing, all that are not known, and all
// whose shape or type is wrong (of each the first few, and how many more).
absl::Status CheckTensors(const std::vector<ExpectedTensor>& expected, const TensorViews& tensors,
                          absl::FunctionRef<bool(const std::string& name)> is_unused);

// All tensors that the model needs, layer by layer.
std::vector<ExpectedTensor> LlamaTensors(const LlamaConfig& config);

// CheckTensors() of those. Two kinds may stand there and are not used: the rotary frequencies that
// old files carry, and an output projection beside an embedding that config says is tied to it.
absl::Status CheckLlamaTensors(const LlamaConfig& config, const TensorViews& tensors);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LLAMA_TENSORS_H_
