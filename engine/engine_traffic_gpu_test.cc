#include "gtest/gtest.h"
#include "reprise/engine/testing/attending_heads_suite.h"
#include "reprise/engine/testing/engine_traffic_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, AttendingHeadsSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, EngineTrafficSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
