#include "runner/testing/replay_check_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, ReplayCheckSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
