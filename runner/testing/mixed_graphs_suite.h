// Tests of ModelRunner for captured mixed steps (prompts and decodes in one graph), on every
// device: instantiated for the CPU and for CUDA.

#ifndef REPRISE_RUNNER_TESTING_MIXED_GRAPHS_SUITE_H_
#define REPRISE_RUNNER_TESTING_MIXED_GRAPHS_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class MixedGraphsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_MIXED_GRAPHS_SUITE_H_
