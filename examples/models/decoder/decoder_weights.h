// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of a decoder on a device, in the form in which a step multiplies by them: q, k and v
// in one matrix, gate and up in one matrix, the halves of MLA's up-projection head by head.
//
//   REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LoadDecoderConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights, LoadDecoderWeights(folder, config, {}));
//
// Over several ranks (docs/distributed.md) the weights are one rank's: it has a share of the q
// heads, the KV heads and the inner elements of feed-forwards, of which DecoderConfigOfRank() gives
// the sizes; o and down have the columns for them. The vocabulary is divided, too. Norms, routers,
// projections to latents and biases of the hidden size are whole.
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
#include "reprise/runner/ops/head_linear.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

// Multi-head latent attention: H heads, the rank's. Rows that rotate are in the order of
// RopePairs::kHalves, which changes no score.
struct LatentWeights {
  std::optional<Linear> q_a = {};           // hidden_size -> q_rank, if there is one
  std::optional<at::Tensor> q_a_norm = {};  // [q_rank]
  Linear q;                                 // q_rank or hidden_size -> H * qk_dim
  Linear kv_a;                              // hidden_size -> latent_dim
  at::Tensor kv_a_norm;                     // [kv_rank]
  Linear kv_b;                              // kv_rank -> H * (nope_dim + v_dim)
  // The two halves of kv_b, head by head: `absorb` takes the part of a query that does not rotate
  // into the space of latents, `expand` takes attention's output from latents to values.
  HeadLinear absorb;  // nope_dim -> kv_rank
  HeadLinear expand;  // kv_rank -> v_dim; kv_b's memory
};

// Weights that the config does not use are absent.
struct DecoderLayerWeights {
  at::Tensor input_norm;  // [hidden_size]
  // Grouped-query attention: hidden_size -> (num_q_heads + 2 * num_kv_heads) * head_dim. Rows of q
  // and k are in the order of RopePairs::kHalves.
  std::optional<Linear> qkv = {};
  std::optional<at::Tensor> q_norm = {};  // [head_dim], or of all heads (QkNorm::kAllHeads)
  std::optional<at::Tensor> k_norm = {};  // likewise
  std::optional<at::Tensor> sinks = {};   // [num_q_heads]
  StoredKvScales kv_scales = {};          // of an fp8 cache; other caches ignore them
  std::optional<LatentWeights> latent = {};
  Linear o;  // num_q_heads * head_dim (MLA: * v_dim) -> hidden_size
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

// The config of a rank's part of the model: num_q_heads, num_kv_heads, intermediate_size and the
// sizes of experts are the rank's; the rest is the model's. Errors: those of HeadShareOf();
// InvalidArgument if a rank would have no inner element or no token of the vocabulary, or if
// several ranks would have to normalise all heads together (QkNorm::kAllHeads).
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
                                                 const RandomWeightsOptions& options,
                                                 RandomSpread spread = RandomSpread::kUntrained);

// InvalidArgument, naming the tensor, unless all weights of the config are present, with its
// shapes on the rank.
absl::Status CheckDecoderWeights(const DecoderConfig& config, const DecoderWeights& weights,
                                 const Ranks& ranks = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_WEIGHTS_H_
