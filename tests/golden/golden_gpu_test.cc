// The golden models on a GPU, through captured CUDA graphs.

#include <c10/cuda/CUDAFunctions.h>

#include <memory>
#include <string>

#include "base/dtype.h"
#include "examples/llama/llama_model.h"
#include "gtest/gtest.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_checks.h"

namespace reprise {
namespace {

// Sums are made in another order than on the CPU; TF32 is off.
constexpr double kTolerance = 5e-4;

class GoldenGpuTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    absl::StatusOr<Golden> golden = LoadGolden(GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  std::unique_ptr<LlamaModel> Load(DType dtype) {
    auto model =
        LlamaModel::Load(golden_.folder, {.device = c10::Device(c10::kCUDA, 0), .dtype = dtype});
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }

  Golden golden_;
};

TEST_P(GoldenGpuTest, InFloat32LogitsAndTokensAreGoldenWhateverBlocksChunksAndGraphs) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : AllGoldenRunOptions()) {
    ExpectGoldenLogits(*model, golden_, options, kTolerance);
  }
}

TEST_P(GoldenGpuTest, InSixteenBitsTheErrorIsAtMostTwiceThatOfTransformersInBFloat16) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const auto model = Load(dtype);
    ASSERT_NE(model, nullptr);
    for (const GoldenRunOptions& options : AllGoldenRunOptions()) {
      ExpectErrorAtMostTwiceBf16(*model, golden_, options);
    }
  }
}

TEST_P(GoldenGpuTest, GraphsChangeNoBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const auto model = Load(dtype);
    ASSERT_NE(model, nullptr);
    ExpectGraphsChangeNoBit(*model, golden_, {.block_size = 16});
    ExpectGraphsChangeNoBit(*model, golden_,
                            {.max_num_seqs = 3, .block_size = 1, .prefill_chunk = 3});
  }
}

TEST_P(GoldenGpuTest, BatchingDoesNotMatter) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectBatchingDoesNotMatter(*model, golden_, kTolerance);
}

TEST_P(GoldenGpuTest, EveryLiveCountIsServed) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectEveryLiveCountIsServed(*model, golden_, kTolerance);
}

TEST_P(GoldenGpuTest, EveryDecodeStepAfterTheFirstIsAReplay) {
  const auto model = Load(DType::kBFloat16);
  ASSERT_NE(model, nullptr);
  ExpectDecodeStepsAreReplays(*model, golden_);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenGpuTest,
                         testing::Values("llama-rope-llama3", "llama-bias-untied", "llama-gqa5"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

}  // namespace
}  // namespace reprise
