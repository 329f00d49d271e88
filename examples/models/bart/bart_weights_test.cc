#include "reprise/models/bart/bart_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <string>
#include <utility>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/models/bart/bart_checkpoint.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;

BartConfig TinyConfig() {
  BartConfig config;
  config.d_model = 6;
  config.vocab_size = 7;
  config.max_seq_len = 5;
  config.encoder = {.num_layers = 1, .num_heads = 2, .ffn_dim = 10};
  config.decoder = {.num_layers = 2, .num_heads = 3, .ffn_dim = 8};
  return config;
}

BartWeights Loaded(const BartCheckpoint& checkpoint, const BartConfig& config) {
  auto weights = LoadBartWeights(checkpoint.folder(), config, {});
  CHECK(weights.ok()) << weights.status();
  return *std::move(weights);
}

TEST(BartWeightsTest, ProjectionsOfTheSameInputBecomeOne) {
  const BartCheckpoint file("bart_fused", TinyConfig());
  const BartWeights weights = Loaded(file, TinyConfig());
  const std::string prefix = "model.decoder.layers.1.";
  const BartDecoderLayer& layer = weights.decoder[1];
  EXPECT_TRUE(at::equal(
      layer.self.qkv.weight(),
      at::cat({file[prefix + "self_attn.q_proj.weight"], file[prefix + "self_attn.k_proj.weight"],
               file[prefix + "self_attn.v_proj.weight"]})));
  EXPECT_TRUE(at::equal(*layer.self.qkv.bias(), at::cat({file[prefix + "self_attn.q_proj.bias"],
                                                         file[prefix + "self_attn.k_proj.bias"],
                                                         file[prefix + "self_attn.v_proj.bias"]})));
  EXPECT_TRUE(at::equal(layer.cross.q.weight(), file[prefix + "encoder_attn.q_proj.weight"]));
  EXPECT_TRUE(
      at::equal(layer.cross.kv.weight(), at::cat({file[prefix + "encoder_attn.k_proj.weight"],
                                                  file[prefix + "encoder_attn.v_proj.weight"]})));
  EXPECT_TRUE(at::equal(layer.cross.norm.bias, file[prefix + "encoder_attn_layer_norm.bias"]));
  EXPECT_TRUE(at::equal(layer.feed_forward.down.weight(), file[prefix + "fc2.weight"]));
  EXPECT_TRUE(at::equal(weights.encoder[0].feed_forward.up.weight(),
                        file["model.encoder.layers.0.fc1.weight"]));
}

TEST(BartWeightsTest, AModelSavedWithoutItsHeadHasTheSameWeightsByShorterNames) {
  BartCheckpoint file("bart_headless", TinyConfig());
  const BartWeights whole = Loaded(file, TinyConfig());
  std::map<std::string, at::Tensor> bare;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.starts_with("model.")) bare[name.substr(6)] = tensor;
  }
  bare["encoder.embed_tokens.weight"] = bare.at("shared.weight").clone();
  file.tensors() = bare;
  file.Write();
  const BartWeights headless = Loaded(file, TinyConfig());
  EXPECT_TRUE(at::equal(headless.embedding, whole.embedding));
  EXPECT_TRUE(at::equal(headless.decoder[1].self.qkv.weight(), whole.decoder[1].self.qkv.weight()));
  EXPECT_TRUE(at::equal(headless.decoder_input.positions, whole.decoder_input.positions));
  EXPECT_TRUE(at::equal(headless.logits_bias, at::zeros({1, 7})));
  file.tensors()["final_logits_bias"] = whole.logits_bias.clone();
  file.Write();
  EXPECT_TRUE(at::equal(Loaded(file, TinyConfig()).logits_bias, whole.logits_bias));
}

TEST(BartWeightsTest, PositionsBeginBehindTheTwoThatStandForNothing) {
  const BartCheckpoint file("bart_positions", TinyConfig());
  const BartWeights weights = Loaded(file, TinyConfig());
  const at::Tensor& stored = file["model.encoder.embed_positions.weight"];
  EXPECT_EQ(stored.size(0), 7);
  EXPECT_TRUE(at::equal(weights.encoder_input.positions, stored.narrow(0, 2, 5)));
}

TEST(BartWeightsTest, WhatIsTiedIsTheEmbeddingWhateverElseStandsThere) {
  BartCheckpoint file("bart_tied", TinyConfig());
  for (const char* name : {"lm_head.weight", "model.encoder.embed_tokens.weight",
                           "model.decoder.embed_tokens.weight"}) {
    file.tensors()[name] = at::zeros({7, 6});
  }
  file.Write();
  const BartWeights weights = Loaded(file, TinyConfig());
  EXPECT_EQ(weights.lm_head.weight().const_data_ptr(), weights.embedding.const_data_ptr());
  EXPECT_TRUE(at::equal(weights.embedding, file["model.shared.weight"]));
}

TEST(BartWeightsTest, AreConvertedOnTheWay) {
  const BartCheckpoint file("bart_converted", TinyConfig());
  int64_t read = -1;
  int64_t total = 0;
  const auto weights = LoadBartWeights(
      file.folder(), TinyConfig(),
      {.dtype = DType::kBFloat16, .on_progress = [&](int64_t num_bytes, int64_t total_bytes) {
         read = num_bytes;
         total = total_bytes;
       }});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->dtype, DType::kBFloat16);
  EXPECT_TRUE(at::equal(weights->logits_bias, file["final_logits_bias"].to(at::kBFloat16)));
  EXPECT_GT(total, 0);
  EXPECT_EQ(read, total);
}

TEST(BartWeightsTest, NamesEveryTensorThatDoesNotFit) {
  BartCheckpoint file("bart_wrong", TinyConfig());
  file.tensors().erase("final_logits_bias");
  file.tensors()["model.encoder.layers.1.fc1.bias"] = at::zeros({10});
  file.tensors()["model.decoder.embed_positions.weight"] = at::zeros({5, 6});
  file.Write();
  const absl::Status status = LoadBartWeights(file.folder(), TinyConfig(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("missing tensors: final_logits_bias"),
            HasSubstr("unknown tensors: model.encoder.layers.1.fc1.bias"),
            HasSubstr("wrong tensors: model.decoder.embed_positions.weight must be [7, 6]")));
}

}  // namespace
}  // namespace reprise
