#include "examples/llama/llama_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/llama/generate.h"
#include "examples/llama/logits_recorder.h"
#include "examples/llama/random_weights.h"
#include "examples/llama/rope_frequencies.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runner/engine.h"

namespace reprise {
namespace {

using testing::HasSubstr;

// The same model written down plainly: float64, all tokens at once, no cache.
class DenseLlama {
 public:
  explicit DenseLlama(const LlamaModel& model)
      : config_(model.config()), weights_(model.weights()) {}

  // [num_tokens, vocab_size]: logits after each token.
  at::Tensor Logits(const std::vector<int32_t>& tokens) const {
    at::Tensor x =
        Double(weights_.embedding)
            .index_select(0, at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())));
    if (config_.scale_embedding) x = x * std::sqrt(static_cast<float>(config_.hidden_size));
    for (int i = 0; i < config_.num_layers; ++i) {
      const LlamaLayerWeights& layer = weights_.layers[i];
      const at::Tensor attended = Attention(i, Norm(x, layer.input_norm));
      x = x + OptionalNorm(attended, layer.attention_output_norm);
      x = x + OptionalNorm(FeedForward(layer, Norm(x, layer.mlp_norm)), layer.mlp_output_norm);
    }
    return Capped(Apply(weights_.lm_head, Norm(x, weights_.final_norm)), config_.logit_softcap);
  }

 private:
  static at::Tensor Double(const at::Tensor& x) { return x.to(at::kDouble); }

  static at::Tensor Apply(const Linear& linear, const at::Tensor& x) {
    std::optional<at::Tensor> bias;
    if (linear.bias().has_value()) bias = Double(*linear.bias());
    return at::linear(x, Double(linear.weight()), bias);
  }

  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const {
    const int plus = config_.norm_weight == NormWeight::kOnePlus ? 1 : 0;
    return Normalised(x) * (Double(weight) + plus);
  }

  at::Tensor Normalised(const at::Tensor& x) const {
    return x * at::rsqrt(x.square().mean(-1, true) + config_.rms_norm_eps);
  }

  at::Tensor OptionalNorm(const at::Tensor& x, const std::optional<at::Tensor>& weight) const {
    return weight.has_value() ? Norm(x, *weight) : x;
  }

  static at::Tensor Capped(const at::Tensor& x, std::optional<double> cap) {
    return cap.has_value() ? at::tanh(x / *cap) * *cap : x;
  }

  // x [heads, num_tokens, head_dim]
  at::Tensor Rotate(const at::Tensor& x) const {
    const std::vector<float> frequencies = RopeFrequencies(config_.rope, config_.head_dim);
    const at::Tensor angles =
        at::outer(at::arange(x.size(1), at::kDouble), at::tensor(frequencies, at::kDouble));
    const std::vector<at::Tensor> halves = (x * RopeAttentionFactor(config_.rope)).chunk(2, -1);
    return at::cat({halves[0] * angles.cos() - halves[1] * angles.sin(),
                    halves[1] * angles.cos() + halves[0] * angles.sin()},
                   -1);
  }

  // q or k [heads, n, head_dim] as attention takes it, by the letter of the families' papers: a
  // weighted norm before the rotation, a plain one after it.
  at::Tensor Prepared(int i, at::Tensor x, const std::optional<at::Tensor>& weight) const {
    if (config_.qk_norm == QkNorm::kWeighted) x = Normalised(x) * Double(*weight);
    if (!config_.AttentionOf(i).rotates) return x;
    x = Rotate(x);
    return config_.qk_norm == QkNorm::kPlain ? Normalised(x) : x;
  }

  // [n]: what queries are multiplied by.
  at::Tensor Temperature(int i, int64_t n) const {
    const at::Tensor positions = at::arange(n, at::kDouble);
    if (config_.AttentionOf(i).rotates || !config_.temperature.has_value())
      return positions * 0 + 1;
    return at::log1p(at::floor((positions + 1) / config_.temperature->floor_scale)) *
               config_.temperature->attn_scale +
           1;
  }

