#include "reprise/models/decoder/decoder_weights.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/decoder/decoder_model.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

DecoderConfig TinyConfig() {
  DecoderConfig config;
  config.hidden_size = 6;
  config.intermediate_size = 10;
  config.num_layers = 2;
  config.num_q_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 7;
  config.qkv_bias = true;
  config.o_bias = true;
  config.max_seq_len = 32;
  return config;
}

// A checkpoint of random values in a folder of its own.
class CheckpointFile {
 public:
  CheckpointFile(const std::string& name, const DecoderConfig& config, DType dtype)
      : folder_(std::filesystem::path(testing::TempDir()) / name) {
    std::filesystem::create_directories(folder_);
    for (const ExpectedTensor& expected : DecoderTensors(config)) {
      tensors_[expected.name] = at::randn(expected.shape).to(ToScalarType(dtype));
    }
    Write(dtype);
  }

  std::string folder() const { return folder_.string(); }
  std::string path() const { return (folder_ / "model.safetensors").string(); }
  const at::Tensor& operator[](const std::string& name) const { return tensors_.at(name); }

  // Writes the file again, with one more tensor.
  void Add(const std::string& name, const at::Tensor& tensor, DType dtype) {
    tensors_[name] = tensor.to(ToScalarType(dtype));
    Write(dtype);
  }

