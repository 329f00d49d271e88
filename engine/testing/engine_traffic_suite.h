// Random traffic over an engine on every device: instantiated for the CPU and for CUDA.

#ifndef ENGINE_TESTING_ENGINE_TRAFFIC_SUITE_H_
#define ENGINE_TESTING_ENGINE_TRAFFIC_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class EngineTrafficSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // ENGINE_TESTING_ENGINE_TRAFFIC_SUITE_H_
