#include "runner/testing/mixed_graphs_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, MixedGraphsSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