  // [n, n]: 0 where query (row) sees key (column), -inf elsewhere.
  at::Tensor Mask(int i, int64_t n) const {
    const LayerAttention attention = config_.AttentionOf(i);
    const at::Tensor positions = at::arange(n, at::kLong);
    const at::Tensor query = positions.view({n, 1});
    at::Tensor hidden = positions.gt(query);
    if (attention.window) hidden = hidden.logical_or(positions.le(query - *attention.window));
    if (attention.chunk) {
      hidden = hidden.logical_or(
          positions.floor_divide(*attention.chunk).ne(query.floor_divide(*attention.chunk)));
    }
    return at::zeros({n, n}, at::kDouble)
        .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }

  at::Tensor Attention(int i, const at::Tensor& x) const {
    const LlamaLayerWeights& layer = weights_.layers[i];
    const int64_t n = x.size(0);
    const int64_t num_q = config_.num_q_heads;
    const int64_t num_kv = config_.num_kv_heads;
    const at::Tensor heads = Apply(layer.qkv, x)
                                 .view({n, num_q + 2 * num_kv, config_.head_dim})
                                 .transpose(0, 1);  // [heads, n, head_dim]
    const at::Tensor q =
        Prepared(i, heads.narrow(0, 0, num_q), layer.q_norm) * Temperature(i, n).view({n, 1});
    const at::Tensor k = Prepared(i, heads.narrow(0, num_q, num_kv), layer.k_norm)
                             .repeat_interleave(num_q / num_kv, 0);
    const at::Tensor v =
        heads.narrow(0, num_q + num_kv, num_kv).repeat_interleave(num_q / num_kv, 0);
    const double scale = config_.attention_scale.value_or(1 / std::sqrt(config_.head_dim));
    const at::Tensor scores =
        Capped(at::matmul(q, k.transpose(1, 2)) * scale, config_.attention_softcap);
    const at::Tensor out =
        at::matmul(at::softmax(scores + Mask(i, n), -1), v);  // [num_q, n, head_dim]
    return Apply(layer.o, out.transpose(0, 1).reshape({n, num_q * config_.head_dim}));
  }

  at::Tensor FeedForward(const LlamaLayerWeights& layer, const at::Tensor& x) const {
    const std::vector<at::Tensor> halves = Apply(layer.gate_up, x).chunk(2, -1);
    const at::Tensor gate =
        config_.activation == Activation::kSilu ? at::silu(halves[0]) : at::gelu(halves[0], "tanh");
    return Apply(layer.down, gate * halves[1]);
  }

  const LlamaConfig& config_;
  const LlamaWeights& weights_;
};

LlamaConfig TinyConfig() {
  LlamaConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_q_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 50;
  config.max_seq_len = 64;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  return config;
}

std::unique_ptr<LlamaModel> Made(const LlamaConfig& config) {
  auto weights = MakeRandomWeights(config, {.dtype = DType::kFloat32, .seed = 3});
  CHECK(weights.ok()) << weights.status();
  // Of deviation 0.02, attention would be almost uniform; rotation and mask would hardly matter.
  // Norms would not matter at all.
  for (LlamaLayerWeights& layer : weights->layers) {
    at::Tensor qkv = layer.qkv.weight();
    qkv.mul_(40);
    for (std::optional<at::Tensor> norm :
         {std::optional(layer.input_norm), std::optional(layer.mlp_norm), layer.q_norm,
          layer.k_norm, layer.attention_output_norm, layer.mlp_output_norm}) {
      if (norm.has_value()) norm->add_(at::linspace(-0.5, 0.5, norm->numel()));
    }
  }
  auto model = LlamaModel::Create(config, *std::move(weights), {});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

// Prompt and forced tokens of one sequence, through an engine in chunks, against the plain form.
void ExpectDense(const LlamaConfig& config) {
  const std::unique_ptr<LlamaModel> model = Made(config);
  auto engine = Engine::Create(model.get(), {.runner = {.max_num_seqs = 2,
                                                        .max_num_tokens = 16,
                                                        .block_size = 4,
                                                        .max_steps_in_flight = 1},
                                             .prefill_chunk = 3});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 24; ++i) tokens.push_back((i * i * 7 + 3) % config.vocab_size);
  const Request request = {.prompt = {tokens.begin(), tokens.begin() + 11},
                           .forced_tokens = {tokens.begin() + 11, tokens.end()}};
  LogitsRecorder recorder(1);
  const absl::Status status = Generate(**engine, {request}, [&](int i, const TokenEvent& event) {
    return recorder.Record(i, (*engine)->runner().logits(), event.row);
  });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(recorder.num_rows(0), 13);
  const at::Tensor expected = DenseLlama(*model).Logits(tokens).narrow(0, 10, 13);
  const at::Tensor got =
      at::tensor(std::vector<float>(recorder.rows(0).begin(), recorder.rows(0).end()))
          .view({13, config.vocab_size});
  EXPECT_LT((got - expected).abs().max().item<double>(),
            1e-4 * expected.abs().max().item<double>());
}

