// Instantiates suites of runner/testing on the GPUs of this machine.

#include "gtest/gtest.h"
#include "reprise/runner/testing/all_logits_suite.h"
#include "reprise/runner/testing/attend_options_suite.h"
#include "reprise/runner/testing/input_embeddings_suite.h"
#include "reprise/runner/testing/kv_scales_suite.h"
#include "reprise/runner/testing/layer_kinds_suite.h"
#include "reprise/runner/testing/logits_stages_suite.h"
#include "reprise/runner/testing/mixed_graphs_suite.h"
#include "reprise/runner/testing/replay_check_suite.h"
#include "reprise/runner/testing/speculation_acceptance_suite.h"
#include "reprise/runner/testing/speculation_suite.h"
#include "reprise/runner/testing/swap_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, AllLogitsSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, AttendOptionsSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, InputEmbeddingsSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, KvScalesSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, LayerKindsSuite, testing::Values(c10::kCUDA));
// The runner's device is not the current device, which is GPU 0.
INSTANTIATE_TEST_SUITE_P(SecondGpu, LayerKindsSuite, testing::Values(c10::Device(c10::kCUDA, 1)));
INSTANTIATE_TEST_SUITE_P(Cuda, LogitsStagesSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, MixedGraphsSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, ReplayCheckSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, SpeculationAcceptanceSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, SpeculationSuite, testing::Values(c10::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, SwapSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
