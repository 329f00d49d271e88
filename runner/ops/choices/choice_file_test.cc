#include "reprise/runner/ops/choices/choice_file.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class ChoiceFileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/choices_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }

  std::string Path() const { return folder_ + "/below/choices"; }

  void Write(const std::string& text) const {
    std::filesystem::create_directories(folder_ + "/below");
    std::ofstream(Path(), std::ios::binary) << text;
  }

  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(Path(), std::ios::binary).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(ChoiceFileTest, LaterObjectsFindStoredChoices) {
  ChoiceFile file(Path());
  EXPECT_EQ(file.Find("a"), std::nullopt);
  ASSERT_EQ(*file.Put("a", "1 2"), "1 2");
  ASSERT_EQ(*file.Put("b", "3"), "3");
  EXPECT_EQ(file.Find("a"), "1 2");

  const ChoiceFile later(Path());
  EXPECT_EQ(later.Find("a"), "1 2");
  EXPECT_EQ(later.Find("b"), "3");
  EXPECT_EQ(later.Find("c"), std::nullopt);
  // The folder contains no other file.
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/below")) {
    EXPECT_EQ(entry.path().string(), Path());
    ++files;
  }
  EXPECT_EQ(files, 1);
}

TEST_F(ChoiceFileTest, PutReturnsAnExistingChoice) {
  ChoiceFile one(Path()), other(Path());
  ASSERT_EQ(*one.Put("a", "mine"), "mine");
  ASSERT_EQ(*other.Put("b", "theirs"), "theirs");
  ASSERT_EQ(*other.Put("a", "late"), "mine");
  EXPECT_EQ(other.Find("a"), "mine");
  EXPECT_EQ(one.Find("b"), std::nullopt);  // read before Put()
  EXPECT_EQ(*one.Put("b", "late"), "theirs");
}

TEST_F(ChoiceFileTest, FindsChoicesOfAnotherProcess) {
  const pid_t child = fork();
  if (child == 0) {
    ChoiceFile file(Path());
    for (int i = 0; i < 20; ++i) {
      if (!file.Put(absl::StrCat("key ", i), absl::StrCat("choice ", i)).ok()) _exit(1);
    }
    _exit(0);
  }
  ASSERT_GT(child, 0);
  // The file is valid at any time.
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (!std::filesystem::exists(Path())) continue;
    ASSERT_TRUE(internal::ParseChoices(Text()).has_value());
  }
  ASSERT_EQ(status, 0);
  const ChoiceFile file(Path());
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(file.Find(absl::StrCat("key ", i)), absl::StrCat("choice ", i));
  }
}

TEST_F(ChoiceFileTest, DamageIsDetectedWarnedAboutOnceAndRepaired) {
  {
    ChoiceFile file(Path());
    ASSERT_TRUE(file.Put("a key", "a choice").ok());
    ASSERT_TRUE(file.Put("b", "2").ok());
  }
  const std::string sound = Text();
  ASSERT_THAT(*internal::ParseChoices(sound),
              ElementsAre(Pair("a key", "a choice"), Pair("b", "2")));
  for (size_t place = 0; place < sound.size(); ++place) {
    for (const char other : {'x', '\t', '\n', '\0'}) {
      std::string damaged = sound;
      if (damaged[place] == other) continue;
      damaged[place] = other;
      EXPECT_EQ(internal::ParseChoices(damaged), std::nullopt) << place;
    }
    if (place < sound.size()) {
      const auto cut = internal::ParseChoices(sound.substr(0, place));
      // A cut at the end of a line leaves a valid file with fewer choices.
      EXPECT_EQ(cut.has_value(), place > 0 && sound[place - 1] == '\n') << place;
    }
  }

  Write(sound + "one more line\n");
  testing::internal::CaptureStderr();
  ChoiceFile file(Path());
  EXPECT_EQ(file.Find("b"), std::nullopt);
  EXPECT_EQ(*file.Put("c", "3"), "3");
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("is damaged"));
  EXPECT_EQ(log.find("is damaged"), log.rfind("is damaged"));
  EXPECT_THAT(*internal::ParseChoices(Text()), ElementsAre(Pair("c", "3")));
}

TEST_F(ChoiceFileTest, RejectsTextsWithTabsOrLineEndsAndInvalidPaths) {
  ChoiceFile file(Path());
  EXPECT_THAT(file.Put("a\tb", "1").status().message(),
              HasSubstr("key must not be empty or contain tabs"));
  EXPECT_THAT(file.Put("a", "1\n").status().message(),
              HasSubstr("choice must not be empty or contain tabs"));
  EXPECT_THAT(file.Put("", "1").status().message(),
              HasSubstr("key must not be empty or contain tabs"));
  EXPECT_FALSE(std::filesystem::exists(Path()));

  Write("");
  ChoiceFile below(Path() + "/of a file");
  const absl::Status status = below.Put("a", "1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(Path()));
}

}  // namespace
}  // namespace reprise
