#include "gtest/gtest.h"
#include "reprise/hf/paths.h"

namespace reprise {
namespace {

const UserSurroundings kBazelRun = {
    .build_working_directory = "/home/ada",
    .current_folder = "/cache/bin/examples/decode/decode.runfiles/reprise"};

TEST(UserPathTest, UnderBazelRunARelativePathStartsWhereTheUserIs) {
  EXPECT_EQ(ResolveUserPath("prompts.jsonl", kBazelRun), "/home/ada/prompts.jsonl");
  EXPECT_EQ(ResolveUserPath("../model", kBazelRun), "/home/ada/../model");
}

TEST(UserPathTest, AnAbsolutePathStays) {
  EXPECT_EQ(ResolveUserPath("/models/a", kBazelRun), "/models/a");
  EXPECT_EQ(ResolveUserPath("", kBazelRun), "");
}

TEST(UserPathTest, WithoutBazelAPathStays) {
  EXPECT_EQ(ResolveUserPath("a", {.current_folder = "/tmp"}), "a");
}

TEST(UserPathTest, AnInheritedVariableOutsideRunfilesDoesNotCount) {
  EXPECT_EQ(
      ResolveUserPath("a", {.build_working_directory = "/home/ada", .current_folder = "/tmp"}),
      "a");
}

}  // namespace
}  // namespace reprise
