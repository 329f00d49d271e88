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

}  // namespace
}  // namespace reprise
