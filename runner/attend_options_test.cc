#include "gtest/gtest.h"
#include "runner/testing/attend_options_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, AttendOptionsSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