TEST(LlamaModelTest, ComputesWhatThePlainFormComputes) { ExpectDense(TinyConfig()); }

TEST(LlamaModelTest, AnyRatioOfHeads) {
  for (const auto& [num_q, num_kv] :
       std::vector<std::pair<int, int>>{{1, 1}, {5, 1}, {7, 7}, {14, 2}}) {
    SCOPED_TRACE(testing::Message() << num_q << " / " << num_kv);
    LlamaConfig config = TinyConfig();
    config.num_q_heads = num_q;
    config.num_kv_heads = num_kv;
    ExpectDense(config);
  }
}

TEST(LlamaModelTest, AnyHeadDim) {
  for (const int head_dim : {2, 10, 80}) {
    SCOPED_TRACE(testing::Message() << head_dim);
    LlamaConfig config = TinyConfig();
    config.head_dim = head_dim;
    ExpectDense(config);
  }
}

TEST(LlamaModelTest, BiasesAndAHeadOfItsOwn) {
  LlamaConfig config = TinyConfig();
  config.qkv_bias = true;
  config.o_bias = true;
  config.mlp_bias = true;
  config.tie_word_embeddings = false;
  ExpectDense(config);
}

TEST(LlamaModelTest, ScaledRotations) {
  LlamaConfig config = TinyConfig();
  config.rope.scaling = LinearRope{.factor = 4};
  ExpectDense(config);
  config.rope = {.theta = 500, .scaling = Llama3Rope{.factor = 8, .original_max_seq_len = 16}};
  ExpectDense(config);
  config.rope = {
      .theta = 500,
      .scaling = YarnRope{
          .factor = 4, .attention_factor = 1.3, .beta_fast = 4, .original_max_seq_len = 16}};
  ExpectDense(config);
}

TEST(LlamaModelTest, BiasesOnTheInputsOfAttentionAlone) {
  LlamaConfig config = TinyConfig();
  config.qkv_bias = true;
  ExpectDense(config);
}

TEST(LlamaModelTest, NormsOfHeadsBeforeAndAfterTheRotation) {
  LlamaConfig config = TinyConfig();
  for (const QkNorm norm : {QkNorm::kWeighted, QkNorm::kPlain}) {
    SCOPED_TRACE(static_cast<int>(norm));
    config.qk_norm = norm;
    config.rope = {};
    ExpectDense(config);
    // A rotation that stretches does not commute with a norm.
    config.rope.scaling = YarnRope{.factor = 4, .attention_factor = 2, .original_max_seq_len = 16};
    config.rms_norm_eps = 0.1;
    ExpectDense(config);
  }
}

TEST(LlamaModelTest, WindowsInSomeLayers) {
  LlamaConfig config = TinyConfig();
  for (const int window : {1, 5, 100}) {
    SCOPED_TRACE(window);
    config.attention = {{.window = window}, {}};
    ExpectDense(config);
  }
}

TEST(LlamaModelTest, LayersThatDoNotRotateTemperTheirQueries) {
  LlamaConfig config = TinyConfig();
  config.attention = {{}, {.rotates = false}};
  ExpectDense(config);
  config.temperature = QueryTemperature{.attn_scale = 0.5f, .floor_scale = 4};
  config.qk_norm = QkNorm::kPlain;  // of the layer that rotates only
  ExpectDense(config);
}

