// What ReplayCheck::kEveryReplay must find, and what it must not, on every device: instantiated for
// the CPU and for CUDA.

#ifndef RUNNER_TESTING_REPLAY_CHECK_SUITE_H_
#define RUNNER_TESTING_REPLAY_CHECK_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class ReplayCheckSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_REPLAY_CHECK_SUITE_H_
