// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of an MLA decoder on a device, in the forms in which a step multiplies by them.
//
//   REPRISE_ASSIGN_OR_RETURN(MlaConfig config, LoadMlaConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(MlaWeights weights, LoadMlaWeights(folder, config, {}));
//
// Hugging Face's DeepSeek-V2 turns neighbours (2 d, 2 d + 1); rotated rows are reordered here so
// that steps turn halves, which changes no score.
//
// Over several ranks (docs/distributed.md) the weights are one rank's: q, kv_b and o have its
// heads, gate_up and down its inner elements, and the vocabulary is divided. Latents are whole:
// each rank caches them all.
//
// Values: copies share the tensors. Not written after loading.

#ifndef REPRISE_MODELS_DEEPSEEK_MLA_WEIGHTS_H_
#define REPRISE_MODELS_DEEPSEEK_MLA_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/weights.h"
#include "reprise/models/deepseek/mla_config.h"
#include "reprise/models/random_source.h"
#include "reprise/runner/ops/head_linear.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

// H heads, the rank's; a query of qk_nope_head_dim + qk_rope_head_dim elements.
struct MlaLayerWeights {
  at::Tensor input_norm;               // [hidden_size]
  std::optional<Linear> q_a;           // hidden_size -> q_lora_rank, if there is one
  std::optional<at::Tensor> q_a_norm;  // [q_lora_rank]
  Linear q;                            // q_lora_rank or hidden_size -> H * (nope + rope)
  Linear kv_a;                         // hidden_size -> kv_lora_rank + rope
  at::Tensor kv_a_norm;                // [kv_lora_rank]
  Linear kv_b;                         // kv_lora_rank -> H * (nope + v_head_dim)
  // The two halves of kv_b, head by head: `absorb` maps a query's nope part into the latent's
  // space, `expand` maps attention's output from latents to values.
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

// The config of a rank's part of the model: num_heads and intermediate_size are the rank's. Errors:
// InvalidArgument if there are more ranks than heads, inner elements or tokens of the vocabulary.
absl::StatusOr<MlaConfig> MlaConfigOfRank(const MlaConfig& config, const Ranks& ranks);

// All tensors of such a checkpoint.
std::vector<ExpectedTensor> MlaTensors(const MlaConfig& config);

// An output projection that is tied to the embedding is not used. Errors: those of LoadWeights().
absl::StatusOr<MlaWeights> LoadMlaWeights(const std::string& folder, const MlaConfig& config,
                                          const LoadWeightsOptions& options);

// Weights for tests: RandomSpread::kLively. Errors: ResourceExhausted if the device's memory does
// not suffice.
absl::StatusOr<MlaWeights> MakeRandomMlaWeights(const MlaConfig& config,
                                                const RandomWeightsOptions& options);

// Errors: InvalidArgument, naming the weight, its expected and its actual shape.
absl::Status CheckMlaWeights(const MlaConfig& config, const MlaWeights& weights,
                             const Ranks& ranks = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_DEEPSEEK_MLA_WEIGHTS_H_
