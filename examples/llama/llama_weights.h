// The weights of a Llama model on a device, in the form in which a step multiplies by them: q, k
// and v in one matrix, gate and up in one matrix.
//
//   REPRISE_ASSIGN_OR_RETURN(LlamaConfig config, LoadLlamaConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(LlamaWeights weights, LoadLlamaWeights(folder, config, {}));
//
// Values: copies share the tensors. Not written after loading.

#ifndef EXAMPLES_LLAMA_LLAMA_WEIGHTS_H_
#define EXAMPLES_LLAMA_LLAMA_WEIGHTS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/llama_config.h"
#include "runner/ops/linear.h"

namespace reprise {

// What a config does without is absent.
struct LlamaLayerWeights {
  at::Tensor input_norm;  // [hidden_size]
  // hidden_size -> (num_q_heads + 2 * num_kv_heads) * head_dim. Rows of q and k are in the order of
  // RopePairs::kHalves.
  Linear qkv;
  std::optional<at::Tensor> q_norm = {};                 // [head_dim]
  std::optional<at::Tensor> k_norm = {};                 // [head_dim]
  Linear o;                                              // num_q_heads * head_dim -> hidden_size
  std::optional<at::Tensor> attention_output_norm = {};  // [hidden_size]
  at::Tensor mlp_norm;                                   // [hidden_size], of the gate's input
  Linear gate_up;  // hidden_size -> 2 * intermediate_size, gate first
  Linear down;     // intermediate_size -> hidden_size
  std::optional<at::Tensor> mlp_output_norm = {};  // [hidden_size]
};

struct LlamaWeights {
  at::Tensor embedding;  // [vocab_size, hidden_size]
  std::vector<LlamaLayerWeights> layers;
  at::Tensor final_norm;  // [hidden_size]
  Linear lm_head;         // hidden_size -> vocab_size; the embedding's memory if the two are tied
  DType dtype = DType::kFloat32;
};

struct LoadLlamaWeightsOptions {
  c10::Device device = c10::kCPU;
  // Nothing: that of the embedding in the checkpoint; float64 becomes float32.
  std::optional<DType> dtype = {};
  // Called now and then while files are read, for a display of progress.
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress = {};
};

// Reads <folder>'s safetensors, with several threads (tensor_copies.h). Each value is converted on
// its way, once, and goes straight to where it stays. On the CPU, what has the wanted dtype already
// and is not fused stays in the mapped file, which then lives as long as the tensors; so no weight
// is in memory twice.
// Errors: those of Checkpoint::Open() and CheckLlamaTensors(), naming the folder; InvalidArgument
// for a dtype that is not float32, float16 or bfloat16; ResourceExhausted if the device's memory
// does not suffice.
absl::StatusOr<LlamaWeights> LoadLlamaWeights(const std::string& folder, const LlamaConfig& config,
                                              const LoadLlamaWeightsOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LLAMA_WEIGHTS_H_
