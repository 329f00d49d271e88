// What a ModelRunner must do with captured mixed steps (prompts and decodes in one graph), on every
// device: instantiated for the CPU and for CUDA.

#ifndef RUNNER_TESTING_MIXED_GRAPHS_SUITE_H_
#define RUNNER_TESTING_MIXED_GRAPHS_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class MixedGraphsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_MIXED_GRAPHS_SUITE_H_
