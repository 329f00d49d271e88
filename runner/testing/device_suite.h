// Tests that are instantiated for the CPU and for CUDA; the latter are skipped without a GPU.

#ifndef RUNNER_TESTING_DEVICE_SUITE_H_
#define RUNNER_TESTING_DEVICE_SUITE_H_

#include <ATen/Parallel.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "gtest/gtest.h"

namespace reprise {

class DeviceSuite : public testing::TestWithParam<c10::DeviceType> {
 protected:
  void SetUp() override {
    if (GetParam() == c10::kCUDA &&
        (!c10::impl::hasDeviceGuardImpl(c10::kCUDA) ||
         c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() == 0)) {
      GTEST_SKIP() << "no GPU on this machine";
    }
    // Steps this small are over before a second thread has begun.
    if (GetParam() == c10::kCPU) at::set_num_threads(1);
  }
};

}  // namespace reprise

#endif  // RUNNER_TESTING_DEVICE_SUITE_H_
