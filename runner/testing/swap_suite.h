// Tests of ModelRunner for blocks that are swapped to the host and back, on every device.

#ifndef REPRISE_RUNNER_TESTING_SWAP_SUITE_H_
#define REPRISE_RUNNER_TESTING_SWAP_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class SwapSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SWAP_SUITE_H_
