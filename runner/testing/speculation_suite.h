// What a ModelRunner must do with drafts, on every device: instantiated for the CPU and for CUDA.

#ifndef RUNNER_TESTING_SPECULATION_SUITE_H_
#define RUNNER_TESTING_SPECULATION_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class SpeculationSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_SPECULATION_SUITE_H_
