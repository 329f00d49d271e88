#include "gtest/gtest.h"
#include "runner/testing/logits_stages_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, LogitsStagesSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
