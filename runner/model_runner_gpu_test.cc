#include "gtest/gtest.h"
#include "runner/testing/model_runner_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, ModelRunnerSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
