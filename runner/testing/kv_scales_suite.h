// Tests of ModelRunner for KV scales and cache layouts, on every device.

#ifndef REPRISE_RUNNER_TESTING_KV_SCALES_SUITE_H_
#define REPRISE_RUNNER_TESTING_KV_SCALES_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class KvScalesSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_KV_SCALES_SUITE_H_
