#include "tests/readme/generate.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/testing/toy_model.h"

namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ReadmeTest, TheEmbeddingExampleGeneratesText) {
  reprise::ToyModel model({.max_position = 32});
  const auto tokens = Generate(model, {1, 2, 3});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  // 32 keys fit, and the last token needs none: 33 - 3.
  EXPECT_EQ(tokens->size(), 30u);
}

TEST(ReadmeTest, TheReadmeShowsTheExampleThatIsCompiled) {
  const std::string source = ReadFile("tests/readme/generate.h");
  const std::string begin = "// [readme begin]\n";
  const size_t first = source.find(begin) + begin.size();
  const std::string example = source.substr(first, source.find("// [readme end]") - first);
  EXPECT_THAT(ReadFile("README.md"), HasSubstr("```cpp\n" + example + "```\n"));
}

}  // namespace
