// Tests which differences ReplayCheck::kEveryReplay reports, on every device: instantiated for the
// CPU and for CUDA.

#ifndef REPRISE_RUNNER_TESTING_REPLAY_CHECK_SUITE_H_
#define REPRISE_RUNNER_TESTING_REPLAY_CHECK_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class ReplayCheckSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_REPLAY_CHECK_SUITE_H_
