#include "reprise/models/decoder/decoder_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/family_configs.h"
#include "reprise/models/decoder/public_configs.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr LayerAttention kFull = {};
constexpr LayerAttention kNoRope = {.rotates = false};
LayerAttention Window(int tokens) { return {.window = tokens}; }
LayerAttention Chunk(int tokens) { return {.chunk = tokens}; }

json Without(json config, const std::string& name) {
  config.erase(name);
  return config;
}

json Small(const char* name) { return InSmall(*PublicConfig(name)); }

// A dense text model with members of Llama 4's own kind.
json Llama4() {
  return json::parse(R"({
      "architectures": ["Llama4ForCausalLM"], "attention_bias": false, "attention_chunk_size": 16,
      "attn_scale": 0.1, "attn_temperature_tuning": true, "floor_scale": 32, "head_dim": 32,
      "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
      "intermediate_size_mlp": 80, "max_position_embeddings": 512, "model_type": "llama4_text",
      "moe_layers": [], "num_attention_heads": 8, "num_hidden_layers": 4,
      "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "use_qk_norm": true, "vocab_size": 256})");
}

TEST(DecoderFamiliesTest, EachIsFoundByItsClassAndByItsModelType) {
  const std::vector<ModelKind> kinds = DecoderKinds();
  for (const ModelKind& kind : kinds) {
    SCOPED_TRACE(kind.model_type);
    std::vector<json> configs = {{{"model_type", kind.model_type}}};
    if (kind.class_name != nullptr) {
      configs.push_back({{"architectures", {kind.class_name}}, {"model_type", "?"}});
    }
    if (kind.wrapper_class != nullptr) {
      configs.push_back({{"architectures", {kind.wrapper_class}},
                         {"model_type", kind.wrapper_model_type},
                         {"text_config", {{"model_type", kind.model_type}}}});
    }
    for (const json& config : configs) {
      const absl::StatusOr<const DecoderFamily*> found =
          FindDecoderFamily(*JsonFields::Of(config, "config.json"));
      ASSERT_TRUE(found.ok()) << found.status();
      EXPECT_STREQ((*found)->kind.model_type, kind.model_type);
    }
  }
}

// A published file of a model for images and texts leaves out what its classes have as defaults.
TEST(DecoderFamiliesTest, WrappedGemma3HasTheDefaultsOfItsClass) {
  json wrapped = json::parse(R"({
      "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
      "model_type": "gemma3", "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
      "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
        "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}})");
  const DecoderConfig config = Parsed(wrapped);
  EXPECT_EQ(config.tensor_names, TensorNames::kWrapped);
  EXPECT_EQ(config.num_q_heads, 8);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.max_seq_len, 131072);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.dtype, DType::kBFloat16);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 106));
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.AttentionOf(0), Window(1024));
  EXPECT_EQ(config.AttentionOf(5), kFull);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.window_rope->theta, 1e4);
  wrapped["text_config"]["hidden_size"] = -1;
  EXPECT_THAT(ErrorOf(wrapped), HasSubstr("config.json: text_config: hidden_size: expected"));
  wrapped["text_config"] = 3;
  EXPECT_THAT(ErrorOf(wrapped), HasSubstr("text_config"));
}

TEST(DecoderFamiliesTest, Llama31) {
  const DecoderConfig config = Parsed(*PublicConfig("llama-3.1-8b"));
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_THAT(config.attention, IsEmpty());
  EXPECT_EQ(config.AttentionOf(31), kFull);
  EXPECT_EQ(config.qk_norm, QkNorm::kNone);
  EXPECT_EQ(config.activation, Activation::kSilu);
  EXPECT_EQ(config.names, LayerNames());
  EXPECT_EQ(config.attention_scale, std::nullopt);
}

