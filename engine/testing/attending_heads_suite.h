// Engines with drafters that have a KV cache: draft heads with attention, and draft models that
// must catch up. Instantiated for the CPU and for CUDA.

#ifndef REPRISE_ENGINE_TESTING_ATTENDING_HEADS_SUITE_H_
#define REPRISE_ENGINE_TESTING_ATTENDING_HEADS_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class AttendingHeadsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_ATTENDING_HEADS_SUITE_H_
