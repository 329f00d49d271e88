// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of a GPT-2 or BLOOM model on a device.
//
//   REPRISE_ASSIGN_OR_RETURN(GptConfig config, LoadGptConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(GptWeights weights, LoadGptWeights(folder, config, {}));
//
// Values: copies share the tensors. Not written after loading. Thread safety: pure functions.

#ifndef REPRISE_MODELS_GPT_GPT_WEIGHTS_H_
#define REPRISE_MODELS_GPT_GPT_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/weights.h"
#include "reprise/models/gpt/gpt_config.h"
#include "reprise/models/random_source.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

struct GptNorm {
  at::Tensor weight;  // [hidden_size]
  at::Tensor bias;    // [hidden_size]
};

// All products have biases. A rank of several has its heads of qkv and out, its inner elements of
// up and down, and its rows of embedding and lm_head; out and down give summands, with the bias of
// rank 0 alone.
struct GptLayerWeights {
  GptNorm attention_norm;
  // hidden_size -> 3 * hidden_size. GPT-2: q, k and v, each of all heads. BLOOM: head by head, its
  // q, k and v.
  Linear qkv;
  Linear out;  // hidden_size -> hidden_size
  GptNorm mlp_norm;
  Linear up;    // hidden_size -> inner_size
  Linear down;  // inner_size -> hidden_size
};

struct GptWeights {
  at::Tensor embedding;                   // [vocab_size, hidden_size]
  std::optional<at::Tensor> positions;    // [max_seq_len, hidden_size]: GPT-2
  std::optional<GptNorm> embedding_norm;  // BLOOM
  std::vector<GptLayerWeights> layers;
  GptNorm final_norm;
  Linear lm_head;  // without a bias; the embedding's memory if the two are tied
  DType dtype = DType::kFloat32;
};

// All tensors of such a checkpoint, named as transformers writes them. Older files lack the prefix
// "transformer.".
std::vector<ExpectedTensor> GptTensors(const GptConfig& config);

// Of either form. Causal masks in old files, and an output projection tied to the embedding, are
// not used. Errors: those of LoadWeights().
absl::StatusOr<GptWeights> LoadGptWeights(const std::string& folder, const GptConfig& config,
                                          const LoadWeightsOptions& options);

// Weights for tests: RandomSpread::kLively. Errors: ResourceExhausted if the device's memory does
// not suffice.
absl::StatusOr<GptWeights> MakeRandomGptWeights(const GptConfig& config,
                                                const RandomWeightsOptions& options);

// The model's part on a rank, of equal or nearly equal size.
struct GptShare {
  Share heads;
  Share inner;  // elements of the feed-forward
};

// Errors: InvalidArgument, naming the size, if a rank would have no head, no inner element or no
// row of the vocabulary.
absl::StatusOr<GptShare> GptShareOf(const GptConfig& config, const Ranks& ranks);

// InvalidArgument, naming the first weight that is not of the config's shape on the rank.
absl::Status CheckGptWeights(const GptConfig& config, const GptWeights& weights,
                             const Ranks& ranks = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_GPT_GPT_WEIGHTS_H_
