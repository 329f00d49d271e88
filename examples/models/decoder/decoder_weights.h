// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of a Llama model on a device, in the form in which a step multiplies by them: q, k
// and v in one matrix, gate and up in one matrix.
//
//   REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LoadDecoderConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, LoadDecoderWeights(folder, config, {}));
//
// Over several ranks (docs/distributed.md) the weights are one rank's: of q heads, KV heads and
// inner elements of the feed-forward it has a share, of which DecoderConfigOfRank() gives the
// sizes; o and down have the columns for them. The vocabulary is divided, too. Norms, routers and
// biases of the hidden size are whole.
//
// Values: copies share the tensors. Not written after loading. Thread safety: pure functions.

#ifndef REPRISE_MODELS_DECODER_DECODER_WEIGHTS_H_
#define REPRISE_MODELS_DECODER_DECODER_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/weights.h"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/moe/experts.h"
#include "reprise/models/random_source.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

// Weights that the config does not use are absent.
struct DecoderLayerWeights {
  at::Tensor input_norm;  // [hidden_size]
  // hidden_size -> (num_q_heads + 2 * num_kv_heads) * head_dim. Rows of q and k are in the order of
  // RopePairs::kHalves.
  Linear qkv;
  std::optional<at::Tensor> q_norm = {};  // [head_dim]
  std::optional<at::Tensor> k_norm = {};  // [head_dim]
  std::optional<at::Tensor> sinks = {};   // [num_q_heads]
  StoredKvScales kv_scales = {};          // of an fp8 cache; other caches ignore them
  Linear o;                               // num_q_heads * head_dim -> hidden_size
  std::optional<at::Tensor> attention_output_norm = {};  // [hidden_size]
  at::Tensor mlp_norm;  // [hidden_size], of the feed-forward's input
  // The feed-forward, or its experts.
  std::optional<Linear> gate_up = {};  // hidden_size -> 2 * intermediate_size, gate first
  std::optional<Linear> down = {};     // intermediate_size -> hidden_size
  std::optional<ExpertWeights> experts = {};
  std::optional<at::Tensor> mlp_output_norm = {};  // [hidden_size]
};

struct DecoderWeights {
  at::Tensor embedding;  // [vocab_size, hidden_size]
  std::vector<DecoderLayerWeights> layers;
  at::Tensor final_norm;  // [hidden_size]
  Linear lm_head;         // hidden_size -> vocab_size; the embedding's memory if the two are tied
  DType dtype = DType::kFloat32;
};

// The config of a rank's part of the model: num_q_heads, num_kv_heads, intermediate_size and
// experts.inner_size are the rank's; the rest is the model's. Errors: those of HeadShareOf();
// InvalidArgument if a rank would have no inner element or no token of the vocabulary.
absl::StatusOr<DecoderConfig> DecoderConfigOfRank(const DecoderConfig& config, const Ranks& ranks);

// All tensors that the model needs, named as Hugging Face names them, layer by layer.
std::vector<ExpectedTensor> DecoderTensors(const DecoderConfig& config);

// CheckTensors() of DecoderTensors().
absl::Status CheckDecoderTensors(const DecoderConfig& config, const TensorViews& tensors);

// Errors: those of LoadWeights().
absl::StatusOr<DecoderWeights> LoadDecoderWeights(const std::string& folder,
                                                  const DecoderConfig& config,
                                                  const LoadWeightsOptions& options);

// Weights for tests and measurements. Errors: ResourceExhausted if the device's memory does not
// suffice.
absl::StatusOr<DecoderWeights> MakeRandomWeights(const DecoderConfig& config,
                                                 const RandomWeightsOptions& options);

// InvalidArgument, naming the tensor, unless all weights of the config are present, with its
// shapes on the rank.
absl::Status CheckDecoderWeights(const DecoderConfig& config, const DecoderWeights& weights,
                                 const Ranks& ranks = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_WEIGHTS_H_
