// What a ModelRunner must do on every device: instantiated for the CPU and for CUDA.

#ifndef RUNNER_TESTING_MODEL_RUNNER_SUITE_H_
#define RUNNER_TESTING_MODEL_RUNNER_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class ModelRunnerSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_MODEL_RUNNER_SUITE_H_
