// Tests of ModelRunner for the stages between logits and tokens, on every device.

#ifndef REPRISE_RUNNER_TESTING_LOGITS_STAGES_SUITE_H_
#define REPRISE_RUNNER_TESTING_LOGITS_STAGES_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class LogitsStagesSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_LOGITS_STAGES_SUITE_H_
