#include "runner/testing/layer_kinds_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, LayerKindsSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
