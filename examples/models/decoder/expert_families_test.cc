// The families whose feed-forward is a mixture of experts, as their published files have them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/models/decoder/decoder_config.h"
#include "reprise/models/decoder/family_configs.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertFamiliesTest, MixtralHasNamesOfItsOwn) {
  json mixtral = Minimal("MixtralForCausalLM");
  mixtral.update(
      {{"num_local_experts", 8}, {"num_experts_per_tok", 2}, {"sliding_window", nullptr}});
  const DecoderConfig config = Parsed(mixtral);
  EXPECT_EQ(*config.experts,
            (ExpertsConfig{
                .num_experts = 8,
                .num_chosen = 2,
                .inner_size = 96,
                .names = {.prefix = "block_sparse_moe.", .gate = "w1", .up = "w3", .down = "w2"}}));
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_FALSE(config.HasDenseLayer());
  EXPECT_THAT(ErrorOf(With(mixtral, "num_local_experts", nullptr)),
              HasSubstr("num_local_experts: expected"));
  mixtral.update({{"num_local_experts", 4096}, {"num_hidden_layers", 4096}});
  EXPECT_EQ(ErrorOf(mixtral),
            "config.json: num_hidden_layers times the number of experts: expected at most 262144, "
            "got 4096 * 4096");
}

TEST(ExpertFamiliesTest, Qwen2MoeHasASharedExpertBehindAGate) {
  json qwen = Minimal("Qwen2MoeForCausalLM");
  qwen.update({{"num_experts", 60},
               {"num_experts_per_tok", 4},
               {"moe_intermediate_size", 32},
               {"shared_expert_intermediate_size", 128},
               {"mlp_only_layers", {0}}});
  const DecoderConfig config = Parsed(qwen);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_THAT(config.is_dense, ElementsAre(true, false, false));
  EXPECT_TRUE(config.HasDenseLayer());
  EXPECT_EQ(*config.experts, (ExpertsConfig{.num_experts = 60,
                                            .num_chosen = 4,
                                            .inner_size = 32,
                                            .normalises = false,
                                            .shared_inner_size = 128,
                                            .shared_gate = true,
                                            .names = {.shared = "shared_expert"}}));
  EXPECT_THAT(ErrorOf(With(qwen, "shared_expert_intermediate_size", 0)),
              HasSubstr("shared_expert_intermediate_size: expected"));
}

TEST(ExpertFamiliesTest, Qwen2MoeRequiresLayerTypesForItsWindows) {
  json qwen = Minimal("Qwen2MoeForCausalLM");
  qwen.update({{"num_experts", 8},
               {"moe_intermediate_size", 32},
               {"shared_expert_intermediate_size", 32},
               {"use_sliding_window", true},
               {"sliding_window", 16},
               {"max_window_layers", 1}});
  EXPECT_EQ(ErrorOf(qwen),
            "config.json: layer_types: expected a list beside use_sliding_window, got nothing");
  qwen["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  const DecoderConfig config = Parsed(qwen);
  EXPECT_EQ(config.AttentionOf(0), LayerAttention());
  EXPECT_EQ(config.AttentionOf(1), LayerAttention{.window = 16});
  EXPECT_FALSE(Parsed(With(qwen, "qkv_bias", false)).qkv_bias);
  EXPECT_EQ(config.experts->block_columns, 1);
  qwen["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(Parsed(qwen).experts->block_columns, 128);
}

TEST(ExpertFamiliesTest, Qwen3MoeHasWindowsInAllLayersOrInNone) {
  json qwen = Minimal("Qwen3MoeForCausalLM");
  qwen.update({{"num_experts", 8},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 32},
               {"sliding_window", 16},
               {"max_window_layers", 2}});
  EXPECT_EQ(Parsed(qwen).AttentionOf(2), LayerAttention());
  qwen["use_sliding_window"] = true;
  const DecoderConfig config = Parsed(qwen);
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(config.AttentionOf(layer), LayerAttention{.window = 16}) << layer;
  }
}

TEST(ExpertFamiliesTest, OlmoeNormalisesAllHeadsTogether) {
  json olmoe = Minimal("OlmoeForCausalLM");
  olmoe.update({{"num_experts", 64}, {"clip_qkv", nullptr}});
  const DecoderConfig config = Parsed(olmoe);
  EXPECT_EQ(config.qk_norm, QkNorm::kAllHeads);
  EXPECT_EQ(config.experts->num_chosen, 8);
  EXPECT_EQ(config.experts->inner_size, 96);
  EXPECT_FALSE(config.experts->normalises);
  EXPECT_THAT(ErrorOf(With(olmoe, "clip_qkv", 8)), HasSubstr("clip_qkv: expected null, got 8"));
}

json Glm4Moe() {
  json glm = Minimal("Glm4MoeForCausalLM");
  glm.update({{"attention_bias", true},
              {"first_k_dense_replace", 1},
              {"head_dim", 32},
              {"moe_intermediate_size", 24},
              {"n_group", 1},
              {"n_routed_experts", 16},
              {"n_shared_experts", 2},
              {"num_experts_per_tok", 4},
              {"partial_rotary_factor", 0.5},
              {"routed_scaling_factor", 2.5},
              {"topk_group", 1},
              {"use_qk_norm", true}});
  return glm;
}

