#include "gtest/gtest.h"
#include "runner/testing/swap_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, SwapSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
