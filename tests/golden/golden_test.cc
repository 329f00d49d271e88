// The golden models; compiled with REPRISE_TEST_ON_GPU, on a GPU through captured CUDA graphs.

#include "tests/golden/golden.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/base/testing/all_cases.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/models/decoder/decoder_attention.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/dense_decoder.h"
#include "reprise/runner/kv_scales.h"
#include "reprise/runner/model_runner.h"
#include "tests/golden/golden_checks.h"
#include "tests/golden/golden_measures.h"
#include "tests/golden/golden_model.h"
#include "tests/golden/golden_runner.h"
#include "tests/golden/sixteen_bits.h"
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

// Folders in the published form of a family. Their logits are golden within 2e-4 on GPUs, too.
const std::vector<const char*> kFamilies = {
    "deepseek-v2", "deepseek-v3", "gemma",    "gemma3-wrapped", "glm4-moe",
    "granite",     "ministral3",  "mixtral",  "mistral3",       "llama-fp8-modelopt",
    "olmoe",       "phi3",        "seed-oss", "qwen2-moe",      "qwen3-vl"};
constexpr double kFamilyTolerance = 2e-4;

// Returns `names` on a GPU or if TakesAllCases(), and an empty list otherwise.
std::vector<const char*> FullyTested(const std::vector<const char*>& names) {
#ifdef REPRISE_TEST_ON_GPU
  return names;
#else
  return TakesAllCases() ? names : std::vector<const char*>();
#endif
}

// The errors of `model`; none if it fails, which fails the test.
std::vector<SixteenBitError> SixteenBitErrors(Model& model, const Golden& golden,
                                              const GoldenRunOptions& options,
                                              const std::vector<at::Tensor>& routing = {}) {
  absl::StatusOr<SixteenBitRun> run = RunSixteenBits(model, golden, options, routing);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? run->errors : std::vector<SixteenBitError>();
}

std::vector<at::Tensor> RoutingOf(Model& model, const Golden& golden) {
  absl::StatusOr<std::vector<at::Tensor>> routing = GoldenRouting(model, golden, {});
  EXPECT_TRUE(routing.ok()) << routing.status();
  return routing.ok() ? *std::move(routing) : std::vector<at::Tensor>();
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

  double tolerance() const {
    return absl::c_linear_search(kFamilies, golden_.name) ? kFamilyTolerance : kTolerance;
  }

  Golden golden_;
};

TEST_P(GoldenTest, InFloat32LogitsAndTokensAreGoldenWhateverBlocksChunksAndGraphs) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : AllGoldenRunOptions()) {
    ExpectGoldenLogits(*model, golden_, options, tolerance());
  }
}

TEST_P(GoldenTest, InSixteenBitsTheErrorIsAtMostTwiceThatOfTransformersInBFloat16) {
  const auto exact = Load(DType::kFloat32);
  ASSERT_NE(exact, nullptr);
  std::vector<at::Tensor> routing;
  if (NeedsRouting(*exact, golden_)) routing = RoutingOf(*exact, golden_);
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(testing::Message() << dtype);
    const auto model = Load(dtype);
    ASSERT_NE(model, nullptr);
    for (const GoldenRunOptions& options : SomeGoldenRunOptions()) {
      SCOPED_TRACE(ToString(options));
      EXPECT_EQ(CheckSmall(SixteenBitErrors(*model, golden_, options, routing), golden_),
                absl::OkStatus());
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
  ExpectBatchingDoesNotMatter(*model, golden_, tolerance());
}

TEST_P(GoldenTest, TokensOfATrackMayBePartOfThePrompt) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectTracksContinuePrompts(*model, golden_, tolerance());
}

TEST_P(GoldenTest, ThreadsDoNotMatter) {
  at::set_num_threads(2);
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  const GoldenPrompt& prompt = golden_.prompts[4];  // the longest
  const auto run = RunGolden(*model, {ForcedRequest(prompt, prompt.forced, 5)}, {});
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_LE(MaxError(run->tracks[0].logits, prompt.forced.LogitsBefore(0, 5)), tolerance());
}

