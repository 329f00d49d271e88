#include "examples/llama/random_weights.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"
#include "runner/ops/linear.h"

namespace reprise {
namespace {

constexpr double kDeviation = 0.02;  // Hugging Face's initializer_range

class RandomTensors {
 public:
  explicit RandomTensors(const RandomWeightsOptions& options)
      : options_(at::TensorOptions(options.device).dtype(ToScalarType(options.dtype))),
        generator_(at::globalContext().defaultGenerator(options.device).clone()) {
    generator_.set_current_seed(options.seed);
  }

  at::Tensor Normal(at::IntArrayRef shape) {
    return at::empty(shape, options_).normal_(0, kDeviation, generator_);
  }

  at::Tensor Ones(int64_t size) { return at::ones({size}, options_); }

  absl::StatusOr<Linear> Projection(int64_t in, int64_t out, bool biased) {
    at::Tensor weight = Normal({out, in});
    std::optional<at::Tensor> bias;
    if (biased) bias = Normal({out});
    return Linear::Create(std::move(weight), std::move(bias));
  }

 private:
  at::TensorOptions options_;
  at::Generator generator_;
};

absl::StatusOr<LlamaWeights> MakeAll(const LlamaConfig& config,
                                     const RandomWeightsOptions& options) {
  RandomTensors random(options);
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const auto norm = [&](int64_t size) {
    const at::Tensor ones = random.Ones(size);
    return config.norm_weight == NormWeight::kOnePlus ? ones - 1 : ones;
  };
  at::Tensor embedding = random.Normal({config.vocab_size, hidden});
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) head = random.Normal({config.vocab_size, hidden});
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  LlamaWeights weights = {.embedding = std::move(embedding),
                          .layers = {},
                          .final_norm = norm(hidden),
                          .lm_head = std::move(lm_head),
                          .dtype = options.dtype};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    REPRISE_ASSIGN_OR_RETURN(Linear qkv,
                             random.Projection(hidden, q_size + 2 * kv_size, config.qkv_bias));
    REPRISE_ASSIGN_OR_RETURN(Linear o, random.Projection(q_size, hidden, config.o_bias));
    REPRISE_ASSIGN_OR_RETURN(Linear gate_up, random.Projection(hidden, 2 * inner, config.mlp_bias));
    REPRISE_ASSIGN_OR_RETURN(Linear down, random.Projection(inner, hidden, config.mlp_bias));
    LlamaLayerWeights layer_weights = {.input_norm = norm(hidden),
                                       .qkv = std::move(qkv),
                                       .o = std::move(o),
                                       .mlp_norm = norm(hidden),
                                       .gate_up = std::move(gate_up),
                                       .down = std::move(down)};
    if (config.qk_norm == QkNorm::kWeighted) {
      layer_weights.q_norm = random.Ones(config.head_dim);
      layer_weights.k_norm = random.Ones(config.head_dim);
    }
    if (config.norm_placement == NormPlacement::kBeforeAndAfter) {
      layer_weights.attention_output_norm = norm(hidden);
      layer_weights.mlp_output_norm = norm(hidden);
    }
    weights.layers.push_back(std::move(layer_weights));
  }
  return weights;
}

}  // namespace

absl::StatusOr<LlamaWeights> MakeRandomWeights(const LlamaConfig& config,
                                               const RandomWeightsOptions& options) {
  return CatchTorchOr([&] { return MakeAll(config, options); });
}

}  // namespace reprise
