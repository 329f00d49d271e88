// Instantiates suites of runner/testing on the CPU.

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

INSTANTIATE_TEST_SUITE_P(Cpu, AllLogitsSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, AttendOptionsSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, InputEmbeddingsSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, KvScalesSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, LayerKindsSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, LogitsStagesSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, MixedGraphsSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, ReplayCheckSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, SpeculationAcceptanceSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, SpeculationSuite, testing::Values(c10::kCPU));
INSTANTIATE_TEST_SUITE_P(Cpu, SwapSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