TEST_P(GoldenTest, EveryLiveCountIsServed) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  ExpectEveryLiveCountIsServed(*model, golden_, tolerance());
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
    ExpectGoldenLogits(*model, golden_, options, tolerance());
  }
}

TEST_P(ExpandedMlaGoldenTest, InSixteenBitsTheErrorIsAtMostTwiceThatOfTransformersInBFloat16) {
  const auto model = LoadExpanded(DType::kBFloat16);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : SomeGoldenRunOptions()) {
    SCOPED_TRACE(ToString(options));
    EXPECT_EQ(CheckSmall(SixteenBitErrors(*model, golden_, options), golden_), absl::OkStatus());
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
INSTANTIATE_TEST_SUITE_P(Families, ExpandedMlaGoldenTest,
                         testing::ValuesIn(FullyTested({"deepseek-v2", "deepseek-v3"})), TestName);

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Values("bart", "bloom-alibi", "deepseek-mla", "deepseek-mla-yarn",
                                         "gemma2", "gemma3", "gpt-oss-sinks", "gpt2",
                                         "llama-bias-untied", "llama-gqa5", "llama-rope-linear",
                                         "llama-rope-llama3", "llama4-chunked", "mistral-window",
                                         "qwen2", "qwen3", "qwen3-moe", "qwen3-rope-yarn"),
                         TestName);

// Short tests of kFamilies. The instantiation of GoldenTest below adds the long tests.
using FamilyGoldenTest = GoldenTest;

TEST_P(FamilyGoldenTest, InFloat32LogitsAndTokensAreGoldenWithGraphsAndWithout) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  for (const GoldenRunOptions& options : SomeGoldenRunOptions()) {
    ExpectGoldenLogits(*model, golden_, options, tolerance());
  }
}

TEST_P(FamilyGoldenTest, BFloat16ErrorIsAtMostTwiceTransformersError) {
  const auto model = Load(DType::kBFloat16);
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(CheckSmall(SixteenBitErrors(*model, golden_, {}), golden_), absl::OkStatus());
}

INSTANTIATE_TEST_SUITE_P(Models, FamilyGoldenTest, testing::ValuesIn(kFamilies), TestName);
INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, testing::ValuesIn(FullyTested(kFamilies)), TestName);

// Models with experts.
using RoutingGoldenTest = GoldenTest;

// A fault of the experts in bfloat16 is seen although positions of another routing do not count:
// the last layer's change no routing.
TEST_P(RoutingGoldenTest, AFaultOfAnExpertIsNotTakenForRounding) {
  const auto exact = Load(DType::kFloat32);
  const auto model = Load(DType::kBFloat16);
  ASSERT_NE(exact, nullptr);
  ASSERT_NE(model, nullptr);
  const std::vector<at::Tensor> routing = RoutingOf(*exact, golden_);
  const auto num_large = [&] {
    const std::vector<SixteenBitError> errors = SixteenBitErrors(*model, golden_, {}, routing);
    return std::count_if(errors.begin(), errors.end(),
                         [](const SixteenBitError& error) { return error.rms > error.allowed; });
  };
  EXPECT_EQ(num_large(), 0);
  const auto& weights = dynamic_cast<const DecoderModel&>(*model).weights();
  at::Tensor(weights.layers.back().experts->down.weight()).select(0, 0).mul_(2);
  EXPECT_GE(num_large(), 2);
}

INSTANTIATE_TEST_SUITE_P(Models, RoutingGoldenTest, testing::Values("qwen3-moe", "gpt-oss-sinks"),
                         TestName);

// Caches in every form and order that the runner offers.
using StorageGoldenTest = GoldenTest;

