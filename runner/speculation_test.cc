#include "runner/testing/speculation_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, SpeculationSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
