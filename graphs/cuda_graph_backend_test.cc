#include "reprise/graphs/cuda_graph_backend.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {
namespace {

using ::testing::HasSubstr;

// Tests on a GPU are in graphs/cuda_graph_gpu_test.cc.
TEST(CudaGraphBackendTest, CreateFailsWithoutAGpu) {
#ifdef REPRISE_WITH_CUDA
  if (c10::cuda::device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  const absl::Status status = CudaGraphBackend::Create({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("device must be a GPU: found none"));
#else
  const absl::Status status = CudaGraphBackend::Create({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this build has no CUDA"));
#endif
}

}  // namespace
}  // namespace reprise
