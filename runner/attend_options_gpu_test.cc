#include "gtest/gtest.h"
#include "runner/testing/attend_options_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, AttendOptionsSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
