// Unstable: any version may change this header (docs/embedding.md).
//
// The weights of a BART model on a device.
//
//   REPRISE_ASSIGN_OR_RETURN(BartConfig config, LoadBartConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(BartWeights weights, LoadBartWeights(folder, config, {}));
//
// Values: copies share the tensors. Not written after loading.

#ifndef REPRISE_MODELS_BART_BART_WEIGHTS_H_
#define REPRISE_MODELS_BART_BART_WEIGHTS_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/distributed/ranks.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/weights.h"
#include "reprise/models/bart/bart_config.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {

struct BartNorm {
  at::Tensor weight;  // [d_model]
  at::Tensor bias;    // [d_model]
};

// All products have biases. A norm follows its sublayer. A rank of several has its heads of q, k, v
// and out, its inner elements of up and down, and its rows of the embedding; out and down give
// summands, with the bias of rank 0 alone.
struct BartSelfAttention {
  Linear qkv;  // d_model -> 3 * d_model: q, k, v
  Linear out;  // d_model -> d_model
  BartNorm norm;
};
struct BartCrossAttention {
  Linear q;   // d_model -> d_model, of the decoder's tokens
  Linear kv;  // d_model -> 2 * d_model: k, v of the encoder's output
  Linear out;
  BartNorm norm;
};
struct BartFeedForward {
  Linear up;    // d_model -> ffn_dim
  Linear down;  // ffn_dim -> d_model
  BartNorm norm;
};

// The sublayers of a layer, in the order in which the layer applies them.
struct BartEncoderLayer {
  BartSelfAttention self;
  BartFeedForward feed_forward;
};
// As above, with attention to the encoded source after self-attention.
struct BartDecoderLayer {
  BartSelfAttention self;
  BartCrossAttention cross;
  BartFeedForward feed_forward;
};

// The weights before the layers of a stack.
struct BartInput {
  at::Tensor positions;  // [max_seq_len, d_model]
  BartNorm norm;
};

struct BartWeights {
  at::Tensor embedding;  // [vocab_size, d_model], of both stacks
  BartInput encoder_input;
  std::vector<BartEncoderLayer> encoder;
  BartInput decoder_input;
  std::vector<BartDecoderLayer> decoder;
  Linear lm_head;          // d_model -> vocab_size, without a bias
  at::Tensor logits_bias;  // [1, vocab_size]
  DType dtype = DType::kFloat32;
};

// A stack's part on a rank, of nearly equal size.
struct BartStackShare {
  Share heads;
  Share inner;  // elements of the feed-forward
};
struct BartShare {
  BartStackShare encoder;
  BartStackShare decoder;
};

// Errors: InvalidArgument, naming the size, if a rank would have no head or no inner element of a
// stack, or no row of the vocabulary.
absl::StatusOr<BartShare> BartShareOf(const BartConfig& config, const Ranks& ranks);

// All tensors of such a checkpoint.
std::vector<ExpectedTensor> BartTensors(const BartConfig& config);

// Copies of the embedding under the names of tied weights (the stacks' embed_tokens, lm_head) are
// not used. A checkpoint of BartModel has names without "model.", and may lack final_logits_bias,
// which is then 0. Errors: those of LoadWeights().
absl::StatusOr<BartWeights> LoadBartWeights(const std::string& folder, const BartConfig& config,
                                            const LoadWeightsOptions& options);

// InvalidArgument, naming the first weight that is not of the config's shape on the rank.
absl::Status CheckBartWeights(const BartConfig& config, const BartWeights& weights,
                              const Ranks& ranks = {});

}  // namespace reprise

#endif  // REPRISE_MODELS_BART_BART_WEIGHTS_H_
