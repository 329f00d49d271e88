// The model through an engine, absorbed and not, against the plain form.

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
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/dense_decoder.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using testing::HasSubstr;

DecoderConfig TinyConfig() {
  DecoderConfig config;
  config.hidden_size = 48;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_q_heads = 3;
  config.latent =
      LatentAttention{.q_rank = 20, .kv_rank = 24, .nope_dim = 16, .rope_dim = 8, .v_dim = 12};
  config.rope_pairs = RopePairs::kNeighbours;
  config.vocab_size = 50;
  config.max_seq_len = 64;
  config.rms_norm_eps = 1e-5;
  config.attention_scale = 1 / std::sqrt(24.0);
  return config;
}

std::unique_ptr<DecoderModel> Made(const DecoderConfig& config, int max_absorbed_query_len) {
  auto weights =
      MakeRandomWeights(config, {.dtype = DType::kFloat32, .seed = 3}, RandomSpread::kLively);
  CHECK(weights.ok()) << weights.status();
  auto model = DecoderModel::Create(config, *std::move(weights),
                                    {.max_absorbed_query_len = max_absorbed_query_len});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

constexpr int kPrompt = 37;

std::vector<int32_t> Tokens(const DecoderConfig& config) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 50; ++i) tokens.push_back((i * i * 7 + 3) % config.vocab_size);
  return tokens;
}

// The logits before each forced token of one sequence, whose prompt is computed in chunks.
at::Tensor Logits(DecoderModel& model, int prefill_chunk) {
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

void ExpectDense(const DecoderConfig& config) {
  constexpr int kNeverAbsorbed = 0;
  constexpr int kAlwaysAbsorbed = 1000;
  for (const int max_absorbed_query_len : {kNeverAbsorbed, 8, kAlwaysAbsorbed}) {
    const std::unique_ptr<DecoderModel> model = Made(config, max_absorbed_query_len);
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

TEST(LatentAttentionTest, ComputesWhatThePlainFormComputes) { ExpectDense(TinyConfig()); }

TEST(LatentAttentionTest, QueriesWithoutALatent) {
  DecoderConfig config = TinyConfig();
  config.latent->q_rank.reset();
  ExpectDense(config);
}

TEST(LatentAttentionTest, AnyNumberOfHeadsAndAnySizes) {
  for (const auto& [heads, latent, nope, rope, v] :
       std::vector<std::array<int, 5>>{{1, 8, 4, 2, 6}, {16, 64, 32, 16, 32}, {5, 10, 7, 6, 9}}) {
    SCOPED_TRACE(absl::StrCat(heads, " heads, latent ", latent));
    DecoderConfig config = TinyConfig();
    config.num_q_heads = heads;
    config.latent->kv_rank = latent;
    config.latent->nope_dim = nope;
    config.latent->rope_dim = rope;
    config.latent->v_dim = v;
    ExpectDense(config);
  }
}

TEST(LatentAttentionTest, TheSizesOfDeepSeekV2sHeads) {
  DecoderConfig config = TinyConfig();
  config.num_layers = 1;
  config.num_q_heads = 2;
  config.latent->kv_rank = 512;
  config.latent->nope_dim = 128;
  config.latent->rope_dim = 64;
  config.latent->v_dim = 128;
  config.attention_scale = 1 / std::sqrt(192.0);
  ExpectDense(config);
}

TEST(LatentAttentionTest, ScaledRotationsAndATiedHead) {
  DecoderConfig config = TinyConfig();
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

TEST(LatentAttentionTest, BiasesOfAllProjectionsThatMayHaveThem) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = config.o_bias = true;
  config.mlp_bias = true;
  ExpectDense(config);
  config.latent->q_rank.reset();
  ExpectDense(config);
}

TEST(LatentAttentionTest, RefusesWeightsAndPositionsThatDoNotFit) {
  DecoderConfig config = TinyConfig();
  auto weights = MakeRandomWeights(config, {}, RandomSpread::kLively);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto error = [&](const DecoderModelOptions& options) {
    return std::string(DecoderModel::Create(config, *weights, options).status().message());
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
  config.latent->q_rank.reset();
  EXPECT_THAT(error({}),
              HasSubstr("q_a must not be there, as the config does without: expected none"));
  config = TinyConfig();
  config.latent->kv_rank = 25;
  EXPECT_THAT(error({}), HasSubstr("kv_a must be [33, 48]"));
  config = TinyConfig();
  config.latent->v_dim = 13;
  EXPECT_THAT(error({}), HasSubstr("o must be [48, 39]"));
}

}  // namespace
}  // namespace reprise
