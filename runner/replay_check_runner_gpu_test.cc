#include "runner/testing/replay_check_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, ReplayCheckSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
