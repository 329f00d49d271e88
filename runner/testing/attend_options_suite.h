// What Step::Attend must do with its options on every device, in captured graphs.

#ifndef RUNNER_TESTING_ATTEND_OPTIONS_SUITE_H_
#define RUNNER_TESTING_ATTEND_OPTIONS_SUITE_H_

#include "runner/testing/device_suite.h"

namespace reprise {

class AttendOptionsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // RUNNER_TESTING_ATTEND_OPTIONS_SUITE_H_
