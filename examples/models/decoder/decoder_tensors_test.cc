#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/decoder/decoder_weights.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

DecoderConfig TinyConfig() {
  DecoderConfig config;
  config.hidden_size = 6;
  config.intermediate_size = 10;
  config.num_layers = 2;
  config.num_q_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 7;
  config.tie_word_embeddings = true;
  return config;
}

TensorViews ViewsFor(const DecoderConfig& config) {
  TensorViews views;
  for (const ExpectedTensor& tensor : DecoderTensors(config)) {
    views[tensor.name] = {.type = StoredType::kBFloat16, .shape = tensor.shape, .bytes = {}};
  }
  return views;
}

std::string Problem(const DecoderConfig& config, const TensorViews& views) {
  const absl::Status status = CheckDecoderTensors(config, views);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(DecoderTensorsTest, NamesWhatHuggingFaceNames) {
  const TensorViews views = ViewsFor(TinyConfig());
  EXPECT_EQ(views.size(), 2u + 2 * 9);  // embedding, norm, and nine a layer
  EXPECT_EQ(views.at("model.layers.1.self_attn.q_proj.weight").shape,
            (std::vector<int64_t>{12, 6}));
  EXPECT_EQ(views.at("model.layers.0.self_attn.v_proj.weight").shape, (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(views.at("model.layers.0.self_attn.o_proj.weight").shape,
            (std::vector<int64_t>{6, 12}));
  EXPECT_EQ(views.at("model.layers.0.mlp.down_proj.weight").shape, (std::vector<int64_t>{6, 10}));
  EXPECT_TRUE(CheckDecoderTensors(TinyConfig(), views).ok());
}

TEST(DecoderTensorsTest, BiasesAndAnUntiedHeadAreAskedForWhereTheConfigHasThem) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = true;
  config.o_bias = true;
  config.mlp_bias = true;
  config.tie_word_embeddings = false;
  const TensorViews views = ViewsFor(config);
  EXPECT_EQ(views.size(), 3u + 2 * 16);  // seven projections a layer have biases
  EXPECT_EQ(views.at("model.layers.0.self_attn.o_proj.bias").shape, (std::vector<int64_t>{6}));
  EXPECT_EQ(views.at("lm_head.weight").shape, (std::vector<int64_t>{7, 6}));
}

TEST(DecoderTensorsTest, FamiliesHaveTensorsAndNamesOfTheirOwn) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = true;
  config.qk_norm = QkNorm::kWeighted;
  TensorViews views = ViewsFor(config);
  EXPECT_EQ(views.size(), 2u + 2 * 14);  // three biases and two norms more
  EXPECT_EQ(views.at("model.layers.1.self_attn.k_norm.weight").shape, (std::vector<int64_t>{4}));
  EXPECT_FALSE(views.contains("model.layers.1.self_attn.o_proj.bias"));

  config = TinyConfig();
  config.names = kNormsBeforeAndAfter;
  views = ViewsFor(config);
  EXPECT_EQ(views.size(), 2u + 2 * 11);
  for (const char* norm : {"input_layernorm", "post_attention_layernorm",
                           "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
    EXPECT_EQ(views.at(absl::StrCat("model.layers.0.", norm, ".weight")).shape,
              (std::vector<int64_t>{6}));
  }

  config = TinyConfig();
  config.names.mlp = "feed_forward";
  config.qk_norm = QkNorm::kPlain;
  views = ViewsFor(config);
  EXPECT_EQ(views.size(), 2u + 2 * 9);
  EXPECT_EQ(views.at("model.layers.0.feed_forward.up_proj.weight").shape,
            (std::vector<int64_t>{10, 6}));
}

TEST(DecoderTensorsTest, AllProblemsAreNamedAtOnce) {
  TensorViews views = ViewsFor(TinyConfig());
  views.erase("model.norm.weight");
  views.erase("model.layers.0.self_attn.k_proj.weight");
  views["model.layers.0.self_attn.k_norm.weight"] = {.shape = {4}, .bytes = {}};
  views.at("model.embed_tokens.weight").shape = {6, 7};
  views.at("model.layers.1.mlp.up_proj.weight").type = StoredType::kInt8;
  EXPECT_THAT(
      Problem(TinyConfig(), views),
      AllOf(HasSubstr("missing tensors: model.layers.0.self_attn.k_proj.weight and 1 more"),
            HasSubstr("unknown tensors: model.layers.0.self_attn.k_norm.weight"),
            HasSubstr("wrong tensors: model.embed_tokens.weight must be [7, 6], got [6, 7] and 1 "
                      "more"),
            Not(HasSubstr("\n"))));
}

TEST(DecoderTensorsTest, NamesATensorOfIntegers) {
  TensorViews views = ViewsFor(TinyConfig());
  views.at("model.layers.1.mlp.up_proj.weight").type = StoredType::kInt8;
  EXPECT_THAT(
      Problem(TinyConfig(), views),
      HasSubstr("model.layers.1.mlp.up_proj.weight must be of 16, 32 or 64 bit floats, got I8"));
}

TEST(DecoderTensorsTest, OfManyOfAKindTheFirstAreNamedAndTheRestCounted) {
  EXPECT_THAT(Problem(TinyConfig(), {}),
              AllOf(HasSubstr("missing tensors: model.embed_tokens.weight, model.layers.0."),
                    HasSubstr("and 16 more")));  // of 20
}

TEST(DecoderTensorsTest, AcceptsPredictionLayersOfTheConfig) {
  DecoderConfig config = TinyConfig();
  TensorViews views = ViewsFor(config);
  views["model.layers.2.eh_proj.weight"] = {.shape = {6, 12}, .bytes = {}};
  views["mtp.fc.weight"] = {.shape = {6, 12}, .bytes = {}};
  EXPECT_THAT(Problem(config, views), HasSubstr("unknown tensors: model.layers.2.eh_proj.weight"));
  config.num_prediction_layers = 1;
  EXPECT_TRUE(CheckDecoderTensors(config, views).ok());
}

TEST(DecoderTensorsTest, KnownTensorsWithoutAUseMayStandThere) {
  TensorViews views = ViewsFor(TinyConfig());
  views["model.layers.0.self_attn.rotary_emb.inv_freq"] = {.shape = {2}, .bytes = {}};
  views["lm_head.weight"] = {.shape = {7, 6}, .bytes = {}};
  EXPECT_TRUE(CheckDecoderTensors(TinyConfig(), views).ok());
}

}  // namespace
}  // namespace reprise