TEST(DecoderFamiliesTest, MistralHasAWindowInAllLayersUnlessItIsNull) {
  const json mistral = *PublicConfig("mistral-7b");
  const DecoderConfig config = Parsed(mistral);
  ASSERT_EQ(config.attention.size(), 32u);
  EXPECT_THAT(config.attention, Each(Window(4096)));
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(Parsed(With(mistral, "sliding_window", nullptr)).AttentionOf(0), kFull);
  // Left out, it is the default of transformers.
  EXPECT_EQ(Parsed(Without(mistral, "sliding_window")).AttentionOf(0), Window(4096));
  EXPECT_EQ(Parsed(With(mistral, "sliding_window", 1)).AttentionOf(5), Window(1));
  for (const json& value :
       {json(0), json(-1), json("4096"), json(4096.5), json(int64_t{1} << 40)}) {
    EXPECT_THAT(ErrorOf(With(mistral, "sliding_window", value)),
                HasSubstr("config.json: sliding_window: expected an integer in [1, "));
  }
  const json types(std::vector<std::string>(32, "full_attention"));
  EXPECT_THAT(ErrorOf(With(mistral, "layer_types", types)),
              HasSubstr("layer_types: expected what sliding_window says of all layers"));
}

TEST(DecoderFamiliesTest, Qwen2HasBiasesOnItsInputsOnly) {
  const DecoderConfig config = Parsed(*PublicConfig("qwen2.5-7b"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_FALSE(config.mlp_bias);
  EXPECT_EQ(config.head_dim, 128);             // 3584 / 28
  EXPECT_THAT(config.attention, Each(kFull));  // a sliding_window that is not used
}

TEST(DecoderFamiliesTest, Qwen3NormsItsHeads) {
  const DecoderConfig config = Parsed(*PublicConfig("qwen3-8b"));
  EXPECT_EQ(config.qk_norm, QkNorm::kWeighted);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_TRUE(config.rope == (RopeConfig{.theta = 1e6}));
  EXPECT_EQ(Parsed(Without(*PublicConfig("qwen3-8b"), "head_dim")).head_dim, 128);
  const DecoderConfig biased = Parsed(With(Small("qwen3-8b"), "attention_bias", true));
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias);
}

TEST(DecoderFamiliesTest, WindowsOfQwenAreInTheLayersThatItSays) {
  json config = With(With(Small("qwen2.5-7b"), "use_sliding_window", true), "num_hidden_layers", 4);
  config["max_window_layers"] = 3;
  EXPECT_THAT(Parsed(config).attention, ElementsAre(kFull, kFull, kFull, Window(64)));
  config["max_window_layers"] = 0;
  EXPECT_THAT(Parsed(config).attention, Each(Window(64)));
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                           "full_attention"};
  EXPECT_THAT(Parsed(config).attention, ElementsAre(Window(64), kFull, Window(64), kFull));
  config["use_sliding_window"] = false;
  EXPECT_THAT(ErrorOf(config), HasSubstr("sliding_window: expected a number beside "
                                         "use_sliding_window, as layer_types has windows, got 64"));
  config["use_sliding_window"] = "yes";
  EXPECT_THAT(ErrorOf(config), HasSubstr("use_sliding_window: expected true or false"));
}

TEST(DecoderFamiliesTest, LayerTypesAreOneALayerAndKnown) {
  const json config = Small("qwen3-8b");
  const std::string expected =
      "config.json: layer_types: expected num_hidden_layers (2) times \"full_attention\" or "
      "\"sliding_attention\", got ";
  for (const json& types :
       {json{"full_attention"}, json{"full_attention", "full_attention", "full_attention"},
        json{"full_attention", "chunked_attention"}, json{"full_attention", 1}, json::array()}) {
    EXPECT_THAT(ErrorOf(With(config, "layer_types", types)), HasSubstr(expected)) << types;
  }
  EXPECT_THAT(ErrorOf(With(config, "layer_types", "full_attention")),
              HasSubstr("layer_types: expected an array"));
}

TEST(DecoderFamiliesTest, Llama4ChunksAndRotatesAllLayersButEveryFourth) {
  const DecoderConfig config = Parsed(Llama4());
  EXPECT_EQ(config.intermediate_size, 80);  // that of dense layers
  EXPECT_EQ(config.rope_pairs, RopePairs::kNeighbours);
  EXPECT_EQ(config.rope.theta, 500000);
  EXPECT_EQ(config.qk_norm, QkNorm::kPlain);
  EXPECT_EQ(config.temperature, (QueryTemperature{.attn_scale = 0.1f, .floor_scale = 32}));
  EXPECT_THAT(config.attention, ElementsAre(Chunk(16), Chunk(16), Chunk(16), kNoRope));
}

