// Random traffic over an engine on every device: instantiated for the CPU and for CUDA.

#ifndef REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_SUITE_H_
#define REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class EngineTrafficSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_ENGINE_TRAFFIC_SUITE_H_
