// Tests that are instantiated for the CPU and for GPUs. Tests of an absent GPU are skipped.

#ifndef REPRISE_RUNNER_TESTING_DEVICE_SUITE_H_
#define REPRISE_RUNNER_TESTING_DEVICE_SUITE_H_

#include <ATen/Parallel.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>

#include "gtest/gtest.h"

namespace reprise {

class DeviceSuite : public testing::TestWithParam<c10::Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_cuda()) {
      const int num_gpus = c10::impl::hasDeviceGuardImpl(c10::kCUDA)
                               ? c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount()
                               : 0;
      if (num_gpus <= std::max<int>(GetParam().index(), 0)) {
        GTEST_SKIP() << "no " << GetParam().str() << " on this machine";
      }
    }
    // The steps and references are so small that they finish before a second thread has started.
    at::set_num_threads(1);
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_DEVICE_SUITE_H_
