// The golden models; compiled with REPRISE_TEST_ON_GPU, on a GPU through captured CUDA graphs.

#include "tests/golden/golden.h"

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "examples/models/llama/dense_llama.h"
#include "examples/models/llama/llama_model.h"
#include "gtest/gtest.h"
#include "tests/golden/golden_checks.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/golden_model.h"
#include "tests/golden/golden_runner.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {
namespace {

#ifdef REPRISE_TEST_ON_GPU
// The order of sums differs from the CPU's; TF32 is off.
constexpr double kTolerance = 5e-4;
const c10::Device kDevice(c10::kCUDA, 0);
#else
constexpr double kTolerance = 2e-4;
const c10::Device kDevice(c10::kCPU);
#endif

// "llama-rope-llama3" in the form of gtest names.
std::string TestName(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class GoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
#ifdef REPRISE_TEST_ON_GPU
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
#endif
    // The models are so small that threads would only wait for each other.
    at::set_num_threads(1);
    absl::StatusOr<Golden> golden = LoadGolden(GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  std::unique_ptr<Model> Load(DType dtype) {
    auto model = LoadGoldenModel(golden_, kDevice, dtype);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }

  // Of models with experts, as ExpectErrorAtMostTwiceBf16() takes them; else empty.
  std::vector<std::vector<double>> RouterMargins() {
    const auto model = LoadGoldenModel(golden_, c10::kCPU, DType::kFloat32);
    EXPECT_TRUE(model.ok()) << model.status();
    const auto* const llama = model.ok() ? dynamic_cast<LlamaModel*>(model->get()) : nullptr;
    if (llama == nullptr || !llama->config().experts.has_value()) return {};
    std::vector<std::vector<double>> margins;
    const std::vector<std::vector<int32_t>> inputs = TrackInputs(golden_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const GoldenPrompt& prompt = golden_.prompts[i / 2];
      const at::Tensor all = DenseRouterMargins(*llama, inputs[i]).contiguous();
      const double* const data = all.const_data_ptr<double>();
      margins.emplace_back(data + prompt.prompt.size() - 1, data + all.numel());
      EXPECT_EQ(margins.back().size(), prompt.greedy.tokens.size());
    }
    return margins;
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

TEST_P(GoldenTest, InSixteenBitsTheErrorIsAtMostTwiceThatOfTransformersInBFloat16) {
  const std::vector<std::vector<double>> margins = RouterMargins();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const auto model = Load(dtype);
    ASSERT_NE(model, nullptr);
    for (const GoldenRunOptions& options : SomeGoldenRunOptions()) {
      ExpectErrorAtMostTwiceBf16(*model, golden_, options, margins);
    }
  }
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

TEST_P(GoldenTest, TokensOfATrackMayBePartOfThePrompt) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectTracksContinuePrompts(*model, golden_, kTolerance);
}

TEST_P(GoldenTest, ThreadsDoNotMatter) {
  at::set_num_threads(2);
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  const GoldenPrompt& prompt = golden_.prompts[4];  // the longest
  const auto run = RunGolden(*model, {ForcedRequest(prompt, prompt.forced, 5)}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_LE(MaxError(run->tracks[0].logits, prompt.forced.LogitsBefore(0, 5)), kTolerance);
}

TEST_P(GoldenTest, EveryLiveCountIsServed) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectEveryLiveCountIsServed(*model, golden_, kTolerance);
}

TEST_P(GoldenTest, EveryDecodeStepAfterTheFirstIsAReplay) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const auto model = Load(dtype);
    ASSERT_NE(model, nullptr);
    ExpectDecodeStepsAreReplays(*model, golden_);
  }
}

// A model of latents whose cache holds the keys and values of every head: the same goldens.
class ExpandedMlaGoldenTest : public GoldenTest {
 protected:
  std::unique_ptr<Model> LoadExpanded(DType dtype) {
    auto model = LoadGoldenModel(golden_, kDevice, dtype, MlaCache::kExpanded);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return nullptr;
    EXPECT_FALSE((*model)->spec().layers[0].v_in_k);
    return *std::move(model);
  }
};

TEST_P(ExpandedMlaGoldenTest, InFloat32LogitsAndTokensAreGoldenWhateverBlocksChunksAndGraphs) {
  const auto model = LoadExpanded(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : AllGoldenRunOptions()) {
    ExpectGoldenLogits(*model, golden_, options, kTolerance);
  }
}

TEST_P(ExpandedMlaGoldenTest, InSixteenBitsTheErrorIsAtMostTwiceThatOfTransformersInBFloat16) {
  const auto model = LoadExpanded(DType::kBFloat16);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : SomeGoldenRunOptions()) {
    ExpectErrorAtMostTwiceBf16(*model, golden_, options);
  }
}

TEST_P(ExpandedMlaGoldenTest, EveryDecodeStepAfterTheFirstIsAReplay) {
  const auto model = LoadExpanded(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectDecodeStepsAreReplays(*model, golden_);
  ExpectGraphsChangeNoBit(*model, golden_, {.block_size = 16});
}

INSTANTIATE_TEST_SUITE_P(Models, ExpandedMlaGoldenTest,
                         testing::Values("deepseek-mla", "deepseek-mla-yarn"), TestName);

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values("bart", "bloom-alibi", "deepseek-mla", "deepseek-mla-yarn",
                                         "gemma2", "gemma3", "gpt-oss-sinks", "gpt2",
                                         "llama-bias-untied", "llama-gqa5", "llama-rope-linear",
                                         "llama-rope-llama3", "llama4-chunked", "mistral-window",
                                         "qwen2", "qwen3", "qwen3-moe", "qwen3-rope-yarn"),
                         TestName);

}  // namespace
}  // namespace reprise