TEST_P(StorageGoldenTest, EveryFormAndOrderOfTheCacheGivesGoldenLogits) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  for (const KvForm form : {KvForm::kPair, KvForm::kPacked, KvForm::kDiffKv, KvForm::kKPacked}) {
    for (const KvOrder order : {KvOrder::kNHD, KvOrder::kHND}) {
      if (form == KvForm::kPair && order == KvOrder::kNHD) continue;  // GoldenTest's
      SCOPED_TRACE(testing::Message() << form << ", " << order);
      for (GoldenRunOptions options : SomeGoldenRunOptions()) {
        options.kv_form = form;
        options.kv_order = order;
        ExpectGoldenLogits(*model, golden_, options, kTolerance);
      }
    }
  }
}

// Of full attention in one tensor a layer, and of windows in a pool of pages.
INSTANTIATE_TEST_SUITE_P(Models, StorageGoldenTest, testing::Values("llama-gqa5", "gemma2"),
                         TestName);

// Caches of fp8, whose error is no rounding of sums: what the cache keeps differs from what it is
// given. How much that changes logits is computed, not measured: the plain model in float64 attends
// to keys and values that it has divided by the scale, rounded to fp8 and multiplied again. The
// runner may differ from this reference by a quarter of what the reference differs from the exact
// model. That is room for values that lie between two of fp8 and that float32 rounds to the other
// one, and for what follows from that in later layers. A scale that is missing, doubled or another
// layer's, or keys that are not rounded, change as much as the rounding itself.
class QuantisedGoldenTest : public GoldenTest {
 protected:
  struct LayerScales {
    double k = 0;
    double v = 0;
  };
  // Of keys, or of values (latents are keys): what is attended to.
  using Stored = std::function<at::Tensor(int layer, bool is_v, const at::Tensor& x)>;

  void SetUp() override {
    GoldenTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto exact = LoadGoldenModel(golden_, c10::kCPU, DType::kFloat32);
    ASSERT_TRUE(exact.ok()) << exact.status();
    exact_ = *std::move(exact);
    largest_.resize(exact_->spec().layers.size());
    const std::vector<at::Tensor> plain = Dense([&](int layer, bool is_v, const at::Tensor& x) {
      double& most = is_v ? largest_[layer].v : largest_[layer].k;
      most = std::max(most, x.abs().max().item<double>());
      return x;
    });
    plain_ = at::cat(plain);
    for (const GoldenPrompt& prompt : golden_.prompts) {
      requests_.push_back(ForcedRequest(prompt, prompt.greedy));
      requests_.push_back(ForcedRequest(prompt, prompt.forced));
    }
  }

  bool is_mla() const { return exact_->spec().layers[0].v_in_k; }

  // Scales with which the largest key and value become `most` of fp8. Values that are a part of the
  // keys have theirs.
  std::vector<LayerScales> ScalesFor(double most) const {
    std::vector<LayerScales> scales;
    for (const LayerScales& layer : largest_) {
      const auto scale = [&](double largest) { return static_cast<float>(largest / most); };
      scales.push_back({.k = scale(layer.k), .v = scale(is_mla() ? layer.k : layer.v)});
    }
    return scales;
  }

  // Of each track, the logits before its tokens [tokens, vocab_size].
  std::vector<at::Tensor> Dense(const Stored& stored) const {
    std::vector<at::Tensor> logits;
    const std::vector<std::vector<int32_t>> inputs = TrackInputs(golden_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const GoldenPrompt& prompt = golden_.prompts[i / 2];
      const int64_t num_tokens =
          static_cast<int64_t>((i % 2 == 0 ? prompt.greedy : prompt.forced).tokens.size());
      const auto part = [&](bool is_v) {
        return [&stored, is_v](int layer, const at::Tensor& x) { return stored(layer, is_v, x); };
      };
      const at::Tensor all =
          DenseLogits(dynamic_cast<const DecoderModel&>(*exact_), inputs[i],
                      {.keys = part(false), .values = part(true), .latents = part(false)});
      logits.push_back(all.narrow(0, all.size(0) - num_tokens, num_tokens));
    }
    return logits;
  }
  at::Tensor DenseOf(const std::vector<LayerScales>& scales) const {
    return at::cat(Dense([&](int layer, bool is_v, const at::Tensor& x) {
      const double scale = is_v ? scales[layer].v : scales[layer].k;
      return (x / scale).clamp(-448, 448).to(at::kFloat).to(at::kFloat8_e4m3fn).to(at::kDouble) *
             scale;
    }));
  }