TEST(DecoderFamiliesTest, Llama4sListsSayWhichLayersChunkAndRotate) {
  json config = With(Llama4(), "no_rope_layer_interval", 2);
  EXPECT_THAT(Parsed(config).attention, ElementsAre(Chunk(16), kNoRope, Chunk(16), kNoRope));
  config["no_rope_layers"] = {0, 1, 1, 1, 0};  // one more than there are layers is legal
  EXPECT_THAT(Parsed(config).attention, ElementsAre(kNoRope, Chunk(16), Chunk(16), Chunk(16)));
  config["layer_types"] = {"chunked_attention", "full_attention", "chunked_attention",
                           "full_attention"};
  EXPECT_THAT(Parsed(config).attention,
              ElementsAre(LayerAttention{.chunk = 16, .rotates = false}, kFull, Chunk(16), kFull));
  EXPECT_THAT(
      ErrorOf(With(config, "no_rope_layers", {1, 1})),
      HasSubstr("no_rope_layers: expected 0 or 1 for each of num_hidden_layers (4) layers"));
  EXPECT_THAT(ErrorOf(With(config, "no_rope_layers", {1, 1, 2, 1})),
              HasSubstr("no_rope_layers: expected"));
  EXPECT_THAT(ErrorOf(With(config, "no_rope_layer_interval", 0)),
              HasSubstr("no_rope_layer_interval: expected an integer in [1, "));
  EXPECT_EQ(ErrorOf(With(config, "attention_chunk_size", nullptr)),
            "config.json: attention_chunk_size: expected a number, as there are chunked layers, "
            "got nothing");
}

TEST(DecoderFamiliesTest, Llama4WithoutNormsOrTemperature) {
  EXPECT_EQ(Parsed(With(Llama4(), "use_qk_norm", false)).qk_norm, QkNorm::kNone);
  EXPECT_EQ(Parsed(With(Llama4(), "attn_temperature_tuning", false)).temperature, std::nullopt);
  // Early files have a number.
  EXPECT_EQ(Parsed(With(Llama4(), "attn_temperature_tuning", 0)).temperature, std::nullopt);
  EXPECT_NE(Parsed(With(Llama4(), "attn_temperature_tuning", 4)).temperature, std::nullopt);
  EXPECT_THAT(ErrorOf(With(Llama4(), "floor_scale", 0)),
              HasSubstr("floor_scale: expected a number in [1, "));
  EXPECT_THAT(ErrorOf(With(Llama4(), "attn_temperature_tuning", "on")),
              HasSubstr("attn_temperature_tuning: expected true or false"));
}

TEST(DecoderFamiliesTest, MixturesOfExpertsAreRefusedByName) {
  const std::string expected =
      "config.json: moe_layers: expected [], as mixtures of experts are not supported, got ";
  EXPECT_EQ(ErrorOf(With(Llama4(), "moe_layers", {1, 3})), expected + "[1,3]");
  EXPECT_EQ(ErrorOf(Without(Llama4(), "moe_layers")), expected + "nothing");
  json sparse = Without(Llama4(), "moe_layers");
  sparse["interleave_moe_layer_step"] = 4;
  EXPECT_EQ(ErrorOf(sparse), expected + "nothing");
  sparse["interleave_moe_layer_step"] = 5;  // past the last layer
  EXPECT_EQ(ErrorOf(sparse), "no error");
  EXPECT_THAT(ErrorOf(Without(Llama4(), "intermediate_size_mlp")),
              HasSubstr("intermediate_size_mlp: expected an integer"));
}

TEST(DecoderFamiliesTest, Gemma2) {
  const DecoderConfig config = Parsed(*PublicConfig("gemma-2-2b"));
  EXPECT_TRUE(config.tie_word_embeddings);  // by default
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.norm_weight, NormWeight::kOnePlus);
  EXPECT_EQ(config.names, kNormsBeforeAndAfter);
  EXPECT_EQ(config.embedding_scale, std::sqrt(config.hidden_size));
  EXPECT_TRUE(config.rounds_embedding_scale);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);  // 256^-0.5
  EXPECT_EQ(config.attention_softcap, 50);
  EXPECT_EQ(config.logit_softcap, 30);
  ASSERT_EQ(config.attention.size(), 26u);
  EXPECT_EQ(config.AttentionOf(0), Window(4096));
  EXPECT_EQ(config.AttentionOf(1), kFull);
  EXPECT_EQ(config.AttentionOf(24), Window(4096));
}

