// Tests of ModelRunner on every device: instantiated for the CPU and for CUDA.

#ifndef REPRISE_RUNNER_TESTING_MODEL_RUNNER_SUITE_H_
#define REPRISE_RUNNER_TESTING_MODEL_RUNNER_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class ModelRunnerSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_MODEL_RUNNER_SUITE_H_
