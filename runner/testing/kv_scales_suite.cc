#include "reprise/runner/testing/kv_scales_suite.h"

#include <ATen/ops/equal.h>
#include <c10/core/StreamGuard.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/runner/testing/runner_harness.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KvScalesSuite);

namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Tolerance of logits with an fp8 cache, whose elements have 4 significant bits, against float32:
// about twice the largest error of these sequences, 0.26.
constexpr double kFp8Error = 0.5;

struct Case {
  float kv_factor = 1;
  std::optional<float> kv_scale = {};
  DType kv_dtype = DType::kFp8E4M3;
  KvOrder order = KvOrder::kNHD;
  KvForm form = KvForm::kPair;
  KvScaleShape shape = KvScaleShape::kPerLayer;
  KvCalibration calibration = KvCalibration::kOff;
  std::optional<GraphSetOptions::Mode> graphs = {};
};

std::unique_ptr<RunnerHarness> Make(c10::Device device, const Case& c) {
  auto harness =
      RunnerHarness::Create({.max_num_seqs = 2,
                             .max_num_tokens = 32,
                             .max_seq_len = 64,
                             .cache = {.block_size = 4,
                                       .dtype = c.kv_dtype,
                                       .order = c.order,
                                       .form = c.form,
                                       .scale_shape = c.shape,
                                       .calibration = c.calibration},
                             .graphs = {.mode = c.graphs}},
                            {.kv_factor = c.kv_factor, .kv_scale = c.kv_scale, .device = device});
  EXPECT_TRUE(harness.ok()) << harness.status();
  if (!harness.ok()) return nullptr;
  (*harness)->Join(SlotId(0), {1, 2, 3, 4, 5, 6, 7});
  (*harness)->Join(SlotId(1), {11, 12});
  return *std::move(harness);
}

absl::Status StepBoth(RunnerHarness& harness) { return harness.Step({SlotId(0), SlotId(1)}); }

// Returns the errors of a prompt and five decodes.
std::vector<double> Errors(RunnerHarness& harness) {
  std::vector<double> errors;
  for (int step = 0; step < 6; ++step) {
    const absl::Status status = StepBoth(harness);
    EXPECT_TRUE(status.ok()) << status;
    errors.push_back(harness.MaxLogitsError());
  }
  return errors;
}

}  // namespace

// Dividing keys by a power of two and multiplying them again is exact: the results are bitwise
// identical to those of a model whose keys are smaller by this factor.
TEST_P(KvScalesSuite, ScalesOfTheSpecApplyToWritesAndReads) {
  auto plain = Make(GetParam(), {});
  auto scaled = Make(GetParam(), {.kv_factor = 1024, .kv_scale = 1024.0f});
  ASSERT_TRUE(plain != nullptr && scaled != nullptr);
  for (int step = 0; step < 6; ++step) {
    ASSERT_EQ(StepBoth(*plain), absl::OkStatus());
    ASSERT_EQ(StepBoth(*scaled), absl::OkStatus());
    ASSERT_TRUE(at::equal(plain->logits(), scaled->logits())) << "step " << step;
  }
  EXPECT_EQ(scaled->decision().kind, GraphDecision::Kind::kReplay);
  EXPECT_THAT(Errors(*Make(GetParam(), {})), Each(testing::Lt(kFp8Error)));
  // Without a scale, these keys saturate.
  auto saturated = Make(GetParam(), {.kv_factor = 1024});
  EXPECT_THAT(Errors(*saturated), Each(testing::Gt(2 * kFp8Error)));
}

TEST_P(KvScalesSuite, ACapturedGraphReadsNewScales) {
  auto on = Make(GetParam(), {});
  auto off = Make(GetParam(), {.graphs = GraphSetOptions::Mode::kOff});
  auto unchanged = Make(GetParam(), {});
  ASSERT_TRUE(on != nullptr && off != nullptr && unchanged != nullptr);
  for (int step = 0; step < 6; ++step) {
    if (step == 3) {
      for (RunnerHarness* harness : {on.get(), off.get()}) {
        const c10::StreamGuard guard(harness->runner().stream());
        at::Tensor(harness->runner().kv_scales()->layer(1).v).mul_(2);
      }
    }
    ASSERT_EQ(StepBoth(*on), absl::OkStatus());
    ASSERT_EQ(StepBoth(*off), absl::OkStatus());
    ASSERT_EQ(StepBoth(*unchanged), absl::OkStatus());
    EXPECT_TRUE(at::equal(on->logits(), off->logits())) << "step " << step;
    EXPECT_EQ(at::equal(on->logits(), unchanged->logits()), step < 3) << "step " << step;
  }
  EXPECT_EQ(on->decision().kind, GraphDecision::Kind::kReplay);
}