TEST(DecoderFamiliesTest, WhatGemma2LeavesOutOrSetsToNull) {
  const json gemma = Small("gemma-2-2b");
  for (const char* name : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    const DecoderConfig null = Parsed(With(gemma, name, nullptr));
    EXPECT_FALSE(null.attention_softcap.has_value() && null.logit_softcap.has_value()) << name;
    const DecoderConfig absent = Parsed(Without(gemma, name));
    EXPECT_EQ(absent.attention_softcap, 50);
    EXPECT_EQ(absent.logit_softcap, 30);
    EXPECT_THAT(ErrorOf(With(gemma, name, 0)),
                HasSubstr(std::string(name) + ": expected a number"));
  }
  EXPECT_EQ(Parsed(Without(gemma, "query_pre_attn_scalar")).attention_scale, 1.0 / 16);
  EXPECT_EQ(Parsed(Without(gemma, "hidden_activation")).activation, Activation::kGeluTanh);
  EXPECT_EQ(Parsed(Without(gemma, "head_dim")).head_dim, 256);
  EXPECT_EQ(Parsed(With(gemma, "sliding_window", nullptr)).AttentionOf(0), kFull);
  EXPECT_EQ(Parsed(With(gemma, "layer_types", {"full_attention", "sliding_attention"})).attention,
            (std::vector<LayerAttention>{kFull, Window(64)}));
  EXPECT_EQ(ErrorOf(With(gemma, "hidden_activation", "gelu")),
            "config.json: hidden_activation: expected \"silu\" or \"gelu_pytorch_tanh\", got "
            "\"gelu\"");
  EXPECT_THAT(ErrorOf(With(gemma, "use_bidirectional_attention", true)),
              HasSubstr("use_bidirectional_attention: expected false or null, got true"));
  EXPECT_THAT(ErrorOf(With(gemma, "query_pre_attn_scalar", -256)),
              HasSubstr("query_pre_attn_scalar: expected a number in ["));
}

// google/gemma-3-1b-it, without what only other tasks use.
json Gemma3() {
  return json::parse(R"({
      "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
      "attn_logit_softcapping": null, "bos_token_id": 2, "cache_implementation": "hybrid",
      "eos_token_id": [1, 106], "final_logit_softcapping": null, "head_dim": 256,
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "intermediate_size": 6912,
      "max_position_embeddings": 32768, "model_type": "gemma3_text", "num_attention_heads": 4,
      "num_hidden_layers": 26, "num_key_value_heads": 1, "pad_token_id": 0,
      "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
      "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
      "sliding_window_pattern": 6, "torch_dtype": "bfloat16", "vocab_size": 262144})");
}

TEST(DecoderFamiliesTest, Gemma3HasFiveLayersOfAWindowToAFullOneAndTwoRopes) {
  const DecoderConfig config = Parsed(Gemma3());
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.qk_norm, QkNorm::kWeighted);
  EXPECT_EQ(config.norm_weight, NormWeight::kOnePlus);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.attention_softcap, std::nullopt);
  EXPECT_EQ(config.logit_softcap, std::nullopt);
  ASSERT_EQ(config.attention.size(), 26u);
  for (int layer = 0; layer < 26; ++layer) {
    EXPECT_EQ(config.AttentionOf(layer), layer % 6 == 5 ? kFull : Window(512)) << layer;
    EXPECT_EQ(config.RopeOf(layer).theta, layer % 6 == 5 ? 1e6 : 1e4) << layer;
  }
  json other = Gemma3();
  other["num_hidden_layers"] = 2;
  other["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_THAT(Parsed(other).attention, ElementsAre(kFull, Window(512)));
  EXPECT_THAT(ErrorOf(With(other, "sliding_window", nullptr)),
              HasSubstr("sliding_window: expected a number, as there are layers with a window"));
  EXPECT_THAT(ErrorOf(With(other, "use_bidirectional_attention", true)),
              HasSubstr("use_bidirectional_attention: expected false"));
  EXPECT_THAT(ErrorOf(With(Gemma3(), "sliding_window_pattern", 0)),
              HasSubstr("sliding_window_pattern: expected an integer in [1, "));
}

