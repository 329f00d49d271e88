#include "gtest/gtest.h"
#include "runner/testing/swap_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, SwapSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
