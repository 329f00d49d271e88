#include "reprise/base/testing/test_seed.h"

#include <cstdlib>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

// Restores the variable, because other tests of the program read it.
class TestSeedTest : public testing::Test {
 protected:
  TestSeedTest() {
    if (const char* const value = std::getenv("REPRISE_SEED"); value != nullptr) before_ = value;
  }
  ~TestSeedTest() override {
    before_.has_value() ? Set(before_->c_str()) : static_cast<void>(unsetenv("REPRISE_SEED"));
  }
  static void Set(const char* value) { setenv("REPRISE_SEED", value, /*overwrite=*/1); }

 private:
  std::optional<std::string> before_;
};

TEST_F(TestSeedTest, EnvironmentVariableSetsTheSeed) {
  Set("4294967295");
  EXPECT_EQ(TestSeed(), 4294967295u);
  EXPECT_THAT(TestSeeds({1, 2}), ElementsAre(4294967295u));
}

TEST_F(TestSeedTest, WithoutVariableSeedsAreRandomAndListsUnchanged) {
  unsetenv("REPRISE_SEED");
  EXPECT_THAT(TestSeeds({1, 2}), ElementsAre(1, 2));
  // Four equal seeds occur by chance once in 2^96 runs.
  const unsigned first = TestSeed();
  EXPECT_FALSE(TestSeed() == first && TestSeed() == first && TestSeed() == first);
}

TEST_F(TestSeedTest, DiesIfTheVariableIsNotANumber) {
  for (const char* const value : {"", "-1", "4294967296", "7x"}) {
    Set(value);
    EXPECT_DEATH(TestSeed(), "REPRISE_SEED must be a number");
  }
}

}  // namespace
}  // namespace reprise