// Qwen/Qwen3-30B-A3B, without what only other tasks use.
json Qwen3Moe() {
  return json::parse(R"({
      "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "bos_token_id": 151643,
      "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 2048, "intermediate_size": 6144, "max_position_embeddings": 40960,
      "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
      "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
      "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
      "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "use_sliding_window": false, "vocab_size": 151936})");
}

TEST(DecoderFamiliesTest, Qwen3MoeHasExpertsInEveryLayer) {
  const DecoderConfig config = Parsed(Qwen3Moe());
  EXPECT_EQ(config.qk_norm, QkNorm::kWeighted);
  ASSERT_TRUE(config.experts.has_value());
  EXPECT_EQ(*config.experts,
            (ExpertsConfig{.num_experts = 128, .num_chosen = 8, .inner_size = 768}));
  EXPECT_FALSE(Parsed(Without(Qwen3Moe(), "norm_topk_prob")).experts->normalises);
  json renamed = With(Without(Qwen3Moe(), "num_experts"), "num_local_experts", 64);
  EXPECT_EQ(Parsed(renamed).experts->num_experts, 64);
  EXPECT_THAT(ErrorOf(With(renamed, "num_experts", 64)),
              HasSubstr("num_experts: expected nothing beside num_local_experts"));
  EXPECT_THAT(ErrorOf(With(Qwen3Moe(), "num_experts_per_tok", 129)),
              HasSubstr("num_experts_per_tok: expected at most num_experts (128), got 129"));
  const DecoderConfig every_second = Parsed(With(Qwen3Moe(), "decoder_sparse_step", 2));
  EXPECT_FALSE(every_second.HasExperts(0));
  EXPECT_TRUE(every_second.HasExperts(1));
  const DecoderConfig some = Parsed(With(Qwen3Moe(), "mlp_only_layers", {0, 47}));
  EXPECT_FALSE(some.HasExperts(0) || some.HasExperts(47));
  EXPECT_TRUE(some.HasExperts(1));
  EXPECT_THAT(ErrorOf(Without(Qwen3Moe(), "num_experts")), HasSubstr("num_experts: expected"));
  EXPECT_THAT(ErrorOf(With(Qwen3Moe(), "moe_intermediate_size", 1 << 20)),
              HasSubstr("moe_intermediate_size: expected at most"));
}

// openai/gpt-oss-20b with weights that are not quantised.
json GptOss() {
  return json::parse(R"({
      "architectures": ["GptOssForCausalLM"], "attention_bias": true, "eos_token_id": 200002,
      "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
      "initial_context_length": 4096, "intermediate_size": 2880,
      "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 64,
      "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
      "num_local_experts": 32, "output_router_logits": false, "pad_token_id": 199999,
      "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
      "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
      "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
      "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 201088})");
}

TEST(DecoderFamiliesTest, GptOssHasSinksAndExpertsWithBiases) {
  const DecoderConfig config = Parsed(GptOss());
  EXPECT_TRUE(config.sinks);
  EXPECT_TRUE(config.qkv_bias && config.o_bias);
  ASSERT_TRUE(config.experts.has_value());
  EXPECT_EQ(*config.experts, (ExpertsConfig{.num_experts = 32,
                                            .num_chosen = 4,
                                            .inner_size = 2880,
                                            .activation = Activation::kClampedSwiglu,
                                            .router_bias = true,
                                            .expert_bias = true,
                                            .files = ExpertFiles::kStacked,
                                            .names = {.router = "router"}}));
  ASSERT_EQ(config.attention.size(), 24u);
  EXPECT_EQ(config.AttentionOf(0), Window(128));
  EXPECT_EQ(config.AttentionOf(1), kFull);
  EXPECT_EQ(config.rope.theta, 150000);
  ASSERT_TRUE(std::holds_alternative<YarnRope>(config.rope.scaling));
  EXPECT_FALSE(std::get<YarnRope>(config.rope.scaling).truncate);
  EXPECT_THAT(ErrorOf(With(GptOss(), "swiglu_limit", 5)), HasSubstr("swiglu_limit: expected 7"));
  EXPECT_THAT(ErrorOf(With(GptOss(), "hidden_act", "gelu_pytorch_tanh")),
              HasSubstr("hidden_act: expected \"silu\""));
  EXPECT_THAT(ErrorOf(With(GptOss(), "num_experts_per_tok", 33)),
              HasSubstr("num_experts_per_tok: expected at most num_local_experts (32), got 33"));
  EXPECT_THAT(ErrorOf(With(GptOss(), "quantization_config", {{"quant_method", "mxfp4"}})),
              HasSubstr("quantization_config"));
}

