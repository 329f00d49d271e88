// What a ModelRunner must do with blocks that move to the host and back, on every device.

#ifndef RUNNER_TESTING_SWAP_SUITE_H_
#define RUNNER_TESTING_SWAP_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class SwapSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_SWAP_SUITE_H_
