#include "gtest/gtest.h"
#include "runner/testing/input_embeddings_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, InputEmbeddingsSuite, testing::Values(c10::kCPU));

}  // namespace
}  // namespace reprise