TEST(DecoderFamiliesTest, Phi3HasFusedTensorsAndAWindow) {
  json phi = Minimal("Phi3ForCausalLM");
  phi["original_max_position_embeddings"] = 512;
  phi["rope_scaling"] = nullptr;
  EXPECT_TRUE(Parsed(phi).names.is_fused);
  EXPECT_THAT(Parsed(phi).attention, IsEmpty());
  EXPECT_THAT(Parsed(With(phi, "sliding_window", 2047)).attention, Each(Window(2047)));
  EXPECT_THAT(Parsed(With(phi, "sliding_window", nullptr)).attention, IsEmpty());
  EXPECT_EQ(Parsed(With(phi, "partial_rotary_factor", 0.75)).rotary_dim(), 12);
  EXPECT_THAT(ErrorOf(With(phi, "partial_rotary_factor", 0.7)),
              HasSubstr("partial_rotary_factor: expected 1, or an even part of head_dim (16)"));
  EXPECT_THAT(ErrorOf(With(phi, "rope_scaling", {{"type", "longrope"}})),
              HasSubstr("got \"longrope\""));
  EXPECT_THAT(ErrorOf(With(phi, "rope_scaling", {{"type", "linear"}, {"factor", 2}})),
              HasSubstr("rope_scaling: expected no scaling"));
  EXPECT_THAT(ErrorOf(With(phi, "attention_bias", true)), HasSubstr("attention_bias"));
}

TEST(DecoderFamiliesTest, RejectsAPartialRotationInFamiliesThatRotateWholeHeads) {
  for (const char* const name : {"LlamaForCausalLM", "GraniteForCausalLM", "Qwen3ForCausalLM",
                                 "Ministral3ForCausalLM", "Gemma3ForCausalLM"}) {
    json config = Minimal(name);
    EXPECT_THAT(ErrorOf(With(config, "partial_rotary_factor", 0.5)),
                HasSubstr("partial_rotary_factor: expected 1, got 0.5"))
        << name;
    config["rope_parameters"] = {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}};
    EXPECT_THAT(ErrorOf(config), HasSubstr("partial_rotary_factor: expected 1, got 0.5")) << name;
  }
}

TEST(DecoderFamiliesTest, GraniteHasFourFactors) {
  json granite = Minimal("GraniteForCausalLM");
  EXPECT_EQ(Parsed(granite).embedding_scale, 1);
  granite["embedding_multiplier"] = 12.0;
  granite["residual_multiplier"] = 0.22;
  granite["logits_scaling"] = 8.0;
  granite["attention_multiplier"] = 0.0078125;
  const DecoderConfig config = Parsed(granite);
  EXPECT_EQ(config.embedding_scale, 12);
  EXPECT_FALSE(config.rounds_embedding_scale);
  EXPECT_EQ(config.residual_scale, 0.22);
  EXPECT_EQ(config.logit_divisor, 8);
  EXPECT_EQ(config.attention_scale, 0.0078125);
  for (const json& value : {json(0), json(-1), json("8")}) {
    EXPECT_THAT(ErrorOf(With(granite, "logits_scaling", value)), HasSubstr("logits_scaling"));
  }
}

