#include "gtest/gtest.h"
#include "runner/testing/input_embeddings_suite.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, InputEmbeddingsSuite, testing::Values(c10::kCUDA));

}  // namespace
}  // namespace reprise
