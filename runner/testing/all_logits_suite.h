// What a ModelRunner must do with rows that ask for the logits of all their tokens, and with tokens
// that the caller knows, on every device.

#ifndef RUNNER_TESTING_ALL_LOGITS_SUITE_H_
#define RUNNER_TESTING_ALL_LOGITS_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class AllLogitsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_ALL_LOGITS_SUITE_H_
