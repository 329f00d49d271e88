// The operations between logits and tokens compute bitwise identical results on the device and on
// the host: for hostile arguments, captured in a graph, with every byte of the memory compared.

#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/testing/builder_twins.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/runner/sampling/log_probs.h"
#include "reprise/runner/sampling/logits_processors.h"
#include "reprise/runner/sampling/logits_state.h"
#include "reprise/runner/sampling/raw_logits.h"
#include "reprise/runner/testing/logits_cases.h"

namespace reprise {
namespace {

class LogitsUnitsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasCudaDevice()) GTEST_SKIP() << "no GPU on this machine";
  }
};

// Returns vocabularies of real models, aligned and not aligned, for each dtype.
std::vector<LogitsShape> LargeShapes() {
  std::vector<LogitsShape> shapes;
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int vocab_size : {32000, 50257, 128256}) {
      for (int offset : {0, 1}) {
        shapes.push_back({.dtype = dtype,
                          .num_rows = 5,
                          .num_slots = 6,
                          .vocab_size = vocab_size,
                          .gap = vocab_size % 8 == 0 ? 8 : 0,
                          .offset = offset,
                          .max_biases = 300,
                          .max_top = kMaxTopLogProbs,
                          .num_joins = 5,
                          .num_listed_biases = 400,
                          .num_listed_tokens = 20000});
      }
    }
  }
  return shapes;
}

template <typename Args, typename Carve, typename Launch, typename Draw, typename OnHost>
void CompareManyShapes(Carve carve, Launch launch, Draw draw, OnHost on_host) {
  std::vector<LogitsShape> shapes = LargeShapes();
  std::mt19937 random(1);
  for (int i = 0; i < 150; ++i) shapes.push_back(DrawLogitsShape(random));
  for (const LogitsShape& shape : shapes) {
    SCOPED_TRACE(testing::Message() << shape);
    BuilderTwins<Args> twins([&](ArrayCarver& carver) { return carve(shape, carver); }, launch);
    for (double hostility : {0.0, 0.1, 0.5}) {
      twins.Poison();
      draw(random, shape, hostility, twins.args());
      ASSERT_EQ(twins.Compare(on_host), "") << "hostility " << hostility;
    }
  }
}

TEST_F(LogitsUnitsGpuTest, JoinsMatchTheHost) {
  CompareManyShapes<JoinLogitsArgs>(CarveJoinLogits, LaunchJoinLogits, DrawJoinLogits,
                                    JoinLogitsOnHost);
}

TEST_F(LogitsUnitsGpuTest, TokenCountsMatchTheHost) {
  CompareManyShapes<CountTokensArgs>(CarveCountTokens, LaunchCountTokens, DrawCountTokens,
                                     CountTokensOnHost);
}

TEST_F(LogitsUnitsGpuTest, ProcessedLogitsMatchTheHost) {
  CompareManyShapes<LogitsProcessorsArgs>(CarveLogitsProcessors, LaunchLogitsProcessors,
                                          DrawLogitsProcessors, LogitsProcessorsOnHost);
}

TEST_F(LogitsUnitsGpuTest, RawLogitsMatchTheHost) {
  CompareManyShapes<RawLogitsArgs>(CarveRawLogits, LaunchKeepRawLogits, DrawRawLogits,
                                   KeepRawLogitsOnHost);
}

TEST_F(LogitsUnitsGpuTest, LogProbsMatchTheHost) {
  CompareManyShapes<LogProbsArgs>(CarveLogProbs, LaunchLogProbs, DrawLogProbs, LogProbsOnHost);
}

TEST_F(LogitsUnitsGpuTest, TokensThatRepeatInALongPromptAreCountedOnceEach) {
  // All threads of the CTA update three tokens; two of the counts are in one word of memory.
  const LogitsShape shape = {.num_slots = 1,
                             .vocab_size = 64,
                             .num_joins = 1,
                             .num_listed_biases = 0,
                             .num_listed_tokens = 50000};
  BuilderTwins<JoinLogitsArgs> twins(
      [&](ArrayCarver& carver) { return CarveJoinLogits(shape, carver); }, LaunchJoinLogits);
  std::mt19937 random(2);
  DrawJoinLogits(random, shape, 0, twins.args());
  auto* tokens = const_cast<int32_t*>(twins.args().tokens);
  for (int i = 0; i < shape.num_listed_tokens; ++i) tokens[i] = i % 3 == 0 ? 7 : 10 + i % 2;
  *const_cast<LogitsJoin*>(twins.args().joins) = {
      .params = {.presence_penalty = 1}, .num_prompt_tokens = 100, .num_output_tokens = 49900};
  ASSERT_EQ(twins.Compare(JoinLogitsOnHost), "");
  EXPECT_EQ(OutputCount(twins.args().slots.counts[7]), 16633);  // a third of the output
}

TEST_F(LogitsUnitsGpuTest, MasksAndOutputsMayBeMappedHostMemory) {
  const LogitsShape shape = {.num_rows = 6, .num_slots = 6, .vocab_size = 50257, .num_masks = 6};
  std::mt19937 random(3);
  BuilderMemory<LogitsProcessorsArgs> host(
      [&](ArrayCarver& carver) { return CarveLogitsProcessors(shape, carver); });
  DrawLogitsProcessors(random, shape, 0.1, host.args());
  void* mapped = nullptr;
  CheckCuda(cudaHostAlloc(&mapped, host.num_bytes(), cudaHostAllocMapped));
  __builtin_memcpy(mapped, host.base(), host.num_bytes());
  const LogitsProcessorsArgs args = host.ArgsAt(static_cast<std::byte*>(mapped));
  ASSERT_EQ(LaunchLogitsProcessors(args, nullptr), absl::OkStatus());
  CheckCuda(cudaDeviceSynchronize());
  LogitsProcessorsOnHost(host.args());
  EXPECT_EQ(host.FirstDifference(static_cast<std::byte*>(mapped)), "");
  CheckCuda(cudaFreeHost(mapped));
}

}  // namespace
}  // namespace reprise
