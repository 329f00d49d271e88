// What a ModelRunner must do with drafts that are accepted by rejection sampling, with heads, and with
// the verification within its graphs, on every device: instantiated for the CPU and for CUDA.

#ifndef REPRISE_RUNNER_TESTING_SPECULATION_ACCEPTANCE_SUITE_H_
#define REPRISE_RUNNER_TESTING_SPECULATION_ACCEPTANCE_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class SpeculationAcceptanceSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SPECULATION_ACCEPTANCE_SUITE_H_