  static void Set(const ModelRunner& runner, const std::vector<LayerScales>& scales) {
    const c10::StreamGuard guard(runner.stream());
    ASSERT_NE(runner.kv_scales(), nullptr);
    for (size_t i = 0; i < scales.size(); ++i) {
      const KvScales::Layer& layer = runner.kv_scales()->layer(static_cast<int>(i));
      at::Tensor(layer.k).fill_(scales[i].k);
      at::Tensor(layer.v).fill_(scales[i].v);
    }
  }

  // The logits of all tracks, one after the other.
  static at::Tensor LogitsOf(const GoldenRun& run, int64_t vocab_size) {
    std::vector<at::Tensor> all;
    for (const RunTrack& track : run.tracks) {
      all.push_back(at::tensor(track.logits, at::kDouble).view({-1, vocab_size}));
    }
    return at::cat(all);
  }
  static double Rms(const at::Tensor& difference) {
    return std::sqrt(difference.square().mean().item<double>());
  }

  // Latents of a prompt's own tokens are attended to as they are, unless they come one a step.
  GoldenRunOptions Options() const {
    return {.block_size = 16, .prefill_chunk = is_mla() ? 1 : 16, .kv_dtype = DType::kFp8E4M3};
  }

  std::unique_ptr<Model> exact_;
  std::vector<LayerScales> largest_;  // keys and values, by layer
  at::Tensor plain_;                  // logits of the exact model
  std::vector<Request> requests_;     // both tracks of each prompt
};

TEST_P(QuantisedGoldenTest, ScalesThatChangeBetweenReplaysGiveTheDequantisedReference) {
  const auto model = Load(DType::kFloat32);
  ASSERT_NE(model, nullptr);
  const std::vector<std::vector<LayerScales>> scales = {ScalesFor(448), ScalesFor(100)};
  const auto runs =
      RunGoldenRounds(*model, requests_, Options(), 2,
                      [&](const ModelRunner& runner, int round) { Set(runner, scales[round]); });
  ASSERT_TRUE(runs.ok()) << runs.status();
  EXPECT_EQ((*runs)[0].report.graphs().size(), (*runs)[1].report.graphs().size());
  EXPECT_GE((*runs)[1].report.num_replays(), 2 * (*runs)[0].report.num_replays());
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    const at::Tensor dense = DenseOf(scales[round]);
    const double error = Rms(dense - plain_);
    EXPECT_GT(error, 20 * kTolerance);  // or there would be nothing to see
    const at::Tensor got = LogitsOf((*runs)[round], golden_.vocab_size);
    EXPECT_LE(Rms(got - dense), error / 4);
    // The reference of the other round is as far away as the exact model.
    EXPECT_GT(Rms(got - DenseOf(scales[1 - round])), error / 2);
  }
}

TEST_P(QuantisedGoldenTest, InBFloat16TheErrorIsThatOfTheCacheAndOfSixteenBits) {
  const auto model = Load(DType::kBFloat16);
  ASSERT_NE(model, nullptr);
  const std::vector<LayerScales> scales = ScalesFor(448);
  const auto runs = RunGoldenRounds(*model, requests_, Options(), 1,
                                    [&](const ModelRunner& runner, int) { Set(runner, scales); });
  ASSERT_TRUE(runs.ok()) << runs.status();
  double bf16 = 0;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    bf16 = std::max({bf16, prompt.greedy.bf16_rms, prompt.forced.bf16_rms});
  }
  const double error = Rms(DenseOf(scales) - plain_);
  const double got = Rms(LogitsOf((*runs)[0], golden_.vocab_size) - plain_);
  EXPECT_LE(got, 1.25 * error + 2 * bf16);
  EXPECT_GT(got, error / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, QuantisedGoldenTest,
                         testing::Values("llama-gqa5", "gemma2", "deepseek-mla"), TestName);

}  // namespace
}  // namespace reprise
