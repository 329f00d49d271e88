// What a ModelRunner must do with scales and layouts of its cache on every device.

#ifndef RUNNER_TESTING_KV_SCALES_SUITE_H_
#define RUNNER_TESTING_KV_SCALES_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class KvScalesSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_KV_SCALES_SUITE_H_
