#include "reprise/models/model_folder.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

namespace fs = std::filesystem;

// A copy of the project's model without its weights.
std::string CopyOfModel(const std::string& name) {
  const fs::path copy = fs::path(testing::TempDir()) / name;
  fs::remove_all(copy);
  fs::create_directories(copy);
  for (const char* const file : {"config.json", "tokenizer.json"}) {
    fs::copy_file(fs::path(*DefaultModelFolder()) / file, copy / file);
  }
  return copy.string();
}

std::string Problem(const std::string& folder) {
  return std::string(ModelFolder::Open(folder).status().message());
}

TEST(ModelFolderTest, TheProjectComesWithAModel) {
  const auto path = DefaultModelFolder();
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_THAT(*path, EndsWith("jargon-llama"));
  const auto folder = ModelFolder::Open(*path);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto* const config = std::get_if<DecoderConfig>(&folder->config);
  ASSERT_NE(config, nullptr);
  EXPECT_EQ(config->num_layers, 6);
  EXPECT_EQ(folder->max_seq_len(), config->max_seq_len);
  EXPECT_EQ(folder->eos_token_ids(), config->eos_token_ids);
  ASSERT_TRUE(folder->tokenizer.has_value());
  EXPECT_EQ(folder->tokenizer->vocab_size(), config->vocab_size);
}

TEST(ModelFolderTest, LatentAttentionIsKnownByItsConfig) {
  const auto folder = ModelFolder::Open("tests/goldens/deepseek-mla");
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_TRUE(std::get<DecoderConfig>(folder->config).latent.has_value());
  EXPECT_EQ(folder->max_seq_len(), 512);
  EXPECT_EQ(folder->eos_token_ids(), std::vector<int32_t>{1});
  EXPECT_FALSE(folder->tokenizer.has_value());
}

TEST(ModelFolderTest, Gpt2AndBloomAreKnownByTheirConfigs) {
  for (const auto& [name, family, length] : {std::tuple("gpt2", GptFamily::kGpt2, 512),
                                             std::tuple("bloom-alibi", GptFamily::kBloom, 2048)}) {
    const auto folder = ModelFolder::Open(std::string("tests/goldens/") + name);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const auto* const config = std::get_if<GptConfig>(&folder->config);
    ASSERT_NE(config, nullptr) << name;
    EXPECT_EQ(config->family, family);
    EXPECT_EQ(folder->max_seq_len(), length);
    EXPECT_GT(NumParameters(folder->config), 100'000);
    EXPECT_FALSE(LoadModel(folder->path, folder->config, {.max_position = length + 1}).ok());
  }
}

TEST(ModelFolderTest, ATokenizerIsNotNeeded) {
  const std::string folder = CopyOfModel("without_tokenizer");
  fs::remove(folder + "/tokenizer.json");
  const auto opened = ModelFolder::Open(folder);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->tokenizer.has_value());
  EXPECT_TRUE(opened->tokenizer_error.ok()) << opened->tokenizer_error;
  EXPECT_EQ(opened->WhyNoTokenizer(), folder + " has no tokenizer.json");
}

TEST(ModelFolderTest, OpensAFolderWhoseTokenizerCannotBeRead) {
  const std::string folder = CopyOfModel("broken_tokenizer");
  const auto reason = [&] {
    const auto opened = ModelFolder::Open(folder);
    EXPECT_TRUE(opened.ok()) << opened.status();
    if (!opened.ok() || opened->tokenizer.has_value()) return std::string();
    EXPECT_FALSE(opened->tokenizer_error.ok());
    return opened->WhyNoTokenizer();
  };
  std::ofstream(folder + "/tokenizer.json") << "{";
  EXPECT_THAT(reason(), AllOf(HasSubstr("the tokenizer cannot be read"),
                              HasSubstr(folder + "/tokenizer.json"), HasSubstr("JSON")));
  std::ofstream(folder + "/tokenizer.json") << R"({"version":"1.0","model":{"type":"Unigram"}})";
  EXPECT_EQ(reason(), "the tokenizer cannot be read (" + folder +
                          "/tokenizer.json: model: type: expected \"BPE\", got \"Unigram\")");
  // A link that leads nowhere.
  fs::remove(folder + "/tokenizer.json");
  fs::create_symlink("nowhere", folder + "/tokenizer.json");
  EXPECT_THAT(reason(), HasSubstr("tokenizer.json"));
  fs::remove(folder + "/tokenizer.json");
  fs::copy_file(fs::path(*DefaultModelFolder()) / "tokenizer.json", folder + "/tokenizer.json");
  std::ofstream(folder + "/tokenizer_config.json") << "[]";
  EXPECT_THAT(reason(), HasSubstr("tokenizer_config.json: expected an object, got []"));
}

TEST(ModelFolderTest, AnUnknownArchitectureIsRefusedByThoseThatAreSupported) {
  const std::string folder = CopyOfModel("unknown");
  std::ofstream(folder + "/config.json") << R"({"architectures": ["MambaForCausalLM"]})";
  EXPECT_EQ(Problem(folder),
            folder +
                "/config.json: architectures: expected a supported architecture "
                "(LlamaForCausalLM, MistralForCausalLM, Ministral3ForCausalLM, Qwen2ForCausalLM, "
                "Qwen3ForCausalLM, Phi3ForCausalLM, GraniteForCausalLM, SeedOssForCausalLM, "
                "Llama4ForCausalLM, GemmaForCausalLM and 17 more), got [\"MambaForCausalLM\"]");
  std::ofstream(folder + "/config.json") << "[]";
  EXPECT_THAT(Problem(folder), HasSubstr("config.json: expected an object, got []"));
}

TEST(ModelFolderTest, WhatIsNoModelFolderIsNamed) {
  const std::string folder = CopyOfModel("hostile");
  EXPECT_THAT(Problem(""), HasSubstr("got an empty path"));
  EXPECT_THAT(Problem(folder + "/none"), HasSubstr("hostile/none: there is no such folder"));
  EXPECT_THAT(Problem(folder + "/config.json"), HasSubstr("expected a folder, got a file"));
  fs::remove(folder + "/config.json");
  EXPECT_THAT(Problem(folder), HasSubstr("config.json"));
}

}  // namespace
}  // namespace reprise
