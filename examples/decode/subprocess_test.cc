#include "examples/decode/subprocess.h"

#include <string>

#include "gtest/gtest.h"

namespace reprise {
namespace {

SubprocessResult Shell(const std::string& script, const SubprocessOptions& options = {}) {
  return RunSubprocess({"/bin/sh", "-c", script}, options);
}

TEST(SubprocessTest, KeepsTheOutputsApartAndTheExitCode) {
  const SubprocessResult result = Shell("echo out; echo err >&2; exit 3");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "out\n");
  EXPECT_EQ(result.err, "err\n");
}

TEST(SubprocessTest, StartsInAFolderWithVariables) {
  const SubprocessResult result =
      Shell("pwd; echo $COLOUR", {.folder = "/", .variables = {{"COLOUR", "blue"}}});
  EXPECT_EQ(result.out, "/\nblue\n");
}

TEST(SubprocessTest, ASignalIsNoExitCode) {
  EXPECT_EQ(Shell("kill -SEGV $$").exit_code, std::nullopt);
}

TEST(SubprocessTest, LongOutputsAreWhole) {
  EXPECT_EQ(Shell("head -c 1000000 /dev/zero").out.size(), 1000000u);
}

TEST(SubprocessTest, ArgumentsArePassedAsTheyAre) {
  EXPECT_EQ(RunSubprocess({"/bin/echo", "a b", "$HOME", ""}, {}).out, "a b $HOME \n");
}

}  // namespace
}  // namespace reprise
