#include <cuda_runtime_api.h>

#include "ATen/core/Tensor.h"
#include "ATen/ops/ones.h"
#include "c10/cuda/CUDAFunctions.h"
#include "gtest/gtest.h"
#include "third_party/cuda_test_kernel.h"

namespace reprise {
namespace {

TEST(CudaTest, LibTorchAndKernelsSeeTheSameGpu) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    GTEST_SKIP() << "no GPU on this machine";
  }
  ASSERT_EQ(c10::cuda::device_count(), num_devices) << "libtorch_cuda was dropped by the linker";
  at::Tensor values = at::ones({1000}, at::TensorOptions(at::kCUDA));
  ASSERT_EQ(LaunchAddOne(values.mutable_data_ptr<float>(), 1000, nullptr), cudaSuccess);
  EXPECT_EQ(values.sum().item<float>(), 2000.0f);
}

}  // namespace
}  // namespace reprise
