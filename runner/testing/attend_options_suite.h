// Tests of the options of Step::Attend() on every device, most of them in captured graphs.

#ifndef REPRISE_RUNNER_TESTING_ATTEND_OPTIONS_SUITE_H_
#define REPRISE_RUNNER_TESTING_ATTEND_OPTIONS_SUITE_H_

#include "reprise/runner/testing/device_suite.h"

namespace reprise {

class AttendOptionsSuite : public DeviceSuite {};

}  // namespace reprise

#endif  // REPRISE_RUNNER_TESTING_ATTEND_OPTIONS_SUITE_H_