TEST_P(KvScalesSuite, TheFirstStepCalibrates) {
  for (const KvScaleShape shape : {KvScaleShape::kPerLayer, KvScaleShape::kPerHead}) {
    SCOPED_TRACE(static_cast<int>(shape));
    auto harness = Make(
        GetParam(), {.kv_factor = 3000, .shape = shape, .calibration = KvCalibration::kFirstStep});
    ASSERT_NE(harness, nullptr);
    EXPECT_THAT(Errors(*harness), Each(testing::Lt(kFp8Error)));
    EXPECT_EQ(harness->runner().graph_report().num_eager_steps(EagerReason::kCalibrates), 1);
    EXPECT_EQ(harness->decision().kind, GraphDecision::Kind::kReplay);
    const KvScales::Layer& scales = harness->runner().kv_scales()->layer(0);
    ASSERT_EQ(scales.k.numel(), shape == KvScaleShape::kPerHead ? 2 : 1);
    // A scale is the largest of the 64 normal variates of each of 9 tokens, which is near 3, times
    // 3000 / 448.
    EXPECT_GT(scales.k.min().item<float>(), 1.5f * 3000 / 448);
    EXPECT_LT(scales.v.max().item<float>(), 6.0f * 3000 / 448);
  }
}

// In an idle step, a rank runs the model with padded rows only.
TEST_P(KvScalesSuite, AnIdleStepLeavesTheCalibrationToTheFirstStepWithRows) {
  auto harness = Make(GetParam(), {.kv_factor = 3000, .calibration = KvCalibration::kFirstStep});
  ASSERT_NE(harness, nullptr);
  const auto idle = harness->runner().Step({.idle = IdleStep::kRunModel});
  ASSERT_TRUE(idle.ok()) << idle.status();
  EXPECT_EQ(harness->runner().graph_report().num_eager_steps(EagerReason::kCalibrates), 0);
  EXPECT_THAT(Errors(*harness), Each(testing::Lt(kFp8Error)));
  EXPECT_EQ(harness->runner().graph_report().num_eager_steps(EagerReason::kCalibrates), 1);
  EXPECT_GT(harness->runner().kv_scales()->layer(0).k.min().item<float>(), 1.5f * 3000 / 448);
}

TEST_P(KvScalesSuite, HeadsHaveSeparateScales) {
  auto harness = Make(GetParam(), {.kv_factor = 256, .shape = KvScaleShape::kPerHead});
  ASSERT_NE(harness, nullptr);
  {
    const c10::StreamGuard guard(harness->runner().stream());
    for (int layer = 0; layer < 2; ++layer) {
      for (at::Tensor scales : {harness->runner().kv_scales()->layer(layer).k,
                                harness->runner().kv_scales()->layer(layer).v}) {
        scales[0].fill_(64);
        scales[1].fill_(16);
      }
    }
  }
  EXPECT_THAT(Errors(*harness), Each(testing::Lt(kFp8Error)));
}

TEST_P(KvScalesSuite, SupportsEveryFormAndOrderOfTheCache) {
  for (const DType dtype : {DType::kFloat32, DType::kFp8E4M3}) {
    for (const KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked}) {
      for (const KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
        SCOPED_TRACE(testing::Message() << dtype << ", " << form << ", " << order);
        auto harness = Make(GetParam(), {.kv_dtype = dtype, .order = order, .form = form});
        ASSERT_NE(harness, nullptr);
        EXPECT_THAT(Errors(*harness),
                    Each(testing::Lt(dtype == DType::kFloat32 ? 1e-4 : kFp8Error)));
        EXPECT_EQ(harness->decision().kind, GraphDecision::Kind::kReplay);
      }
    }
  }
}

TEST_P(KvScalesSuite, RejectsBadOptions) {
  const auto refusal = [&](const ModelRunnerOptions& options, const ToyModelOptions& model) {
    ToyModel toy(model);
    return std::string(ModelRunner::Create(&toy, options).status().message());
  };
  const ToyModelOptions toy = {.device = GetParam()};
  EXPECT_THAT(refusal({.cache = {.form = KvForm::kLatent}}, toy), HasSubstr("latents follow from"));
  EXPECT_THAT(refusal({.cache = {.calibration = KvCalibration::kFirstStep}}, toy),
              HasSubstr("expected an fp8 cache.dtype, got float32"));
  EXPECT_THAT(
      refusal({.cache = {.dtype = DType::kFp8E4M3}}, {.kv_scale = 0.0f, .device = GetParam()}),
      HasSubstr("k_scale of layer 0 must be positive and finite: got 0"));
}

}  // namespace reprise
