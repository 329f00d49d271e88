// Tests of ModelRunner for drafts with rejection sampling, for draft heads, and for verification
// within graphs, on every device: instantiated for the CPU and for CUDA.

#ifndef REPRISE_RUNNER_TESTING_SPECULATION_ACCEPTANCE_SUITE_H_
#define REPRISE_RUNNER_TESTING_SPECULATION_ACCEPTANCE_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class SpeculationAcceptanceSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_SPECULATION_ACCEPTANCE_SUITE_H_