TEST(ExpertFamiliesTest, Glm4MoeRotatesHalfOfEachHead) {
  const DecoderConfig config = Parsed(Glm4Moe());
  EXPECT_EQ(config.rotary_dim(), 16);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_EQ(config.qk_norm, QkNorm::kWeighted);
  EXPECT_THAT(config.is_dense, ElementsAre(true, false, false));
  EXPECT_EQ(*config.experts, (ExpertsConfig{.num_experts = 16,
                                            .num_chosen = 4,
                                            .inner_size = 24,
                                            .scores = RouterScores::kSigmoid,
                                            .choice_bias = true,
                                            .group_score = GroupScore::kTopTwo,
                                            .scale = 2.5,
                                            .shared_inner_size = 48}));
  json without = Glm4Moe();
  without.erase("partial_rotary_factor");
  EXPECT_EQ(Parsed(without).rotary_dim(), 16);
  EXPECT_EQ(Parsed(With(Glm4Moe(), "use_qk_norm", false)).qk_norm, QkNorm::kNone);
  EXPECT_THAT(ErrorOf(With(Glm4Moe(), "n_group", 3)), HasSubstr("config.json: "));
  EXPECT_THAT(ErrorOf(With(Glm4Moe(), "scoring_func", "softmax")),
              HasSubstr("scoring_func: expected \"sigmoid\""));
  EXPECT_THAT(ErrorOf(With(Glm4Moe(), "moe_layer_freq", 2)), HasSubstr("moe_layer_freq"));
}

json Deepseek(const char* class_name) {
  json config = Minimal(class_name);
  config.update({{"kv_lora_rank", 32},
                 {"q_lora_rank", nullptr},
                 {"qk_nope_head_dim", 16},
                 {"qk_rope_head_dim", 8},
                 {"v_head_dim", 16},
                 {"moe_intermediate_size", 24},
                 {"n_routed_experts", 16},
                 {"n_shared_experts", 2},
                 {"num_experts_per_tok", 4},
                 {"first_k_dense_replace", 2}});
  return config;
}

TEST(ExpertFamiliesTest, DeepseekV2ChoosesBySoftmaxWithAndWithoutGroups) {
  const json lite = Deepseek("DeepseekV2ForCausalLM");
  const DecoderConfig config = Parsed(lite);
  EXPECT_TRUE(config.latent.has_value());
  EXPECT_THAT(config.is_dense, ElementsAre(true, true, false));
  EXPECT_EQ(*config.experts, (ExpertsConfig{.num_experts = 16,
                                            .num_chosen = 4,
                                            .inner_size = 24,
                                            .normalises = false,
                                            .shared_inner_size = 48}));
  json grouped = lite;
  grouped.update({{"topk_method", "group_limited_greedy"},
                  {"n_group", 8},
                  {"topk_group", 3},
                  {"routed_scaling_factor", 16.0}});
  const DecoderConfig of_groups = Parsed(grouped);
  EXPECT_EQ(of_groups.experts->num_groups, 8);
  EXPECT_EQ(of_groups.experts->num_chosen_groups, 3);
  EXPECT_EQ(of_groups.experts->group_score, GroupScore::kMax);
  EXPECT_EQ(of_groups.experts->scale, 16);
  grouped["topk_method"] = "greedy";  // does not look at groups
  EXPECT_EQ(Parsed(grouped).experts->num_groups, 1);
  EXPECT_EQ(Parsed(With(lite, "n_routed_experts", nullptr)).experts, std::nullopt);
  EXPECT_THAT(ErrorOf(With(lite, "topk_method", "noaux_tc")), HasSubstr("topk_method: expected"));
  EXPECT_THAT(ErrorOf(With(lite, "norm_topk_prob", true)), HasSubstr("norm_topk_prob"));
  EXPECT_THAT(ErrorOf(With(lite, "num_experts_per_tok", 17)),
              HasSubstr("num_experts_per_tok: expected at most n_routed_experts (16), got 17"));
  EXPECT_THAT(ErrorOf(With(lite, "n_shared_experts", 1 << 12)), HasSubstr("no error"));
}

TEST(ExpertFamiliesTest, DeepseekV3ChoosesBySigmoidAndABias) {
  json v3 = Deepseek("DeepseekV3ForCausalLM");
  v3.update({{"n_group", 4}, {"topk_group", 2}, {"num_nextn_predict_layers", 1}});
  const DecoderConfig config = Parsed(v3);
  EXPECT_EQ(config.num_prediction_layers, 1);
  EXPECT_EQ(*config.experts, (ExpertsConfig{.num_experts = 16,
                                            .num_chosen = 4,
                                            .inner_size = 24,
                                            .scores = RouterScores::kSigmoid,
                                            .choice_bias = true,
                                            .num_groups = 4,
                                            .num_chosen_groups = 2,
                                            .group_score = GroupScore::kTopTwo,
                                            .scale = 2.5,
                                            .shared_inner_size = 48}));
  EXPECT_THAT(ErrorOf(With(v3, "rope_interleave", false)), HasSubstr("rope_interleave"));
  EXPECT_THAT(ErrorOf(With(v3, "topk_group", 5)), HasSubstr("config.json: "));
  EXPECT_THAT(ErrorOf(With(v3, "n_group", 5)), HasSubstr("config.json: "));
  EXPECT_THAT(ErrorOf(With(v3, "partial_rotary_factor", 0.5)),
              HasSubstr("partial_rotary_factor: expected 1"));
  EXPECT_THAT(ErrorOf(With(v3, "quantization_config", {{"quant_method", "fp8"}})),
              HasSubstr("quantization"));
}

}  // namespace
}  // namespace reprise
