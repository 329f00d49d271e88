// The weights of a BART model on a device.
//
//   REPRISE_ASSIGN_OR_RETURN(BartConfig config, LoadBartConfig(folder));
//   REPRISE_ASSIGN_OR_RETURN(BartWeights weights, LoadBartWeights(folder, config, {}));
//
// Values: copies share the tensors. Not written after loading.

#ifndef EXAMPLES_SEQ2SEQ_BART_WEIGHTS_H_
#define EXAMPLES_SEQ2SEQ_BART_WEIGHTS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/llama_tensors.h"
#include "examples/seq2seq/bart_config.h"
#include "runner/ops/linear.h"

namespace reprise {

struct BartNorm {
  at::Tensor weight;  // [d_model]
  at::Tensor bias;    // [d_model]
};

// All products have biases. A norm follows its sublayer.
struct BartSelfAttention {
  Linear qkv;  // d_model -> 3 * d_model: q, k, v
  Linear out;  // d_model -> d_model
  BartNorm norm;
};
struct BartCrossAttention {
  Linear q;   // d_model -> d_model, of the decoder's tokens
  Linear kv;  // d_model -> 2 * d_model: k, v of what the encoder makes of its input
  Linear out;
  BartNorm norm;
};
struct BartFeedForward {
  Linear up;    // d_model -> ffn_dim
  Linear down;  // ffn_dim -> d_model
  BartNorm norm;
};

struct BartEncoderLayer {
  BartSelfAttention self;
  BartFeedForward feed_forward;
};
struct BartDecoderLayer {
  BartSelfAttention self;
  BartCrossAttention cross;
  BartFeedForward feed_forward;
};

// What comes before the layers of a stack.
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

struct LoadBartWeightsOptions {
  c10::Device device = c10::kCPU;
  // Nothing: that of the embedding in the checkpoint; float64 becomes float32.
  std::optional<DType> dtype = {};
  // Called now and then while files are read, for a display of progress.
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress = {};
};

// All tensors of such a checkpoint.
std::vector<ExpectedTensor> BartTensors(const BartConfig& config);

// Reads <folder>'s safetensors as LoadLlamaWeights() does. Copies of the embedding under the names
// of what is tied to it (the stacks' embed_tokens, lm_head) are not used.
// Errors: those of Checkpoint::Open(), and of CheckTensors(), naming the folder; InvalidArgument
// for a dtype that is not float32, float16 or bfloat16; ResourceExhausted if memory does not
// suffice.
absl::StatusOr<BartWeights> LoadBartWeights(const std::string& folder, const BartConfig& config,
                                            const LoadBartWeightsOptions& options);

// InvalidArgument, naming the first weight that is not of the config's shape.
absl::Status CheckBartWeights(const BartConfig& config, const BartWeights& weights);

}  // namespace reprise

#endif  // EXAMPLES_SEQ2SEQ_BART_WEIGHTS_H_
