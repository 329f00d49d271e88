#include "reprise/hf/tokenizer/tokenizer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {
namespace {

using ::nlohmann::json;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

// A folder with a tokenizer of testdata and a tokenizer_config.json.
class TokenizerConfigTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void WriteTokenizer(const std::string& name, bool has_template) {
    json tokenizer = (*ReadJsonFile(
        absl::StrCat("examples/hf/tokenizer/testdata/", name, ".json")))["tokenizer"];
    if (!has_template) tokenizer["post_processor"] = nullptr;
    std::ofstream(folder_ + "/tokenizer.json") << tokenizer;
  }
  void WriteConfig(const std::string& text) {
    std::ofstream(folder_ + "/tokenizer_config.json") << text;
  }
  Tokens Encoded() const {
    const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::LoadFolder(folder_);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? *tokenizer->Encode("The lazy dog") : Tokens();
  }
  std::string Problem() const {
    return std::string(Tokenizer::LoadFolder(folder_).status().message());
  }

  const std::string folder_ = testing::TempDir() + "/tokenizer_config";
};

// The tokens of transformers 4.57.6 for the same folders.
TEST_F(TokenizerConfigTest, LlamaClassesMakeTheTemplateOfTheFields) {
  const Tokens text = {282, 269, 307, 88, 280, 70};
  Tokens with_bos = text;
  with_bos.insert(with_bos.begin(), 340);
  Tokens with_both = with_bos;
  with_both.push_back(342);
  WriteTokenizer("qwen2", /*has_template=*/false);
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer",
                           "GemmaTokenizerFast", "CohereTokenizerFast"}) {
    const auto encoded = [&](const std::string& fields) {
      WriteConfig(absl::StrCat(R"({"tokenizer_class":")", name, R"(",)", fields,
                               R"("bos_token":{"content":"<|endoftext|>"},)",
                               R"("eos_token":"<|im_end|>"})"));
      return Encoded();
    };
    EXPECT_EQ(encoded(R"("add_bos_token":true,)"), with_bos) << name;
    EXPECT_EQ(encoded(R"("add_bos_token":true,"add_eos_token":false,)"), with_bos) << name;
    EXPECT_EQ(encoded(R"("add_bos_token":false,)"), text) << name;
    EXPECT_EQ(encoded(R"("add_bos_token":true,"add_eos_token":true,)"), with_both) << name;
  }
}

TEST_F(TokenizerConfigTest, TheFieldsReplaceTheTemplateOfTokenizerJson) {
  WriteTokenizer("llama2", /*has_template=*/true);
  EXPECT_EQ(Encoded(), Tokens({1, 295, 345, 337}));
  WriteConfig(R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true})");
  EXPECT_EQ(Encoded(), Tokens({1, 295, 345, 337}));  // not twice
  WriteConfig(R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":false})");
  EXPECT_EQ(Encoded(), Tokens({295, 345, 337}));
  WriteConfig(R"({"tokenizer_class":"LlamaTokenizer","add_eos_token":true})");
  EXPECT_EQ(Encoded(), Tokens({1, 295, 345, 337, 2}));
  WriteConfig(R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":null})");
  EXPECT_EQ(Encoded(), Tokens({1, 295, 345, 337}));
}

TEST_F(TokenizerConfigTest, OtherClassesIgnoreTheFields) {
  WriteTokenizer("qwen2", /*has_template=*/false);
  for (const char* name : {"Qwen2Tokenizer", "PreTrainedTokenizerFast", "Fast", ""}) {
    WriteConfig(absl::StrCat(R"({"tokenizer_class":")", name,
                             R"(","add_bos_token":true,"bos_token":"<|endoftext|>"})"));
    EXPECT_EQ(Encoded(), Tokens({282, 269, 307, 88, 280, 70})) << name;
  }
  WriteConfig(R"({"add_bos_token":true,"bos_token":"<|endoftext|>"})");
  EXPECT_EQ(Encoded(), Tokens({282, 269, 307, 88, 280, 70}));
}

TEST_F(TokenizerConfigTest, RejectsFieldsOfAnotherKind) {
  WriteTokenizer("qwen2", /*has_template=*/false);
  const std::string file = folder_ + "/tokenizer_config.json: ";
  const std::pair<const char*, const char*> cases[] = {
      {R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":"yes"})",
       "add_bos_token: expected true or false, got \"yes\""},
      {R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true,"bos_token":"<x>"})",
       "bos_token: expected a token of tokenizer.json, got \"<x>\""},
      {R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true})",
       "bos_token: expected a token of tokenizer.json, got nothing"},
      {R"({"tokenizer_class":"LlamaTokenizer","add_eos_token":true,"eos_token":7})",
       "eos_token: expected a string, got 7"},
      {R"({"tokenizer_class":"LlamaTokenizer","add_eos_token":true,"eos_token":{}})",
       "eos_token: content: expected a string, got nothing"},
      {R"({"tokenizer_class":7})", "tokenizer_class: expected a string, got 7"},
  };
  for (const auto& [config, problem] : cases) {
    WriteConfig(config);
    EXPECT_EQ(Problem(), file + problem);
  }
  WriteConfig("[]");
  EXPECT_EQ(Problem(), file + "expected an object, got []");
  WriteConfig("{");
  EXPECT_THAT(Problem(), HasSubstr("tokenizer_config.json"));
}

TEST_F(TokenizerConfigTest, ReadsPythonsNonFiniteNumbers) {
  WriteTokenizer("qwen2", /*has_template=*/false);
  WriteConfig(R"({"tokenizer_class":"Qwen2Tokenizer","model_max_length":Infinity})");
  EXPECT_EQ(Encoded(), Tokens({282, 269, 307, 88, 280, 70}));
}

TEST_F(TokenizerConfigTest, RejectsAFolderWithoutTokenizerJson) {
  WriteConfig("{}");
  EXPECT_THAT(Problem(), HasSubstr(folder_ + "/tokenizer.json"));
}

}  // namespace
}  // namespace reprise
