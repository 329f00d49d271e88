#include "runner/testing/layer_kinds_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, LayerKindsSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
