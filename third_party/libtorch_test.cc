#include <filesystem>
#include <fstream>

#include "ATen/core/Tensor.h"
#include "ATen/ops/ones.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

TEST(LibTorchTest, AddsTensorsOnTheCpu) {
  at::Tensor sum = at::ones({2, 3}).add(at::ones({2, 3}));
  EXPECT_EQ(sum.sum().item<float>(), 12.0f);
}

// LibTorch exports an older std::filesystem, to which a program must not be bound: its remove_all()
// crashes.
TEST(LibTorchTest, LeavesTheProgramItsOwnStandardLibrary) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "libtorch_test" / "nested";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "file") << "text";
  EXPECT_EQ(std::filesystem::remove_all(folder.parent_path()), 3u);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace reprise
