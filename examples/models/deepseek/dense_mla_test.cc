// The model through an engine, absorbed and not, against the plain form.

#include "reprise/models/deepseek/dense_mla.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/deepseek/mla_model.h"
#include "reprise/models/deepseek/mla_weights.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using testing::HasSubstr;

MlaConfig TinyConfig() {
  MlaConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 3;
  config.q_lora_rank = 20;
  config.kv_lora_rank = 24;
  config.qk_nope_head_dim = 16;
  config.qk_rope_head_dim = 8;
  config.v_head_dim = 12;
  config.vocab_size = 50;
  config.max_seq_len = 64;
  config.rms_norm_eps = 1e-5;
  config.attention_scale = 1 / std::sqrt(24.0);
  return config;
}

std::unique_ptr<MlaModel> Made(const MlaConfig& config, int max_absorbed_query_len) {
  auto weights = MakeRandomMlaWeights(config, {.dtype = DType::kFloat32, .seed = 3});
  CHECK(weights.ok()) << weights.status();
  auto model = MlaModel::Create(config, *std::move(weights),
                                {.max_absorbed_query_len = max_absorbed_query_len});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

constexpr int kPrompt = 37;

std::vector<int32_t> Tokens(const MlaConfig& config) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back((i * i * 7 + 3) % config.vocab_size);
  return tokens;
}

// The logits before each forced token of one sequence, whose prompt is computed in chunks.
at::Tensor Logits(MlaModel& model, int prefill_chunk) {
  const std::vector<int32_t> tokens = Tokens(model.config());
  const Request request = {.prompt = {tokens.begin(), tokens.begin() + kPrompt},
                           .forced_tokens = {tokens.begin() + kPrompt, tokens.end()}};
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 2,
                                                 .max_num_tokens = 40,
                                                 .max_steps_in_flight = 1,
                                                 .cache = {.block_size = 4}},
                                      .scheduler = {.prefill_chunk = prefill_chunk}});
  CHECK(engine.ok()) << engine.status();
  LogitsRecorder recorder(1);
  const absl::Status status = Generate(**engine, {request}, [&](int i, const TokenEvent& event) {
    return recorder.Record(i, *LogitsOf(**engine, event));
  });
  CHECK(status.ok()) << status;
  return at::tensor(std::vector<float>(recorder.rows(0).begin(), recorder.rows(0).end()))
      .view({recorder.num_rows(0), model.config().vocab_size});
}

void ExpectDense(const MlaConfig& config) {
  constexpr int kNeverAbsorbed = 0;
  constexpr int kAlwaysAbsorbed = 1000;
  for (const int max_absorbed_query_len : {kNeverAbsorbed, 8, kAlwaysAbsorbed}) {
    const std::unique_ptr<MlaModel> model = Made(config, max_absorbed_query_len);
    const std::vector<int32_t> tokens = Tokens(config);
    const at::Tensor expected =
        DenseLogits(*model, tokens).narrow(0, kPrompt - 1, std::ssize(tokens) - kPrompt);
    for (const int chunk : {0, 3, 16}) {
      SCOPED_TRACE(absl::StrCat("absorbed up to ", max_absorbed_query_len, ", chunks of ", chunk));
      const at::Tensor got = Logits(*model, chunk);
      ASSERT_EQ(got.sizes(), expected.sizes());
      EXPECT_LT((got - expected).abs().max().item<double>(),
                1e-4 * expected.abs().max().item<double>());
    }
  }
}

TEST(DenseMlaTest, ComputesWhatThePlainFormComputes) { ExpectDense(TinyConfig()); }

TEST(DenseMlaTest, QueriesWithoutALatent) {
  MlaConfig config = TinyConfig();
  config.q_lora_rank.reset();
  ExpectDense(config);
}

TEST(DenseMlaTest, AnyNumberOfHeadsAndAnySizes) {
  for (const auto& [heads, latent, nope, rope, v] :
       std::vector<std::array<int, 5>>{{1, 8, 4, 2, 6}, {16, 64, 32, 16, 32}, {5, 10, 7, 6, 9}}) {
    SCOPED_TRACE(absl::StrCat(heads, " heads, latent ", latent));
    MlaConfig config = TinyConfig();
    config.num_heads = heads;
    config.kv_lora_rank = latent;
    config.qk_nope_head_dim = nope;
    config.qk_rope_head_dim = rope;
    config.v_head_dim = v;
    ExpectDense(config);
  }
}

TEST(DenseMlaTest, TheSizesOfDeepSeekV2sHeads) {
  MlaConfig config = TinyConfig();
  config.num_layers = 1;
  config.num_heads = 2;
  config.kv_lora_rank = 512;
  config.qk_nope_head_dim = 128;
  config.qk_rope_head_dim = 64;
  config.v_head_dim = 128;
  config.attention_scale = 1 / std::sqrt(192.0);
  ExpectDense(config);
}

TEST(DenseMlaTest, ScaledRotationsAndATiedHead) {
  MlaConfig config = TinyConfig();
  config.tie_word_embeddings = true;
  config.rope.scaling = LinearRope{.factor = 4};
  ExpectDense(config);
  config.rope = {
      .theta = 500,
      .scaling = YarnRope{
          .factor = 4, .attention_factor = 1.3, .beta_fast = 4, .original_max_seq_len = 16}};
  config.attention_scale = 0.3;
  ExpectDense(config);
}

TEST(DenseMlaTest, BiasesOfAllProjectionsThatMayHaveThem) {
  MlaConfig config = TinyConfig();
  config.attention_bias = true;
  config.mlp_bias = true;
  ExpectDense(config);
  config.q_lora_rank.reset();
  ExpectDense(config);
}

TEST(DenseMlaTest, RefusesWeightsAndPositionsThatDoNotFit) {
  MlaConfig config = TinyConfig();
  auto weights = MakeRandomMlaWeights(config, {});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto error = [&](const MlaModelOptions& options) {
    return std::string(MlaModel::Create(config, *weights, options).status().message());
  };
  for (const int max_position : {0, -1, 65}) {
    EXPECT_THAT(error({.max_position = max_position}),
                HasSubstr("max_position must be in [1, 64]"));
  }
  config.vocab_size = 51;
  EXPECT_THAT(error({}), HasSubstr("embedding must be [51, 48]"));
  config.vocab_size = 50;
  config.num_layers = 3;
  EXPECT_THAT(error({}), HasSubstr("layers must be num_layers: expected 3, got 2"));
  config = TinyConfig();
  config.q_lora_rank.reset();
  EXPECT_THAT(error({}),
              HasSubstr("q_a must not be there, as the config does without: expected none"));
  config = TinyConfig();
  config.kv_lora_rank = 25;
  EXPECT_THAT(error({}), HasSubstr("kv_a must be [33, 48]"));
  config = TinyConfig();
  config.v_head_dim = 13;
  EXPECT_THAT(error({}), HasSubstr("kv_b must be [87, 24]"));
}

}  // namespace
}  // namespace reprise
