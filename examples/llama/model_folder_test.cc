#include "examples/llama/model_folder.h"

#include <filesystem>
#include <fstream>
#include <string>

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
  EXPECT_EQ(folder->config.num_layers, 6);
  ASSERT_TRUE(folder->tokenizer.has_value());
  EXPECT_EQ(folder->tokenizer->vocab_size(), folder->config.vocab_size);
}

TEST(ModelFolderTest, ATokenizerIsNotNeeded) {
  const std::string folder = CopyOfModel("without_tokenizer");
  fs::remove(folder + "/tokenizer.json");
  const auto opened = ModelFolder::Open(folder);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_FALSE(opened->tokenizer.has_value());
}

TEST(ModelFolderTest, ABrokenTokenizerIsNotTakenForNone) {
  const std::string folder = CopyOfModel("broken_tokenizer");
  std::ofstream(folder + "/tokenizer.json") << "{";
  EXPECT_THAT(Problem(folder), AllOf(HasSubstr("tokenizer.json"), HasSubstr("JSON")));
  // Nor is a link that leads nowhere.
  fs::remove(folder + "/tokenizer.json");
  fs::create_symlink("nowhere", folder + "/tokenizer.json");
  EXPECT_THAT(Problem(folder), HasSubstr("tokenizer.json"));
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
