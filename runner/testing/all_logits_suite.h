// Tests of ModelRunner for rows that request the logits of all their tokens, and for known tokens,
// on every device.

#ifndef REPRISE_RUNNER_TESTING_ALL_LOGITS_SUITE_H_
#define REPRISE_RUNNER_TESTING_ALL_LOGITS_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class AllLogitsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_ALL_LOGITS_SUITE_H_
