// The weights of an MLA decoder on a device, in the forms in which a step multiplies by them.
//
//   REPRISE_ASSIGN_OR_RETURN(MlaConfig config, LoadMlaConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(MlaWeights weights, LoadMlaWeights(folder, config, {}));
//
// Hugging Face's DeepSeek-V2 turns neighbours (2 d, 2 d + 1); rows of what is rotated are reordered
// here so that steps turn halves, which changes no score.
//
// Values: copies share the tensors. Not written after loading.

#ifndef EXAMPLES_MLA_MLA_WEIGHTS_H_
#define EXAMPLES_MLA_MLA_WEIGHTS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/llama_tensors.h"
#include "examples/mla/mla_config.h"
#include "runner/ops/head_linear.h"
#include "runner/ops/linear.h"

namespace reprise {

// H heads; a query of qk_nope_head_dim + qk_rope_head_dim elements.
struct MlaLayerWeights {
  at::Tensor input_norm;               // [hidden_size]
  std::optional<Linear> q_a;           // hidden_size -> q_lora_rank, if there is one
  std::optional<at::Tensor> q_a_norm;  // [q_lora_rank]
  Linear q;                            // q_lora_rank or hidden_size -> H * (nope + rope)
  Linear kv_a;                         // hidden_size -> kv_lora_rank + rope
  at::Tensor kv_a_norm;                // [kv_lora_rank]
  Linear kv_b;                         // kv_lora_rank -> H * (nope + v_head_dim)
  // The two halves of kv_b, head by head: a query's nope part into the latent's space, and what
  // attention makes of latents into values.
  HeadLinear absorb;    // nope -> kv_lora_rank
  HeadLinear expand;    // kv_lora_rank -> v_head_dim; kv_b's memory
  Linear o;             // H * v_head_dim -> hidden_size
  at::Tensor mlp_norm;  // [hidden_size]
  Linear gate_up;       // hidden_size -> 2 * intermediate_size, gate first
  Linear down;          // intermediate_size -> hidden_size
};

struct MlaWeights {
  at::Tensor embedding;  // [vocab_size, hidden_size]
  std::vector<MlaLayerWeights> layers;
  at::Tensor final_norm;  // [hidden_size]
  Linear lm_head;
  DType dtype = DType::kFloat32;
};

// What the two halves of kv_b are made of. MakeAbsorb() allocates; FillAbsorb() copies, once kv_b
// has its values. REQUIRES: kv_b is of the config's shape. Errors: ResourceExhausted.
absl::StatusOr<HeadLinear> MakeAbsorb(const MlaConfig& config, const Linear& kv_b);
absl::Status FillAbsorb(const MlaConfig& config, const Linear& kv_b, const HeadLinear& absorb);
absl::StatusOr<HeadLinear> MakeExpand(const MlaConfig& config, const Linear& kv_b);

struct LoadMlaWeightsOptions {
  c10::Device device = c10::kCPU;
  // Nothing: that of the embedding in the checkpoint; float64 becomes float32.
  std::optional<DType> dtype = {};
  // Called now and then while files are read, for a display of progress.
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress = {};
};

// All tensors of such a checkpoint.
std::vector<ExpectedTensor> MlaTensors(const MlaConfig& config);

// Reads <folder>'s safetensors as LoadLlamaWeights() does. An output projection beside an embedding
// that it is tied to is not used. Errors: those of Checkpoint::Open(), and of CheckTensors(),
// naming the folder; InvalidArgument for a dtype that is not float32, float16 or bfloat16;
// ResourceExhausted if memory does not suffice.
absl::StatusOr<MlaWeights> LoadMlaWeights(const std::string& folder, const MlaConfig& config,
                                          const LoadMlaWeightsOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_MLA_MLA_WEIGHTS_H_
