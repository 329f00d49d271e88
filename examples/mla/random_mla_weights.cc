#include "examples/mla/random_mla_weights.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linspace.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "base/torch_status.h"

namespace reprise {
namespace {

class RandomTensors {
 public:
  explicit RandomTensors(const RandomWeightsOptions& options)
      : options_(at::TensorOptions(options.device).dtype(ToScalarType(options.dtype))),
        generator_(at::globalContext().defaultGenerator(options.device).clone()) {
    generator_.set_current_seed(options.seed);
  }

  at::Tensor Matrix(int64_t out, int64_t in) {
    return at::empty({out, in}, options_).normal_(0, 1 / std::sqrt(1.0 * in), generator_);
  }

  at::Tensor Norm(int64_t size) { return at::linspace(0.5, 1.5, size, options_); }

 private:
  at::TensorOptions options_;
  at::Generator generator_;
};

absl::StatusOr<MlaWeights> MakeAll(const MlaConfig& config, const RandomWeightsOptions& options) {
  RandomTensors random(options);
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t q_size = int64_t{config.num_heads} * config.qk_head_dim();
  const int64_t kv_size = int64_t{config.num_heads} * (config.qk_nope_head_dim + config.v_head_dim);
  at::Tensor embedding = random.Matrix(config.vocab_size, hidden);
  at::Tensor head = embedding;
  if (!config.tie_word_embeddings) head = random.Matrix(config.vocab_size, hidden);
  REPRISE_ASSIGN_OR_RETURN(Linear lm_head, Linear::Create(std::move(head), std::nullopt));
  MlaWeights weights = {.embedding = std::move(embedding),
                        .layers = {},
                        .final_norm = random.Norm(hidden),
                        .lm_head = std::move(lm_head),
                        .dtype = options.dtype};
  const auto optional_bias = [&](bool biased, int64_t size) {
    return biased ? std::optional(random.Norm(size) - 1) : std::nullopt;
  };
  const auto linear = [&](int64_t out, int64_t in, bool biased) {
    return Linear::Create(random.Matrix(out, in), optional_bias(biased, out));
  };
  const bool biased = config.attention_bias;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    std::optional<Linear> q_a;
    std::optional<at::Tensor> q_a_norm;
    if (config.q_lora_rank.has_value()) {
      REPRISE_ASSIGN_OR_RETURN(q_a, linear(*config.q_lora_rank, hidden, biased));
      q_a_norm = random.Norm(*config.q_lora_rank);
    }
    REPRISE_ASSIGN_OR_RETURN(Linear q, linear(q_size, config.q_lora_rank.value_or(hidden), false));
    REPRISE_ASSIGN_OR_RETURN(Linear kv_a, linear(config.latent_dim(), hidden, biased));
    REPRISE_ASSIGN_OR_RETURN(Linear kv_b, linear(kv_size, config.kv_lora_rank, false));
    REPRISE_ASSIGN_OR_RETURN(HeadLinear absorb, MakeAbsorb(config, kv_b));
    REPRISE_RETURN_IF_ERROR(FillAbsorb(config, kv_b, absorb));
    REPRISE_ASSIGN_OR_RETURN(HeadLinear expand, MakeExpand(config, kv_b));
    REPRISE_ASSIGN_OR_RETURN(Linear o,
                             linear(hidden, int64_t{config.num_heads} * config.v_head_dim, biased));
    REPRISE_ASSIGN_OR_RETURN(Linear gate_up, linear(2 * inner, hidden, config.mlp_bias));
    REPRISE_ASSIGN_OR_RETURN(Linear down, linear(hidden, inner, config.mlp_bias));
    weights.layers.push_back({.input_norm = random.Norm(hidden),
                              .q_a = std::move(q_a),
                              .q_a_norm = std::move(q_a_norm),
                              .q = std::move(q),
                              .kv_a = std::move(kv_a),
                              .kv_a_norm = random.Norm(config.kv_lora_rank),
                              .kv_b = std::move(kv_b),
                              .absorb = std::move(absorb),
                              .expand = std::move(expand),
                              .o = std::move(o),
                              .mlp_norm = random.Norm(hidden),
                              .gate_up = std::move(gate_up),
                              .down = std::move(down)});
  }
  return weights;
}

}  // namespace

absl::StatusOr<MlaWeights> MakeRandomMlaWeights(const MlaConfig& config,
                                                const RandomWeightsOptions& options) {
  return CatchTorchOr([&] { return MakeAll(config, options); });
}

}  // namespace reprise
