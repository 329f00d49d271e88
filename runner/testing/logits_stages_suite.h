// What a ModelRunner must do with stages between logits and tokens on every device.

#ifndef RUNNER_TESTING_LOGITS_STAGES_SUITE_H_
#define RUNNER_TESTING_LOGITS_STAGES_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class LogitsStagesSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_LOGITS_STAGES_SUITE_H_
