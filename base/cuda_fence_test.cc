#include "reprise/base/cuda_fence.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

// Tests on a GPU are in base/cuda_fence_gpu_test.cc.
TEST(CudaFenceTest, WithoutAGpuReturnsAnErrorOrACompleteFence) {
  const absl::StatusOr<std::unique_ptr<Fence>> fence = MakeCudaFence({});
#ifndef REPRISE_WITH_CUDA
  EXPECT_EQ(fence.status().code(), absl::StatusCode::kUnimplemented);
#else
  if (fence.ok()) {
    EXPECT_TRUE((*fence)->Passed());
  } else {
    EXPECT_EQ(fence.status().code(), absl::StatusCode::kInternal) << fence.status();
  }
#endif
}

}  // namespace
}  // namespace reprise
