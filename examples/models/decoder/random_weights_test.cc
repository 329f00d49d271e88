#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>

#include <utility>

#include "glog/logging.h"
#include "gtest/gtest.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"

namespace reprise {
namespace {

DecoderWeights Made(const DecoderConfig& config, const RandomWeightsOptions& options) {
  auto weights = MakeRandomWeights(config, options);
  CHECK(weights.ok()) << weights.status();
  return *std::move(weights);
}

TEST(RandomWeightsTest, FitTheModelTheyAreMadeFor) {
  DecoderConfig config = *LlamaPreset("jargon");
  for (const bool biased : {false, true}) {
    config.qkv_bias = biased;
    config.o_bias = biased;
    config.mlp_bias = biased;
    config.tie_word_embeddings = !biased;
    const auto model = DecoderModel::Create(config, Made(config, {}), {});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->weights().layers[3].qkv->bias().has_value(), biased);
    EXPECT_EQ((*model)->weights().layers[3].down->bias().has_value(), biased);
  }
}

TEST(RandomWeightsTest, AreNormalWithTheDeviationOfUntrainedModels) {
  const DecoderConfig config = *LlamaPreset("jargon");
  const DecoderWeights weights = Made(config, {.dtype = DType::kFloat32});
  const at::Tensor& embedding = weights.embedding;  // a million values
  EXPECT_NEAR(embedding.mean().item<float>(), 0, 1e-4);
  EXPECT_NEAR(embedding.std().item<float>(), 0.02, 1e-4);
  EXPECT_TRUE(at::equal(weights.final_norm, at::ones({256})));
  EXPECT_FALSE(at::equal(weights.layers[0].down->weight(), weights.layers[1].down->weight()));
}

TEST(RandomWeightsTest, TheSameSeedGivesTheSameBits) {
  const DecoderConfig config = *LlamaPreset("jargon");
  const DecoderWeights a = Made(config, {.seed = 5});
  const DecoderWeights b = Made(config, {.seed = 5});
  const DecoderWeights c = Made(config, {.seed = 6});
  EXPECT_EQ(a.dtype, DType::kBFloat16);
  EXPECT_TRUE(at::equal(a.layers[5].gate_up->weight(), b.layers[5].gate_up->weight()));
  EXPECT_FALSE(at::equal(a.layers[5].gate_up->weight(), c.layers[5].gate_up->weight()));
}

TEST(RandomWeightsTest, LibTorchsOwnGeneratorIsLeftAlone) {
  const DecoderConfig config = *LlamaPreset("jargon");
  Made(config, {.seed = 5});
  const at::Tensor first = at::rand({4});
  Made(config, {.seed = 5});
  EXPECT_FALSE(at::equal(first, at::rand({4})));
}

}  // namespace
}  // namespace reprise
