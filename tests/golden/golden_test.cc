// The golden models on the CPU.

#include "tests/golden/golden.h"

#include <ATen/Parallel.h>

#include <memory>
#include <string>

#include "absl/types/span.h"
#include "base/dtype.h"
#include "examples/llama/llama_model.h"
#include "gtest/gtest.h"
#include "tests/golden/golden_checks.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/golden_runner.h"

namespace reprise {
namespace {

constexpr double kTolerance = 2e-4;

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    // The models are so small that threads would only wait for each other.
    at::set_num_threads(1);
    absl::StatusOr<Golden> golden = LoadGolden(GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  std::unique_ptr<LlamaModel> Load(DType dtype) {
    auto model = LlamaModel::Load(golden_.folder, {.dtype = dtype});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }

  Golden golden_;
};

TEST_P(GoldenTest, InFloat32LogitsAndTokensAreGoldenWhateverBlocksChunksAndGraphs) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : AllGoldenRunOptions()) {
    ExpectGoldenLogits(*model, golden_, options, kTolerance);
  }
}

TEST_P(GoldenTest, InBFloat16TheErrorIsAtMostTwiceThatOfTransformers) {
  const auto model = Load(DType::kBFloat16);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : AllGoldenRunOptions()) {
    ExpectErrorAtMostTwiceBf16(*model, golden_, options);
  }
}

TEST_P(GoldenTest, InFloat16TheErrorIsAtMostTwiceThatOfTransformersInBFloat16) {
  const auto model = Load(DType::kFloat16);
  ASSERT_NE(model, nullptr);
  ExpectErrorAtMostTwiceBf16(*model, golden_, {});
}

TEST_P(GoldenTest, GraphsChangeNoBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const auto model = Load(dtype);
    ASSERT_NE(model, nullptr);
    ExpectGraphsChangeNoBit(*model, golden_, {.block_size = 16});
    ExpectGraphsChangeNoBit(*model, golden_,
                            {.max_num_seqs = 3, .block_size = 1, .prefill_chunk = 3});
  }
}

TEST_P(GoldenTest, BatchingDoesNotMatter) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectBatchingDoesNotMatter(*model, golden_, kTolerance);
}

TEST_P(GoldenTest, ThreadsDoNotMatter) {
  at::set_num_threads(2);
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  const GoldenPrompt& prompt = golden_.prompts[4];  // the longest
  const auto run = RunGolden(*model, {ForcedRequest(prompt, prompt.forced, 5)}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_LE(MaxError(run->tracks[0].logits,
                     absl::MakeConstSpan(prompt.forced.logits).first(5 * golden_.vocab_size)),
            kTolerance);
}

TEST_P(GoldenTest, EveryLiveCountIsServed) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectEveryLiveCountIsServed(*model, golden_, kTolerance);
}

TEST_P(GoldenTest, EveryDecodeStepAfterTheFirstIsAReplay) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectDecodeStepsAreReplays(*model, golden_);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values("llama-rope-llama3", "llama-bias-untied", "llama-gqa5"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace reprise
