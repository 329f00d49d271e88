#include "gtest/gtest.h"
#include "runner/testing/kv_scales_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, KvScalesSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
