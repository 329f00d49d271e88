#include "runner/testing/mixed_graphs_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, MixedGraphsSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