TEST(DecoderFamiliesTest, TheFirstGemmaHasNormsBeforeSublayersOnly) {
  json gemma = Minimal("GemmaForCausalLM");
  gemma["hidden_act"] = "gelu";  // of published files; it means the tanh form
  gemma["hidden_activation"] = nullptr;
  gemma["head_dim"] = nullptr;
  const DecoderConfig config = Parsed(gemma);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.activation, Activation::kGeluTanh);
  EXPECT_EQ(config.norm_weight, NormWeight::kOnePlus);
  EXPECT_EQ(config.names, LayerNames());
  EXPECT_EQ(config.names.mlp_norm, "post_attention_layernorm.weight");
  EXPECT_EQ(config.attention_scale, std::nullopt);
  EXPECT_EQ(config.embedding_scale, 8);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(Parsed(With(gemma, "tie_word_embeddings", false)).tie_word_embeddings);
  EXPECT_EQ(ErrorOf(With(gemma, "hidden_act", "silu")),
            "config.json: hidden_act: expected \"gelu\" or \"gelu_pytorch_tanh\", got \"silu\"");
}

TEST(DecoderFamiliesTest, SeedOssHasBiasesOnItsInputs) {
  const DecoderConfig config = Parsed(Minimal("SeedOssForCausalLM"));
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_TRUE(Parsed(With(Minimal("SeedOssForCausalLM"), "attention_out_bias", true)).o_bias);
}

TEST(DecoderFamiliesTest, Ministral3TempersAllLayersByTheOriginalLength) {
  json ministral = Minimal("Ministral3ForCausalLM");
  EXPECT_EQ(ErrorOf(ministral), "config.json: rope_parameters: expected an object, got nothing");
  ministral["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(Parsed(ministral).temperature, std::nullopt);
  ministral["rope_parameters"] = {{"rope_type", "yarn"},
                                  {"type", "yarn"},
                                  {"factor", 16.0},
                                  {"rope_theta", 1e6},
                                  {"max_position_embeddings", 512},
                                  {"llama_4_scaling_beta", 0.1},
                                  {"original_max_position_embeddings", 32}};
  const DecoderConfig config = Parsed(ministral);
  EXPECT_EQ(config.temperature, (QueryTemperature{.floor_scale = 32, .position_offset = 0}));
  EXPECT_TRUE(config.tempers_all_layers);
  EXPECT_THAT(config.attention, IsEmpty());
  ministral["architectures"] = {"MistralForCausalLM"};
  EXPECT_THAT(ErrorOf(ministral), HasSubstr("\"llama_4_scaling_beta\" is not supported"));
}

TEST(DecoderFamiliesTest, TheTextModelOfQwen3VlIgnoresTheAxesOfImages) {
  json text = Minimal("Qwen3ForCausalLM");
  text.erase("architectures");
  text["model_type"] = "qwen3_vl_text";
  text["rope_scaling"] = {
      {"rope_type", "default"}, {"mrope_interleaved", true}, {"mrope_section", {24, 20, 20}}};
  const DecoderConfig config = Parsed(text);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.qk_norm, QkNorm::kWeighted);
  EXPECT_EQ(config.rope.theta, 5e5);
  EXPECT_THAT(ErrorOf(With(text, "use_sliding_window", true)),
              HasSubstr("use_sliding_window: expected false or null, got true"));
  text["architectures"] = {"Qwen3ForCausalLM"};
  EXPECT_THAT(ErrorOf(text), HasSubstr("is not supported"));
}

TEST(DecoderFamiliesTest, EveryFamilyScalesItsRotationLikeEveryOther) {
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 4.0},
                     {"rope_theta", 1e6},
                     {"original_max_position_embeddings", 64}};
  std::vector<json> configs = {Llama4()};
  for (const std::string_view name : PublicConfigNames()) {
    configs.push_back(InSmall(*PublicConfig(name)));
  }
  for (json config : configs) {
    config.erase("rope_scaling");
    config.erase("rope_theta");
    config["rope_parameters"] = yarn;
    const RopeConfig rope = Parsed(config).rope;
    EXPECT_EQ(rope.theta, 1e6);
    ASSERT_TRUE(std::holds_alternative<YarnRope>(rope.scaling)) << config;
    EXPECT_EQ(std::get<YarnRope>(rope.scaling).original_max_seq_len, 64);
  }
}

}  // namespace
}  // namespace reprise
