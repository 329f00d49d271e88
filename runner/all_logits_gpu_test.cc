#include "gtest/gtest.h"
#include "runner/testing/all_logits_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, AllLogitsSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
