#include "reprise/models/decoder/decoder_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/dense_decoder.h"
#include "reprise/models/generate.h"
#include "reprise/runner/step.h"
#include "reprise/runner/step_watch.h"

namespace reprise {
namespace {

using testing::HasSubstr;
using testing::IsSupersetOf;

DecoderConfig TinyConfig() {
  DecoderConfig config;
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

std::unique_ptr<DecoderModel> Made(const DecoderConfig& config,
                                   const DecoderModelOptions& options = {}) {
  auto weights = MakeRandomWeights(config, {.dtype = DType::kFloat32, .seed = 3});
  CHECK(weights.ok()) << weights.status();
  // Of deviation 0.02, attention would be almost uniform; rotation and mask would hardly matter.
  // Norms would not matter at all.
  for (DecoderLayerWeights& layer : weights->layers) {
    at::Tensor qkv = layer.qkv->weight();
    qkv.mul_(40);
    for (std::optional<at::Tensor> norm :
         {std::optional(layer.input_norm), std::optional(layer.mlp_norm), layer.q_norm,
          layer.k_norm, layer.attention_output_norm, layer.mlp_output_norm, layer.sinks}) {
      if (norm.has_value()) norm->add_(at::linspace(-0.5, 0.5, norm->numel()));
    }
    if (layer.experts.has_value()) {
      for (at::Tensor weight : {layer.experts->router.weight(), layer.experts->gate_up.weight(),
                                layer.experts->down.weight()}) {
        weight.mul_(10);
      }
    }
  }
  auto model = DecoderModel::Create(config, *std::move(weights), options);
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

// Prompt and forced tokens of one sequence, through an engine in chunks, against the plain form.
void ExpectDense(const DecoderConfig& config) {
  const std::unique_ptr<DecoderModel> model = Made(config);
  auto engine = CreateEngine(model.get(), {.runner = {.max_num_seqs = 2,
                                                      .max_num_tokens = 16,
                                                      .max_steps_in_flight = 1,
                                                      .cache = {.block_size = 4}},
                                           .scheduler = {.prefill_chunk = 3}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 24; ++i) tokens.push_back((i * i * 7 + 3) % config.vocab_size);
  const Request request = {.prompt = {tokens.begin(), tokens.begin() + 11},
                           .forced_tokens = {tokens.begin() + 11, tokens.end()}};
  LogitsRecorder recorder(1);
  const absl::Status status = Generate(**engine, {request}, [&](int i, const TokenEvent& event) {
    return recorder.Record(i, *LogitsOf(**engine, event));
  });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(recorder.num_rows(0), 13);
  const at::Tensor expected = DenseLogits(*model, tokens).narrow(0, 10, 13);
  const at::Tensor got =
      at::tensor(std::vector<float>(recorder.rows(0).begin(), recorder.rows(0).end()))
          .view({13, config.vocab_size});
  EXPECT_LT((got - expected).abs().max().item<double>(),
            1e-4 * expected.abs().max().item<double>());
}

TEST(DecoderModelTest, ComputesWhatThePlainFormComputes) { ExpectDense(TinyConfig()); }

TEST(DecoderModelTest, AnyRatioOfHeads) {
  for (const auto& [num_q, num_kv] :
       std::vector<std::pair<int, int>>{{1, 1}, {5, 1}, {7, 7}, {14, 2}}) {
    SCOPED_TRACE(testing::Message() << num_q << " / " << num_kv);
    DecoderConfig config = TinyConfig();
    config.num_q_heads = num_q;
    config.num_kv_heads = num_kv;
    ExpectDense(config);
  }
}

TEST(DecoderModelTest, AnyHeadDim) {
  for (const int head_dim : {2, 10, 80}) {
    SCOPED_TRACE(testing::Message() << head_dim);
    DecoderConfig config = TinyConfig();
    config.head_dim = head_dim;
    ExpectDense(config);
  }
}

TEST(DecoderModelTest, TheEmbeddingsOfATextsOwnTokensGiveItsLogits) {
  DecoderConfig config = TinyConfig();
  config.embedding_scale = std::sqrt(config.hidden_size);
  config.rounds_embedding_scale = true;
  const std::unique_ptr<DecoderModel> model = Made(config, {.takes_embeddings = true});
  auto engine =
      CreateEngine(model.get(), {.runner = {.max_num_seqs = 1, .max_steps_in_flight = 1}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 12; ++i) tokens.push_back((i * i * 7 + 3) % config.vocab_size);
  const at::Tensor rows =
      model->weights().embedding.index_select(0, at::tensor(tokens, at::kInt).narrow(0, 2, 8)) *
      std::sqrt(static_cast<float>(config.hidden_size));
  const auto embeddings = RequestEmbeddingsOf(/*first_token=*/2, rows);
  ASSERT_TRUE(embeddings.ok()) << embeddings.status();
  std::vector<int32_t> placeholders = tokens;
  std::fill(placeholders.begin() + 2, placeholders.begin() + 10, 0);
  const Request requests[] = {
      {.prompt = tokens, .max_new_tokens = 5},
      {.prompt = placeholders, .embeddings = {*embeddings}, .max_new_tokens = 5}};
  LogitsRecorder recorder(2);
  const absl::Status status = Generate(**engine, requests, [&](int i, const TokenEvent& event) {
    return recorder.Record(i, *LogitsOf(**engine, event));
  });
  ASSERT_TRUE(status.ok()) << status;
  const std::vector<float> want(recorder.rows(0).begin(), recorder.rows(0).end());
  const std::vector<float> got(recorder.rows(1).begin(), recorder.rows(1).end());
  ASSERT_EQ(want.size(), size_t{5} * config.vocab_size);
  EXPECT_EQ(got, want);
}

TEST(DecoderModelTest, BiasesAndAHeadOfItsOwn) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = true;
  config.o_bias = true;
  config.mlp_bias = true;
  config.tie_word_embeddings = false;
  ExpectDense(config);
}

TEST(DecoderModelTest, ScaledRotations) {
  DecoderConfig config = TinyConfig();
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

TEST(DecoderModelTest, BiasesOnTheInputsOfAttentionAlone) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = true;
  ExpectDense(config);
}

TEST(DecoderModelTest, NormsOfHeadsBeforeAndAfterTheRotation) {
  DecoderConfig config = TinyConfig();
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

TEST(DecoderModelTest, WindowsInSomeLayers) {
  DecoderConfig config = TinyConfig();
  for (const int window : {1, 5, 100}) {
    SCOPED_TRACE(window);
    config.attention = {{.window = window}, {}};
    ExpectDense(config);
  }
}

TEST(DecoderModelTest, LayersThatDoNotRotateTemperTheirQueries) {
  DecoderConfig config = TinyConfig();
  config.attention = {{}, {.rotates = false}};
  ExpectDense(config);
  config.temperature = QueryTemperature{.attn_scale = 0.5f, .floor_scale = 4};
  config.qk_norm = QkNorm::kPlain;  // of the layer that rotates only
  ExpectDense(config);
}

TEST(DecoderModelTest, EverythingThatGemma2Has) {
  DecoderConfig config = TinyConfig();
  config.activation = Activation::kGeluTanh;
  config.norm_weight = NormWeight::kOnePlus;
  config.names = kNormsBeforeAndAfter;
  config.embedding_scale = std::sqrt(config.hidden_size);
  config.rounds_embedding_scale = true;
  config.attention_scale = 0.2;
  config.attention_softcap = 3;
  config.logit_softcap = 0.5;
  config.attention = {{.window = 4}, {}};
  ExpectDense(config);
}

TEST(DecoderModelTest, EverythingThatGemma3Has) {
  DecoderConfig config = TinyConfig();
  config.activation = Activation::kGeluTanh;
  config.norm_weight = NormWeight::kOnePlus;
  config.names = kNormsBeforeAndAfter;
  config.qk_norm = QkNorm::kWeighted;
  config.embedding_scale = std::sqrt(config.hidden_size);
  config.rounds_embedding_scale = true;
  config.attention_scale = 0.2;
  config.attention = {{.window = 4}, {}};
  config.rope = {.theta = 100, .scaling = LinearRope{.factor = 8}};
  config.window_rope = RopeConfig{.theta = 10};
  ExpectDense(config);
}

TEST(DecoderModelTest, Sinks) {
  DecoderConfig config = TinyConfig();
  config.sinks = true;
  ExpectDense(config);
  config.attention = {{.window = 3}, {}};
  ExpectDense(config);
}

TEST(DecoderModelTest, ExpertsInPlaceOfTheFeedForward) {
  DecoderConfig config = TinyConfig();
  config.experts =
      ExpertsConfig{.num_experts = 8, .num_chosen = 2, .inner_size = 24, .normalises = false};
  ExpectDense(config);
  config.experts = ExpertsConfig{.num_experts = 4,
                                 .num_chosen = 3,
                                 .inner_size = 40,
                                 .activation = Activation::kClampedSwiglu,
                                 .router_bias = true,
                                 .expert_bias = true,
                                 .files = ExpertFiles::kStacked};
  ExpectDense(config);
}

TEST(DecoderModelTest, OnlyTheFirstDimsOfAHeadRotate) {
  for (const QkNorm norm : {QkNorm::kNone, QkNorm::kWeighted}) {
    for (const double fraction : {0.125, 0.5}) {
      DecoderConfig config = TinyConfig();
      config.rope.rotary_fraction = fraction;
      config.qk_norm = norm;
      ExpectDense(config);
    }
  }
}

TEST(DecoderModelTest, OneNormForAllHeads) {
  DecoderConfig config = TinyConfig();
  config.qk_norm = QkNorm::kAllHeads;
  ExpectDense(config);
  config.norm_weight = NormWeight::kOnePlus;
  config.num_kv_heads = 1;
  ExpectDense(config);
}

TEST(DecoderModelTest, FactorsOfEmbeddingsResidualsAndLogits) {
  for (const LayerNames& names : {LayerNames(), kNormsBeforeAndAfter}) {
    DecoderConfig config = TinyConfig();
    config.names = names;
    config.embedding_scale = 12;
    config.residual_scale = 0.22;
    config.logit_divisor = 8;
    config.attention_scale = 0.0625;
    ExpectDense(config);
  }
}

TEST(DecoderModelTest, AllLayersMayTemperTheirQueries) {
  DecoderConfig config = TinyConfig();
  config.temperature = {.attn_scale = 0.5, .floor_scale = 8, .position_offset = 0};
  config.tempers_all_layers = true;
  ExpectDense(config);
  config.qk_norm = QkNorm::kWeighted;  // the norm comes first
  ExpectDense(config);
}

TEST(DecoderModelTest, LayersWithAndWithoutExpertsInOneModel) {
  DecoderConfig config = TinyConfig();
  config.num_layers = 3;
  config.experts = ExpertsConfig{.num_experts = 6,
                                 .num_chosen = 3,
                                 .inner_size = 12,
                                 .scores = RouterScores::kSigmoid,
                                 .choice_bias = true,
                                 .num_groups = 3,
                                 .num_chosen_groups = 2,
                                 .group_score = GroupScore::kTopTwo,
                                 .scale = 2.5,
                                 .shared_inner_size = 20,
                                 .shared_gate = true};
  config.is_dense = {true, false, false};
  ExpectDense(config);
  config.is_dense = {false, true, false};
  ExpectDense(config);
}

TEST(DecoderModelTest, ASingleLayer) {
  DecoderConfig config = TinyConfig();
  config.num_layers = 1;
  ExpectDense(config);
}

TEST(DecoderModelTest, SpecSaysWhatTheRunnerNeeds) {
  const DecoderConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {.dtype = DType::kBFloat16});
  const auto model = DecoderModel::Create(config, *std::move(weights), {.max_position = 20});
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

TEST(DecoderModelTest, RefusesWeightsOfAnotherShape) {
  DecoderConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {});
  config.intermediate_size = 41;
  const auto model = DecoderModel::Create(config, *weights, {});
  EXPECT_THAT(std::string(model.status().message()), HasSubstr("gate_up must be [82, 48]"));
  config = TinyConfig();
  config.num_layers = 3;
  EXPECT_THAT(std::string(DecoderModel::Create(config, *weights, {}).status().message()),
              HasSubstr("layers must be num_layers: expected 3, got 2"));
}

TEST(DecoderModelTest, SpecSaysHowEachLayerAttends) {
  DecoderConfig config = TinyConfig();
  config.attention = {{.window = 8}, {.chunk = 4}};
  config.attention_scale = 0.25;
  config.attention_softcap = 50;
  auto weights = MakeRandomWeights(config, {});
  const auto model = DecoderModel::Create(config, *std::move(weights), {});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<LayerSpec>& layers = (*model)->spec().layers;
  EXPECT_EQ(layers[0].params.window_left, 7);
  EXPECT_EQ(layers[0].chunk_size, std::nullopt);
  EXPECT_EQ(layers[1].params.window_left, std::nullopt);
  EXPECT_EQ(layers[1].chunk_size, 4);
  EXPECT_EQ(layers[1].params.scale, 0.25f);
  EXPECT_EQ(layers[1].params.softcap, 50);
}

// Keys and values of some hundreds: an fp8 cache with scales of 1 would clip most of them to 448.
std::unique_ptr<DecoderModel> ModelOfLargeKeys(const DecoderConfig& config) {
  std::unique_ptr<DecoderModel> model = Made(config);
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  for (const DecoderLayerWeights& layer : model->weights().layers) {
    at::Tensor qkv = layer.qkv->weight();
    qkv.narrow(0, 0, q_size).mul_(1e-3);
    qkv.narrow(0, q_size, qkv.size(0) - q_size).mul_(400);
  }
  return model;
}

// The largest error of the logits that choose 6 tokens, over the largest logit.
double ErrorOfFp8Cache(DecoderModel& model, KvScaleShape shape, KvCalibration calibration,
                       std::vector<KvScales::Layer>* scales = nullptr) {
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 1,
                                                 .max_num_tokens = 16,
                                                 .max_steps_in_flight = 1,
                                                 .cache = {.block_size = 4,
                                                           .dtype = DType::kFp8E4M3,
                                                           .scale_shape = shape,
                                                           .calibration = calibration}}});
  CHECK(engine.ok()) << engine.status();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 18; ++i) tokens.push_back((i * i * 7 + 3) % model.spec().vocab_size);
  LogitsRecorder recorder(1);
  const absl::Status status = Generate(**engine,
                                       {{.prompt = {tokens.begin(), tokens.begin() + 12},
                                         .forced_tokens = {tokens.begin() + 12, tokens.end()}}},
                                       [&](int i, const TokenEvent& event) {
                                         return recorder.Record(i, *LogitsOf(**engine, event));
                                       });
  CHECK(status.ok()) << status;
  const int64_t num_rows = recorder.num_rows(0);
  const at::Tensor expected = DenseLogits(model, tokens).narrow(0, 11, num_rows);
  const at::Tensor got =
      at::tensor(std::vector<float>(recorder.rows(0).begin(), recorder.rows(0).end()))
          .view({num_rows, model.spec().vocab_size});
  const KvScales& kept = *ModelRunnerOf(**engine).kv_scales();
  for (int layer = 0; scales != nullptr && layer < 2; ++layer) {
    scales->push_back({.k = kept.layer(layer).k.clone(), .v = kept.layer(layer).v.clone()});
  }
  return ((got - expected).abs().max() / expected.abs().max()).item<double>();
}

TEST(DecoderModelTest, CalibrationSetsTheScalesOfRotatedLayers) {
  for (const QkNorm norm : {QkNorm::kNone, QkNorm::kWeighted}) {
    DecoderConfig config = TinyConfig();
    config.qk_norm = norm;
    const std::unique_ptr<DecoderModel> model = ModelOfLargeKeys(config);
    for (const KvScaleShape shape : {KvScaleShape::kPerLayer, KvScaleShape::kPerHead}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(norm) << ", " << static_cast<int>(shape));
      std::vector<KvScales::Layer> scales;
      const double calibrated = ErrorOfFp8Cache(*model, shape, KvCalibration::kFirstStep, &scales);
      const double plain = ErrorOfFp8Cache(*model, shape, KvCalibration::kOff);
      EXPECT_LT(calibrated, 0.5 * plain);
      for (const KvScales::Layer& layer : scales) {
        // Values exceed 448 in each head; a norm makes the keys short.
        EXPECT_GT(layer.v.min().item<float>(), 1.0f);
        if (norm == QkNorm::kNone) {
          EXPECT_GT(layer.k.min().item<float>(), 1.0f);
        }
        EXPECT_TRUE((layer.k != 1).all().item<bool>());
      }
    }
  }
}

