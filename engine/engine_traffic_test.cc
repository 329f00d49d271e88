#include "gtest/gtest.h"
#include "reprise/engine/testing/engine_traffic_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, EngineTrafficSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
