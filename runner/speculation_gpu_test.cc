#include "runner/testing/speculation_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, SpeculationSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
