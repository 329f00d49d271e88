#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using Mode = GraphSetOptions::Mode;

constexpr char kFolder[] = "tests/goldens/deepseek-mla";

std::unique_ptr<DecoderModel> Loaded(const std::string& folder, int max_absorbed_query_len) {
  auto model = DecoderModel::Load(folder, {.dtype = DType::kFloat32},
                                  {.max_absorbed_query_len = max_absorbed_query_len});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

// The logits before each of 12 tokens after a prompt of 29, which is computed in chunks.
std::vector<float> Logits(DecoderModel& model, int prefill_chunk) {
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 2,
                                                 .max_num_tokens = 64,
                                                 .max_seq_len = 64,
                                                 .max_steps_in_flight = 1,
                                                 .cache = {.block_size = 4},
                                                 .graphs = {.mode = Mode::kOff}},
                                      .scheduler = {.prefill_chunk = prefill_chunk}});
  CHECK(engine.ok()) << engine.status();
  Request request;
  for (int i = 0; i < 29; ++i) request.prompt.push_back((i * i * 7 + 3) % 256);
  for (int i = 0; i < 12; ++i) request.forced_tokens.push_back((i * 31 + 5) % 256);
  LogitsRecorder recorder(1);
  const absl::Status status = Generate(**engine, {request}, [&](int i, const TokenEvent& event) {
    return recorder.Record(i, *LogitsOf(**engine, event));
  });
  CHECK(status.ok()) << status;
  return {recorder.rows(0).begin(), recorder.rows(0).end()};
}

TEST(LatentModelTest, AbsorbedOrNotTheResultIsTheSame) {
  for (const char* folder : {kFolder, "tests/goldens/deepseek-mla-yarn"}) {
    const auto absorbed = Loaded(folder, 1000);
    const auto expanded = Loaded(folder, 0);  // every step but those of one query
    const at::Tensor expected = at::tensor(Logits(*absorbed, 0));
    for (const int chunk : {0, 1, 10}) {
      SCOPED_TRACE(testing::Message() << folder << ", chunks of " << chunk);
      for (DecoderModel* model : {absorbed.get(), expanded.get()}) {
        EXPECT_LT((at::tensor(Logits(*model, chunk)) - expected).abs().max().item<float>(), 2e-4f);
      }
    }
  }
}

TEST(LatentModelTest, ACacheOfEveryHeadsKeysAndValuesGivesTheSameResult) {
  const auto latent = Loaded(kFolder, 8);
  auto loaded =
      DecoderModel::Load(kFolder, {.dtype = DType::kFloat32}, {.mla_cache = MlaCache::kExpanded});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  DecoderModel& expanded = **loaded;
  const DecoderConfig& config = expanded.config();
  const LayerSpec& layer = expanded.spec().layers[1];
  EXPECT_FALSE(layer.v_in_k);
  EXPECT_EQ(layer.params.num_kv_heads, config.num_q_heads);
  EXPECT_EQ(layer.params.head_dim_qk, config.latent->qk_dim());
  EXPECT_EQ(layer.params.head_dim_v, config.latent->v_dim);
  const at::Tensor expected = at::tensor(Logits(*latent, 0));
  for (const int chunk : {0, 1, 10}) {
    SCOPED_TRACE(testing::Message() << "chunks of " << chunk);
    EXPECT_LT((at::tensor(Logits(expanded, chunk)) - expected).abs().max().item<float>(), 2e-4f);
  }
}

TEST(LatentModelTest, TheWeightsOfHeadsAreTheHalvesOfOneMatrix) {
  const auto model = Loaded(kFolder, 8);
  const DecoderConfig& config = model->config();
  const DecoderLayerWeights& layer = model->weights().layers[1];
  const at::Tensor heads = layer.latent->kv_b.weight().unflatten(
      0, {config.num_q_heads, config.latent->nope_dim + config.latent->v_dim});
  EXPECT_TRUE(at::equal(layer.latent->absorb.weight(),
                        heads.narrow(1, 0, config.latent->nope_dim).transpose(1, 2)));
  EXPECT_TRUE(at::equal(layer.latent->expand.weight(),
                        heads.narrow(1, config.latent->nope_dim, config.latent->v_dim)));
  EXPECT_EQ(layer.latent->expand.weight().storage().data(),
            layer.latent->kv_b.weight().storage().data());
}

TEST(LatentModelTest, TheCacheHoldsOneLatentForAllHeads) {
  const auto model = Loaded(kFolder, 8);
  const ModelSpec& spec = model->spec();
  ASSERT_EQ(spec.layers.size(), 2u);
  EXPECT_TRUE(spec.layers[1].v_in_k);
  EXPECT_EQ(spec.layers[1].params.num_kv_heads, 1);
  EXPECT_EQ(spec.layers[1].params.head_dim_qk, 64 + 16);
  EXPECT_EQ(spec.layers[1].params.head_dim_v, 64);
  EXPECT_EQ(spec.max_position, 512);
}

TEST(LatentModelTest, NamesWhatACheckpointLacks) {
  DecoderConfig config = *LoadDecoderConfig(kFolder);
  config.latent->q_rank.reset();
  const absl::Status status = LoadDecoderWeights(kFolder, config, {}).status();
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(testing::HasSubstr("missing tensors: model.layers.0.self_attn.q_proj"),
                             testing::HasSubstr("unknown tensors: model.layers.0.self_attn.q_a_")));
}

}  // namespace
}  // namespace reprise
