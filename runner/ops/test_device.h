// Lets one test source serve the CPU and the GPU: GPU tests compile it with REPRISE_TEST_ON_GPU.
//
//   class RmsNormTest : public DeviceTest {};
//   TEST_F(RmsNormTest, ...) { RmsNorm(x.to(device()), ...); }

#ifndef REPRISE_RUNNER_OPS_TEST_DEVICE_H_
#define REPRISE_RUNNER_OPS_TEST_DEVICE_H_

#include <c10/core/Device.h>

#include "gtest/gtest.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {

class DeviceTest : public ::testing::Test {
 protected:
#ifdef REPRISE_TEST_ON_GPU
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
  static c10::Device device() { return c10::Device(c10::kCUDA, 0); }
#else
  static c10::Device device() { return c10::kCPU; }
#endif
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_TEST_DEVICE_H_
