#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/runner/ops/linear.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;

DecoderConfig TinyConfig() {
  DecoderConfig config;
  config.hidden_size = 6;
  config.intermediate_size = 10;
  config.num_layers = 2;
  config.num_q_heads = 2;
  config.latent =
      LatentAttention{.q_rank = 3, .kv_rank = 5, .nope_dim = 3, .rope_dim = 4, .v_dim = 2};
  config.rope_pairs = RopePairs::kNeighbours;
  config.vocab_size = 7;
  config.max_seq_len = 32;
  return config;
}

// A checkpoint of random values in a folder of its own.
class CheckpointFile {
 public:
  CheckpointFile(const std::string& name, const DecoderConfig& config)
      : folder_(std::filesystem::path(testing::TempDir()) / name) {
    std::filesystem::create_directories(folder_);
    for (const ExpectedTensor& expected : DecoderTensors(config)) {
      tensors_[expected.name] = at::randn(expected.shape);
    }
    Write();
  }

  void Write() const {
    std::vector<TensorToWrite> views;
    for (const auto& [name, tensor] : tensors_) {
      views.push_back({name,
                       {.type = StoredType::kFloat32,
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    const absl::Status status = WriteSafetensors((folder_ / "model.safetensors").string(), views);
    CHECK(status.ok()) << status;
  }

  std::string folder() const { return folder_.string(); }
  std::map<std::string, at::Tensor>& tensors() { return tensors_; }
  const at::Tensor& operator[](const std::string& name) const {
    return tensors_.at("model.layers.1." + name);
  }

 private:
  std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
};

DecoderWeights Loaded(const CheckpointFile& file, const DecoderConfig& config) {
  auto weights = LoadDecoderWeights(file.folder(), config, {});
  CHECK(weights.ok()) << weights.status();
  return *std::move(weights);
}

at::Tensor Ordered(const at::Tensor& rows, const std::vector<int64_t>& order) {
  return rows.index_select(0, at::tensor(order));
}

// Of two heads of queries: three rows that do not rotate, and then even and odd ones of four.
const std::vector<int64_t> kQueryOrder = {0, 1, 2, 3, 5, 4, 6, 7, 8, 9, 10, 12, 11, 13};

TEST(LatentWeightsTest, RowsThatRotateBecomeHalves) {
  const CheckpointFile file("mla_ranked", TinyConfig());
  const DecoderWeights weights = Loaded(file, TinyConfig());
  ASSERT_EQ(weights.layers.size(), 2u);
  const DecoderLayerWeights& layer = weights.layers[1];
  EXPECT_TRUE(
      at::equal(layer.latent->kv_a.weight(),
                Ordered(file["self_attn.kv_a_proj_with_mqa.weight"], {0, 1, 2, 3, 4, 5, 7, 6, 8})));
  EXPECT_TRUE(
      at::equal(layer.latent->q.weight(), Ordered(file["self_attn.q_b_proj.weight"], kQueryOrder)));
  EXPECT_TRUE(at::equal(layer.latent->q_a->weight(), file["self_attn.q_a_proj.weight"]));
  EXPECT_TRUE(at::equal(*layer.latent->q_a_norm, file["self_attn.q_a_layernorm.weight"]));
  EXPECT_TRUE(at::equal(layer.latent->kv_a_norm, file["self_attn.kv_a_layernorm.weight"]));
  EXPECT_TRUE(at::equal(layer.latent->kv_b.weight(), file["self_attn.kv_b_proj.weight"]));
  EXPECT_TRUE(at::equal(layer.o.weight(), file["self_attn.o_proj.weight"]));
  EXPECT_TRUE(at::equal(layer.gate_up->weight(),
                        at::cat({file["mlp.gate_proj.weight"], file["mlp.up_proj.weight"]})));
  EXPECT_TRUE(at::equal(layer.down->weight(), file["mlp.down_proj.weight"]));
}

TEST(LatentWeightsTest, BiasesOfRowsThatRotateFollowThem) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = config.o_bias = true;
  config.mlp_bias = true;
  const CheckpointFile file("mla_biased", config);
  const DecoderWeights weights = Loaded(file, config);
  const DecoderLayerWeights& layer = weights.layers[1];
  EXPECT_TRUE(
      at::equal(*layer.latent->kv_a.bias(),
                Ordered(file["self_attn.kv_a_proj_with_mqa.bias"], {0, 1, 2, 3, 4, 5, 7, 6, 8})));
  EXPECT_TRUE(at::equal(*layer.latent->q_a->bias(), file["self_attn.q_a_proj.bias"]));
  EXPECT_TRUE(at::equal(*layer.o.bias(), file["self_attn.o_proj.bias"]));
  EXPECT_TRUE(at::equal(*layer.down->bias(), file["mlp.down_proj.bias"]));
  EXPECT_FALSE(layer.latent->q.bias().has_value());
  EXPECT_FALSE(layer.latent->kv_b.bias().has_value());
}

TEST(LatentWeightsTest, WithoutALatentForQueriesThereIsOneMatrix) {
  DecoderConfig config = TinyConfig();
  config.latent->q_rank.reset();
  const CheckpointFile file("mla_plain", config);
  const DecoderWeights weights = Loaded(file, config);
  const DecoderLayerWeights& layer = weights.layers[1];
  EXPECT_FALSE(layer.latent->q_a.has_value());
  EXPECT_FALSE(layer.latent->q_a_norm.has_value());
  EXPECT_TRUE(
      at::equal(layer.latent->q.weight(), Ordered(file["self_attn.q_proj.weight"], kQueryOrder)));
}

TEST(LatentWeightsTest, ATiedHeadIsTheEmbeddingWhateverElseStandsThere) {
  DecoderConfig config = TinyConfig();
  CheckpointFile file("mla_tied", config);  // with an lm_head.weight
  config.tie_word_embeddings = true;
  const DecoderWeights weights = Loaded(file, config);
  EXPECT_EQ(weights.lm_head.weight().const_data_ptr(), weights.embedding.const_data_ptr());
  file.tensors().erase("lm_head.weight");
  file.Write();
  EXPECT_TRUE(LoadDecoderWeights(file.folder(), config, {}).ok());
}

TEST(LatentWeightsTest, ProgressEndsWithAllThatWasRead) {
  const CheckpointFile file("mla_progress", TinyConfig());
  int64_t read = -1;
  int64_t total = 0;
  const auto weights = LoadDecoderWeights(
      file.folder(), TinyConfig(),
      {.dtype = DType::kBFloat16, .on_progress = [&](int64_t num_bytes, int64_t total_bytes) {
         read = num_bytes;
         total = total_bytes;
       }});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->embedding.scalar_type(), at::kBFloat16);
  EXPECT_GT(total, 0);
  EXPECT_EQ(read, total);
}

TEST(LatentWeightsTest, AbsorbedFormsAreTheHeadsOfTheUpProjection) {
  const CheckpointFile file("mla_absorbed", TinyConfig());
  const DecoderWeights weights = Loaded(file, TinyConfig());
  const DecoderLayerWeights& layer = weights.layers[1];
  const at::Tensor heads = file["self_attn.kv_b_proj.weight"].view({2, 5, 5});
  EXPECT_TRUE(at::equal(layer.latent->absorb.weight(), heads.narrow(1, 0, 3).transpose(1, 2)));
  EXPECT_TRUE(at::equal(layer.latent->expand.weight(), heads.narrow(1, 3, 2)));
  // The latter is not a copy.
  EXPECT_EQ(layer.latent->expand.weight().storage().data(),
            layer.latent->kv_b.weight().storage().data());
}

TEST(LatentWeightsTest, NamesEveryTensorThatDoesNotFit) {
  CheckpointFile file("mla_wrong", TinyConfig());
  file.tensors().erase("model.layers.0.self_attn.kv_a_layernorm.weight");
  file.tensors()["model.layers.1.self_attn.q_proj.weight"] = at::zeros({14, 6});
  file.tensors()["model.layers.1.self_attn.kv_b_proj.weight"] = at::zeros({9, 5});
  file.Write();
  const absl::Status status = LoadDecoderWeights(file.folder(), TinyConfig(), {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("missing tensors: model.layers.0.self_attn.kv_a_layernorm.weight"),
            HasSubstr("unknown tensors: model.layers.1.self_attn.q_proj.weight"),
            HasSubstr("wrong tensors: model.layers.1.self_attn.kv_b_proj.weight must be [10, 5]")));
}

}  // namespace
}  // namespace reprise