 private:
  void Write(DType dtype) const {
    std::vector<TensorToWrite> views;
    for (const auto& [name, tensor] : tensors_) {
      views.push_back({name,
                       {.type = ToStoredType(dtype),
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    const absl::Status status = WriteSafetensors(path(), views);
    EXPECT_TRUE(status.ok()) << status;
  }

  std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
};

DecoderWeights Loaded(const CheckpointFile& file, const DecoderConfig& config,
                      const LoadWeightsOptions& options) {
  auto weights = LoadDecoderWeights(file.folder(), config, options);
  CHECK(weights.ok()) << weights.status();
  return *std::move(weights);
}

TEST(DecoderWeightsTest, ProjectionsOfTheSameInputAreOneMatrix) {
  const CheckpointFile file("fused", TinyConfig(), DType::kFloat32);
  const DecoderWeights weights = Loaded(file, TinyConfig(), {});
  ASSERT_EQ(weights.layers.size(), 2u);
  const std::string layer = "model.layers.1.";
  const DecoderLayerWeights& loaded = weights.layers[1];
  const auto expect_equal = [](const at::Tensor& got, const std::vector<at::Tensor>& parts) {
    EXPECT_TRUE(at::equal(got, at::cat(parts)));
  };
  expect_equal(loaded.qkv->weight(),
               {file[layer + "self_attn.q_proj.weight"], file[layer + "self_attn.k_proj.weight"],
                file[layer + "self_attn.v_proj.weight"]});
  ASSERT_TRUE(loaded.qkv->bias().has_value());
  expect_equal(*loaded.qkv->bias(),
               {file[layer + "self_attn.q_proj.bias"], file[layer + "self_attn.k_proj.bias"],
                file[layer + "self_attn.v_proj.bias"]});
  expect_equal(loaded.o.weight(), {file[layer + "self_attn.o_proj.weight"]});
  expect_equal(*loaded.o.bias(), {file[layer + "self_attn.o_proj.bias"]});
  expect_equal(loaded.gate_up->weight(),
               {file[layer + "mlp.gate_proj.weight"], file[layer + "mlp.up_proj.weight"]});
  EXPECT_FALSE(loaded.gate_up->bias().has_value());
  expect_equal(loaded.down->weight(), {file[layer + "mlp.down_proj.weight"]});
  expect_equal(loaded.input_norm, {file[layer + "input_layernorm.weight"]});
  expect_equal(loaded.mlp_norm, {file[layer + "post_attention_layernorm.weight"]});
  expect_equal(weights.embedding, {file["model.embed_tokens.weight"]});
  expect_equal(weights.final_norm, {file["model.norm.weight"]});
  expect_equal(weights.lm_head.weight(), {file["lm_head.weight"]});
}

TEST(DecoderWeightsTest, BiasesOfTheFeedForwardAreFusedLikewise) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = false;
  config.o_bias = false;
  config.mlp_bias = true;
  const CheckpointFile file("mlp_bias", config, DType::kFloat32);
  const DecoderWeights weights = Loaded(file, config, {});
  EXPECT_FALSE(weights.layers[0].qkv->bias().has_value());
  EXPECT_TRUE(at::equal(*weights.layers[0].gate_up->bias(),
                        at::cat({file["model.layers.0.mlp.gate_proj.bias"],
                                 file["model.layers.0.mlp.up_proj.bias"]})));
  EXPECT_TRUE(
      at::equal(*weights.layers[0].down->bias(), file["model.layers.0.mlp.down_proj.bias"]));
}

TEST(DecoderWeightsTest, NeighboursBecomeHalvesInTheLayersThatRotate) {
  DecoderConfig config = TinyConfig();
  config.qkv_bias = false;
  config.o_bias = false;
  config.rope_pairs = RopePairs::kNeighbours;
  config.attention = {{}, {.rotates = false}};
  const CheckpointFile file("neighbours", config, DType::kFloat32);
  const DecoderWeights weights = Loaded(file, config, {});
  // Rows 0, 2, then 1, 3 of each head of 4.
  const at::Tensor order = at::tensor(std::vector<int64_t>{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11});
  const at::Tensor& qkv = weights.layers[0].qkv->weight();
  const auto stored = [&](const std::string& name) {
    return file["model.layers.0.self_attn." + name + ".weight"];
  };
  EXPECT_TRUE(at::equal(qkv.narrow(0, 0, 12), stored("q_proj").index_select(0, order)));
  EXPECT_TRUE(
      at::equal(qkv.narrow(0, 12, 4), stored("k_proj").index_select(0, order.narrow(0, 0, 4))));
  EXPECT_TRUE(at::equal(qkv.narrow(0, 16, 4), stored("v_proj")));
  EXPECT_TRUE(at::equal(weights.layers[1].qkv->weight().narrow(0, 0, 12),
                        file["model.layers.1.self_attn.q_proj.weight"]));
}

TEST(DecoderWeightsTest, NormsThatAFamilyHasAreRead) {
  DecoderConfig config = TinyConfig();
  config.qk_norm = QkNorm::kWeighted;
  config.names = kNormsBeforeAndAfter;
  const CheckpointFile file("norms", config, DType::kFloat32);
  const DecoderWeights weights = Loaded(file, config, {});
  const std::string layer = "model.layers.1.";
  const DecoderLayerWeights& loaded = weights.layers[1];
  EXPECT_TRUE(at::equal(*loaded.q_norm, file[layer + "self_attn.q_norm.weight"]));
  EXPECT_TRUE(at::equal(*loaded.k_norm, file[layer + "self_attn.k_norm.weight"]));
  EXPECT_TRUE(at::equal(loaded.input_norm, file[layer + "input_layernorm.weight"]));
  EXPECT_TRUE(
      at::equal(*loaded.attention_output_norm, file[layer + "post_attention_layernorm.weight"]));
  EXPECT_TRUE(at::equal(loaded.mlp_norm, file[layer + "pre_feedforward_layernorm.weight"]));
  EXPECT_TRUE(
      at::equal(*loaded.mlp_output_norm, file[layer + "post_feedforward_layernorm.weight"]));
}

TEST(DecoderWeightsTest, TiedEmbeddingsAreOnePieceOfMemory) {
  DecoderConfig config = TinyConfig();
  config.tie_word_embeddings = true;
  const CheckpointFile file("tied", config, DType::kFloat32);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const DecoderWeights weights = Loaded(file, config, {.dtype = dtype});
    EXPECT_EQ(weights.lm_head.weight().data_ptr(), weights.embedding.data_ptr());
  }
}

TEST(DecoderWeightsTest, TheDTypeIsTheCheckpointsUnlessAnotherIsAskedFor) {
  for (const DType stored : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    const CheckpointFile file("dtype", TinyConfig(), stored);
    EXPECT_EQ(Loaded(file, TinyConfig(), {}).dtype, stored);
    for (const DType wanted : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      const DecoderWeights weights = Loaded(file, TinyConfig(), {.dtype = wanted});
      EXPECT_EQ(weights.dtype, wanted);
      const at::Tensor& qkv = weights.layers[0].qkv->weight();
      EXPECT_TRUE(
          at::equal(qkv.narrow(0, 12, 4),  // behind q
                    file["model.layers.0.self_attn.k_proj.weight"].to(ToScalarType(wanted))));
      EXPECT_TRUE(
          at::equal(weights.embedding, file["model.embed_tokens.weight"].to(ToScalarType(wanted))));
    }
  }
}

TEST(DecoderWeightsTest, DoublesAreComputedInFloat32) {
  const CheckpointFile file("float64", TinyConfig(), DType::kFloat64);
  EXPECT_EQ(Loaded(file, TinyConfig(), {}).dtype, DType::kFloat32);
}

TEST(DecoderWeightsTest, WhatNeedsNoChangeStaysInTheMappedFile) {
  const CheckpointFile file("mapped", TinyConfig(), DType::kFloat32);
  const DecoderWeights weights = Loaded(file, TinyConfig(), {});
  // Both are in the one mapping, as far apart as in the file.
  const auto address = [](const at::Tensor& tensor) {
    return reinterpret_cast<intptr_t>(tensor.const_data_ptr());
  };
  const int64_t distance = address(weights.embedding) - address(weights.final_norm);
  EXPECT_LT(std::abs(distance), static_cast<int64_t>(std::filesystem::file_size(file.path())));
  // The mapping outlives the file and the object that opened it.
  std::filesystem::remove(file.path());
  EXPECT_TRUE(at::equal(weights.embedding, file["model.embed_tokens.weight"]));
}

TEST(DecoderWeightsTest, TensorsAtOddAddressesAreReadLikeOthers) {
  const CheckpointFile file("odd", TinyConfig(), DType::kFloat32);
  std::ifstream in(file.path(), std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  in.close();
  // A header that is one blank longer shifts all tensors.
  uint64_t header_length = 0;
  std::memcpy(&header_length, bytes.data(), sizeof(header_length));
  bytes.insert(sizeof(header_length) + header_length, " ");
  ++header_length;
  std::memcpy(bytes.data(), &header_length, sizeof(header_length));
  std::ofstream(file.path(), std::ios::binary) << bytes;
  const DecoderWeights weights = Loaded(file, TinyConfig(), {});
  EXPECT_TRUE(at::equal(weights.embedding, file["model.embed_tokens.weight"]));
  EXPECT_TRUE(at::equal(weights.layers[0].qkv->weight().narrow(0, 0, 12),
                        file["model.layers.0.self_attn.q_proj.weight"]));
  EXPECT_EQ(reinterpret_cast<intptr_t>(weights.embedding.const_data_ptr()) % sizeof(float), 0u);
}

TEST(DecoderWeightsTest, ProgressEndsWithAllBytes) {
  const CheckpointFile file("progress", TinyConfig(), DType::kFloat32);
  std::vector<std::pair<int64_t, int64_t>> reports;
  Loaded(file, TinyConfig(),
         {.dtype = DType::kBFloat16, .on_progress = [&](int64_t num_bytes, int64_t total_bytes) {
            reports.push_back({num_bytes, total_bytes});
          }});
  ASSERT_FALSE(reports.empty());
  int64_t num_elements = 0;
  for (const ExpectedTensor& tensor : DecoderTensors(TinyConfig())) {
    num_elements += *NumElements(tensor.shape);
  }
  EXPECT_EQ(reports.back().first, num_elements * 4);
  for (const auto& [num_bytes, total_bytes] : reports) {
    EXPECT_LE(num_bytes, total_bytes);
    EXPECT_EQ(total_bytes, num_elements * 4);
  }
}

TEST(DecoderWeightsTest, ACheckpointThatDoesNotFitIsRefusedWithItsFolder) {
  const CheckpointFile file("misfit", TinyConfig(), DType::kFloat32);
  DecoderConfig config = TinyConfig();
  config.num_layers = 3;
  config.head_dim = 8;
  const auto weights = LoadDecoderWeights(file.folder(), config, {});
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(weights.status().message()),
              AllOf(StartsWith(file.folder()), HasSubstr("missing tensors: model.layers.2."),
                    HasSubstr("q_proj.weight must be [24, 6], got [12, 6]")));
}

TEST(DecoderWeightsTest, AFolderWithoutWeightsIsNotFound) {
  EXPECT_EQ(LoadDecoderWeights("/no/such/folder", TinyConfig(), {}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(DecoderWeightsTest, ADTypeThatNoLayerComputesInIsRefused) {
  const CheckpointFile file("fp8", TinyConfig(), DType::kFloat32);
  const auto weights = LoadDecoderWeights(file.folder(), TinyConfig(), {.dtype = DType::kFp8E4M3});
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr("dtype must be float32"));
}

TEST(DecoderWeightsTest, ScalesOfAnFp8CacheReachTheSpecsOfTheirLayers) {
  CheckpointFile file("kv_scales", TinyConfig(), DType::kBFloat16);
  file.Add("model.layers.1.self_attn.k_proj.k_scale", at::tensor({0.125f}), DType::kBFloat16);
  file.Add("model.layers.1.self_attn.v_proj.v_scale", at::tensor({4.0f}), DType::kBFloat16);
  file.Add("model.layers.1.self_attn.q_scale", at::tensor({2.0f}), DType::kBFloat16);
  const auto weights = LoadDecoderWeights(file.folder(), TinyConfig(), {});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto model = DecoderModel::Create(TinyConfig(), *weights, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const std::vector<LayerSpec>& layers = (*model)->spec().layers;
  EXPECT_EQ(layers[0].k_scale, std::nullopt);
  EXPECT_EQ(layers[0].v_scale, std::nullopt);
  EXPECT_EQ(layers[1].k_scale, 0.125f);
  EXPECT_EQ(layers[1].v_scale, 4.0f);
}

TEST(DecoderWeightsTest, RanksDivideColumnsBetweenBlocks) {
  DecoderConfig config = TinyConfig();
  config.intermediate_size = 384;
  config.num_q_heads = config.num_kv_heads = 14;
  config.head_dim = 64;
  const auto sizes = [&](int rank) {
    const DecoderConfig own = *DecoderConfigOfRank(config, {.rank = rank, .world = 2});
    return std::pair(own.intermediate_size, own.num_q_heads);
  };
  EXPECT_EQ(sizes(0), std::pair(192, 7));
  config.block_columns = 128;
  EXPECT_EQ(sizes(0), std::pair(128, 6));
  EXPECT_EQ(sizes(1), std::pair(256, 8));
}

}  // namespace
}  // namespace reprise
