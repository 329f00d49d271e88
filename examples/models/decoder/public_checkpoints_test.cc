// Folders as the published models have them, in small: exactly their config's members, tensor names
// and shard index.

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/engine/create_engine.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/models/decoder/random_checkpoint.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

class PublicCheckpointTest : public testing::TestWithParam<const char*> {
 protected:
  // A folder that is not there yet.
  std::string Folder(const std::string& name) const {
    const std::string folder = absl::StrCat(testing::TempDir(), "/", GetParam(), "-", name);
    std::filesystem::remove_all(folder);
    return folder;
  }

  std::string Written(const std::string& name, int64_t max_shard_bytes) const {
    const std::string folder = Folder(name);
    const absl::Status status = WriteRandomCheckpoint(folder, InSmall(*PublicConfig(GetParam())),
                                                      {.max_shard_bytes = max_shard_bytes});
    EXPECT_TRUE(status.ok()) << status;
    return folder;
  }
};

json ReadJson(const std::string& path) { return json::parse(std::ifstream(path)); }

void WriteJson(const std::string& path, const json& value) { std::ofstream(path) << value; }

std::vector<int32_t> Generated(DecoderModel& model) {
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 1, .max_seq_len = 128}});
  EXPECT_TRUE(engine.ok()) << engine.status();
  std::vector<int32_t> tokens;
  const Request request = {.prompt = {3, 1, 4, 1, 5, 9}, .max_new_tokens = 90};
  const absl::Status status = Generate(**engine, {request}, [&](int, const TokenEvent& event) {
    tokens.push_back(*event.token);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

TEST_P(PublicCheckpointTest, ShardsLoadLikeOneFileAndTheModelGenerates) {
  const std::string sharded = Written("sharded", 50'000);
  const std::string whole = Written("whole", 1 << 30);
  EXPECT_FALSE(std::filesystem::exists(sharded + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(whole + "/model.safetensors"));
  const auto a = DecoderModel::Load(sharded, {.dtype = DType::kFloat32});
  const auto b = DecoderModel::Load(whole, {.dtype = DType::kFloat32});
  ASSERT_TRUE(a.ok()) << a.status();
  ASSERT_TRUE(b.ok()) << b.status();
  for (int layer = 0; layer < 2; ++layer) {
    const DecoderLayerWeights& x = (*a)->weights().layers[layer];
    const DecoderLayerWeights& y = (*b)->weights().layers[layer];
    EXPECT_TRUE(at::equal(x.qkv->weight(), y.qkv->weight()));
    EXPECT_TRUE(at::equal(x.gate_up->weight(), y.gate_up->weight()));
    EXPECT_FALSE(at::equal(x.qkv->weight(), (*a)->weights().layers[1 - layer].qkv->weight()));
  }
  const std::vector<int32_t> tokens = Generated(**a);
  EXPECT_EQ(tokens, Generated(**b));
  EXPECT_FALSE(tokens.empty());
}

TEST_P(PublicCheckpointTest, TheIndexIsThatOfHuggingFace) {
  const std::string folder = Written("index", 60'000);
  const json index = ReadJson(folder + "/model.safetensors.index.json");
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::vector<std::string> names;
  int64_t total_bytes = 0;
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    names.push_back(name);
    total_bytes += static_cast<int64_t>(tensor.bytes.size());
    EXPECT_THAT(index["weight_map"][name].get<std::string>(),
                testing::MatchesRegex("model-[0-9]{5}-of-[0-9]{5}\\.safetensors"));
  }
  EXPECT_EQ(index["metadata"]["total_size"], total_bytes);
  EXPECT_EQ(index["weight_map"].size(), names.size());
  // By heart, from the published indices.
  EXPECT_THAT(
      names,
      IsSupersetOf(
          {"model.embed_tokens.weight", "model.norm.weight",
           "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.down_proj.weight",
           "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight",
           "model.layers.0.post_attention_layernorm.weight",
           "model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.o_proj.weight",
           "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.v_proj.weight"}));
  const std::string model = GetParam();
  const auto expect = [&](const char* name, bool there) {
    if (there) {
      EXPECT_THAT(names, Contains(name));
    } else {
      EXPECT_THAT(names, Not(Contains(name)));
    }
  };
  expect("lm_head.weight", model != "gemma-2-2b");
  expect("model.layers.1.self_attn.q_norm.weight", model == "qwen3-8b");
  expect("model.layers.1.self_attn.k_norm.weight", model == "qwen3-8b");
  expect("model.layers.1.self_attn.q_proj.bias", model == "qwen2.5-7b");
  expect("model.layers.1.self_attn.o_proj.bias", false);
  expect("model.layers.1.pre_feedforward_layernorm.weight", model == "gemma-2-2b");
  expect("model.layers.1.post_feedforward_layernorm.weight", model == "gemma-2-2b");
}

TEST_P(PublicCheckpointTest, ShardsThatLackATensorOrHaveOneMoreAreToldAtOnce) {
  const std::string folder = Written("twisted", 50'000);
  const std::string path = folder + "/model.safetensors.index.json";
  json index = ReadJson(path);
  // Out of the index is out of the checkpoint.
  index["weight_map"].erase("model.norm.weight");
  index["weight_map"].erase("model.layers.1.mlp.up_proj.weight");
  WriteJson(path, index);
  EXPECT_THAT(std::string(DecoderModel::Load(folder, {}).status().message()),
              HasSubstr("missing tensors: model.layers.1.mlp.up_proj.weight, model.norm.weight"));
  json config = ReadJson(folder + "/config.json");
  config["num_hidden_layers"] = 1;
  WriteJson(folder + "/config.json", config);
  EXPECT_THAT(std::string(DecoderModel::Load(folder, {}).status().message()),
              AllOf(HasSubstr("missing tensors: model.norm.weight"),
                    HasSubstr("unknown tensors: model.layers.1."), HasSubstr(" more")));
  config.erase("intermediate_size");
  WriteJson(folder + "/config.json", config);
  EXPECT_THAT(std::string(DecoderModel::Load(folder, {}).status().message()),
              HasSubstr("/config.json: intermediate_size: expected an integer"));
}

TEST_P(PublicCheckpointTest, AShardThatIsNotThereIsNamed) {
  const std::string folder = Written("incomplete", 50'000);
  json index = ReadJson(folder + "/model.safetensors.index.json");
  const std::string shard = index["weight_map"]["model.norm.weight"];
  std::filesystem::remove(folder + "/" + shard);
  const absl::Status status = DecoderModel::Load(folder, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(shard));
}

INSTANTIATE_TEST_SUITE_P(All, PublicCheckpointTest,
                         testing::Values("llama-3.1-8b", "qwen3-8b", "qwen2.5-7b", "mistral-7b",
                                         "gemma-2-2b"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' || c == '.' ? '_' : c;
                           return name;
                         });

TEST(PublicConfigsTest, AnUnknownNameIsToldTheKnownOnes) {
  EXPECT_THAT(std::string(PublicConfig("gpt-4").status().message()),
              AllOf(HasSubstr("llama-3.2-1b, jargon, qwen3-8b"), HasSubstr("got gpt-4")));
}

TEST(RandomCheckpointTest, AConfigThatIsNoModelsIsRefusedBeforeAnythingIsWritten) {
  const std::string folder = testing::TempDir() + "/refused";
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(WriteRandomCheckpoint(folder, json::object(), {}).ok());
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace reprise