TEST(LlamaModelTest, EverythingThatGemma2Has) {
  LlamaConfig config = TinyConfig();
  config.activation = Activation::kGeluTanh;
  config.norm_weight = NormWeight::kOnePlus;
  config.norm_placement = NormPlacement::kBeforeAndAfter;
  config.scale_embedding = true;
  config.attention_scale = 0.2;
  config.attention_softcap = 3;
  config.logit_softcap = 0.5;
  config.attention = {{.window = 4}, {}};
  ExpectDense(config);
}

TEST(LlamaModelTest, ASingleLayer) {
  LlamaConfig config = TinyConfig();
  config.num_layers = 1;
  ExpectDense(config);
}

TEST(LlamaModelTest, SpecSaysWhatTheRunnerNeeds) {
  const LlamaConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {.dtype = DType::kBFloat16});
  const auto model = LlamaModel::Create(config, *std::move(weights), {.max_position = 20});
  ASSERT_TRUE(model.ok()) << model.status();
  const ModelSpec& spec = (*model)->spec();
  ASSERT_EQ(spec.layers.size(), 2u);
  EXPECT_EQ(spec.layers[1].params.num_q_heads, 4);
  EXPECT_EQ(spec.layers[1].params.num_kv_heads, 2);
  EXPECT_EQ(spec.layers[1].params.head_dim_qk, 16);
  EXPECT_EQ(spec.layers[1].params.head_dim_v, 16);
  EXPECT_EQ(spec.vocab_size, 50);
  EXPECT_EQ(spec.max_position, 20);
  EXPECT_EQ(spec.dtype, DType::kBFloat16);
  EXPECT_EQ(spec.device, c10::Device(c10::kCPU));
}

TEST(LlamaModelTest, RefusesWeightsOfAnotherShape) {
  LlamaConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {});
  config.intermediate_size = 41;
  const auto model = LlamaModel::Create(config, *weights, {});
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("gate_up must be [82, 48]"));
  config = TinyConfig();
  config.num_layers = 3;
  EXPECT_THAT(std::string(LlamaModel::Create(config, *weights, {}).status().message()),
              HasSubstr("layers must be num_layers: expected 3, got 2"));
}

TEST(LlamaModelTest, SpecSaysHowEachLayerAttends) {
  LlamaConfig config = TinyConfig();
  config.attention = {{.window = 8}, {.chunk = 4}};
  config.attention_scale = 0.25;
  config.attention_softcap = 50;
  auto weights = MakeRandomWeights(config, {});
  const auto model = LlamaModel::Create(config, *std::move(weights), {});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<LayerSpec>& layers = (*model)->spec().layers;
  EXPECT_EQ(layers[0].params.window_left, 7);
  EXPECT_EQ(layers[0].chunk_size, std::nullopt);
  EXPECT_EQ(layers[1].params.window_left, std::nullopt);
  EXPECT_EQ(layers[1].chunk_size, 4);
  EXPECT_EQ(layers[1].params.scale, 0.25f);
  EXPECT_EQ(layers[1].params.softcap, 50);
}

TEST(LlamaModelTest, RefusesNormsThatTheConfigDoesWithoutAndAsksForThoseItHas) {
  LlamaConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {});
  config.qk_norm = QkNorm::kWeighted;
  EXPECT_EQ(LlamaModel::Create(config, *weights, {}).status().message(),
            "q_norm must be there, as the config asks for it: expected [16], got none");
  weights = MakeRandomWeights(config, {});
  config.qk_norm = QkNorm::kNone;
  EXPECT_THAT(std::string(LlamaModel::Create(config, *weights, {}).status().message()),
              HasSubstr("q_norm must not be there"));
}

TEST(LlamaModelTest, RefusesPositionsThatTheModelDoesNotKnow) {
  const LlamaConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {});
  for (const int max_position : {0, -1, 65}) {
    const auto model = LlamaModel::Create(config, *weights, {.max_position = max_position});
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr("max_position must be in [1, 64]"));
  }
}

}  // namespace
}  // namespace reprise
