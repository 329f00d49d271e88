// Tests of ModelRunner for models whose layers differ (windows, chunks, shared keys, MLA, other
// sizes, encoders), on every device: instantiated for the CPU and for CUDA.

#ifndef REPRISE_RUNNER_TESTING_LAYER_KINDS_SUITE_H_
#define REPRISE_RUNNER_TESTING_LAYER_KINDS_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class LayerKindsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_LAYER_KINDS_SUITE_H_
