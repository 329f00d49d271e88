#include "engine/testing/attending_heads_suite.h"
#include "engine/testing/engine_traffic_suite.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, AttendingHeadsSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, EngineTrafficSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
