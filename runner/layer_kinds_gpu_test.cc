#include "runner/testing/layer_kinds_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, LayerKindsSuite, testing::Values(c10::kCUDA));
// While another device is current.
INSTANTIATE_TEST_SUITE_P(SecondGpu, LayerKindsSuite, testing::Values(c10::Device(c10::kCUDA, 1)));

}  // namespace
}  // namespace reprise
