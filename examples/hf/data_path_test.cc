#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/hf/paths.h"

namespace reprise {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::Eq;
using testing::Optional;

// A file `path` under a fresh folder, which is returned.
std::string FolderWith(const std::string& name, const std::string& path) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(root);
  const std::filesystem::path file = root / path;
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << "x";
  return root.string();
}

TEST(DataPathTest, RunfilesComeBeforeTheFoldersAround) {
  EXPECT_THAT(DataRoots({.runfiles_dir = "/r",
                         .test_srcdir = "/t",
                         .executable = "/out/bin/decode",
                         .current_folder = "/home"}),
              ElementsAre("/r/reprise", "/r/_main", "/t/reprise", "/t/_main",
                          "/out/bin/decode.runfiles/reprise", "/out/bin/decode.runfiles/_main",
                          "/out/bin", "/out", "/", "/home", "/"));
}

TEST(DataPathTest, AnExplicitRootReplacesAllOthers) {
  EXPECT_THAT(DataRoots({.data_root = "/d", .runfiles_dir = "/r", .executable = "/b/x"}),
              ElementsAre("/d"));
}

TEST(DataPathTest, FindsDataInTheRunfilesOfABinaryStartedByItself) {
  const std::string root = FolderWith("runfiles_case", "decode.runfiles/reprise/a/model.bin");
  const auto roots = DataRoots({.executable = root + "/decode", .current_folder = "/"});
  EXPECT_THAT(FindData("a/model.bin", roots),
              Optional(Eq(root + "/decode.runfiles/reprise/a/model.bin")));
}

TEST(DataPathTest, FindsDataBesideABinaryThatWasCarriedAway) {
  const std::string root = FolderWith("carried_case", "bundle/tests/goldens/x.json");
  const auto roots = DataRoots({.executable = root + "/bundle/bin/gpu_all", .current_folder = "/"});
  EXPECT_THAT(FindData("tests/goldens/x.json", roots),
              Optional(Eq(root + "/bundle/tests/goldens/x.json")));
}

TEST(DataPathTest, DataThatIsNowhereIsNothing) {
  EXPECT_EQ(FindData("no/such/file", DataRoots()), std::nullopt);
  EXPECT_EQ(FindData("a", {}), std::nullopt);
}

TEST(DataPathTest, SeesItsOwnProcess) {
  const DataSurroundings surroundings = DataSurroundings::OfThisProcess();
  EXPECT_TRUE(std::filesystem::exists(surroundings.executable));
  EXPECT_THAT(DataRoots(surroundings),
              Contains(std::filesystem::path(surroundings.executable).parent_path().string()));
}

}  // namespace
}  // namespace reprise