// Passes its steps on with a watch that lists the names of the tensors.
class WatchedModel : public Model, private StepWatch {
 public:
  explicit WatchedModel(Model* model) : model_(*model) {}

  const ModelSpec& spec() const override { return model_.spec(); }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    return model_.Forward(step.WatchedBy(this));
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  void Begin() override {}
  void See(std::string_view name, const at::Tensor&, WatchedRows) override {
    names_.emplace_back(name);
  }
  absl::Status End() override { return absl::OkStatus(); }

  Model& model_;
  std::vector<std::string> names_;
};

TEST(DecoderModelTest, AWatchSeesTheKeysAndValuesOfRotatedLayers) {
  const std::unique_ptr<DecoderModel> model = Made(TinyConfig());
  WatchedModel watched(model.get());
  auto engine = CreateEngine(&watched, {.runner = {.max_num_seqs = 1}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const absl::Status status = Generate(**engine, {{.prompt = {1, 2, 3}, .max_new_tokens = 1}},
                                       [](int, const TokenEvent&) { return absl::OkStatus(); });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(watched.names(),
              IsSupersetOf({"layer 0 q", "layer 0 k", "layer 0 v", "layer 0 out", "layer 1 q",
                            "layer 1 k", "layer 1 v", "layer 1 out"}));
}

TEST(DecoderModelTest, RefusesNormsThatTheConfigDoesWithoutAndAsksForThoseItHas) {
  DecoderConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {});
  config.qk_norm = QkNorm::kWeighted;
  EXPECT_EQ(DecoderModel::Create(config, *weights, {}).status().message(),
            "q_norm must be there, as the config asks for it: expected [16], got none");
  weights = MakeRandomWeights(config, {});
  config.qk_norm = QkNorm::kNone;
  EXPECT_THAT(std::string(DecoderModel::Create(config, *weights, {}).status().message()),
              HasSubstr("q_norm must not be there"));
}

TEST(DecoderModelTest, RefusesPositionsThatTheModelDoesNotKnow) {
  const DecoderConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {});
  for (const int max_position : {0, -1, 65}) {
    const auto model = DecoderModel::Create(config, *weights, {.max_position = max_position});
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr("max_position must be in [1, 64]"));
  }
}

}  // namespace
}  // namespace reprise
