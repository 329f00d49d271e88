// Compiled with REPRISE_TEST_ON_GPU, on a GPU.

#include "reprise/models/moe/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/models/random_source.h"
#include "reprise/runner/ops/test_device.h"

namespace reprise {
namespace {

constexpr int64_t kHidden = 48;

ExpertsConfig QwenLike() {
  return {.num_experts = 8, .num_chosen = 2, .inner_size = 24, .normalises = true};
}

ExpertsConfig GptOssLike() {
  return {.num_experts = 5,
          .num_chosen = 3,
          .inner_size = 24,
          .activation = Activation::kClampedSwiglu,
          .router_bias = true,
          .expert_bias = true,
          .files = ExpertFiles::kStacked};
}

// Weights of deviations that let experts and gates differ.
ExpertWeights Made(const ExpertsConfig& config, c10::Device device, DType dtype, uint64_t seed) {
  auto weights = MakeRandom(
      {.device = device, .dtype = dtype, .seed = seed},
      [&](WeightSource& source) { return ReadExperts(config, LayerReader(source, ""), kHidden); },
      RandomSpread::kLively);
  CHECK(weights.ok()) << weights.status();
  return *std::move(weights);
}

// The paper's formula in float64, token by token and expert by expert. x on the CPU.
at::Tensor Dense(const ExpertsConfig& config, const ExpertWeights& weights, const at::Tensor& x) {
  const auto wide = [](const at::Tensor& tensor) { return tensor.cpu().to(at::kDouble); };
  const auto product = [&](const ExpertLinear& linear, int64_t expert, const at::Tensor& input) {
    at::Tensor out = at::mv(wide(linear.weight())[expert], input);
    if (linear.bias().has_value()) out = out + wide(*linear.bias())[expert];
    return out;
  };
  std::vector<at::Tensor> rows;
  for (int64_t token = 0; token < x.size(0); ++token) {
    const at::Tensor input = wide(x[token]);
    at::Tensor logits = at::mv(wide(weights.router.weight()), input);
    if (weights.router_bias.has_value()) logits = logits + wide(*weights.router_bias);
    const at::Tensor order = at::argsort(logits, /*stable=*/true, -1, /*descending=*/true)
                                 .narrow(0, 0, config.num_chosen);
    const at::Tensor all = at::softmax(logits, -1).index_select(0, order);
    const at::Tensor factors = config.normalises ? all / all.sum() : all;
    at::Tensor sum = at::zeros_like(input);
    for (int64_t i = 0; i < config.num_chosen; ++i) {
      const int64_t expert = order[i].item<int64_t>();
      const std::vector<at::Tensor> halves = product(weights.gate_up, expert, input).chunk(2, 0);
      at::Tensor gated;
      switch (config.activation) {
        case Activation::kSilu:
          gated = at::silu(halves[0]) * halves[1];
          break;
        case Activation::kGeluTanh:
          gated = at::gelu(halves[0], "tanh") * halves[1];
          break;
        case Activation::kClampedSwiglu:
          const at::Tensor gate = halves[0].clamp_max(7);
          gated = gate * at::sigmoid(gate * 1.702) * (halves[1].clamp(-7, 7) + 1);
          break;
      }
      sum = sum + product(weights.down, expert, gated) * factors[i];
    }
    rows.push_back(sum);
  }
  return at::stack(rows);
}

class ExpertsTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    auto context = MakeLinearContext(device(), {});
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
  }

  at::Tensor Tokens(int64_t num_tokens, DType dtype, uint64_t seed = 7) {
    RandomSource source({.dtype = dtype, .seed = seed}, RandomSpread::kLively);
    return (*source.Add({.parts = {{"x", num_tokens}}, .row_shape = {kHidden}})) * 7;
  }

  at::Tensor Applied(const ExpertsConfig& config, const ExpertWeights& weights, const at::Tensor& x,
                     ExpertsForm form = ExpertsForm::kByShape) {
    const at::Tensor out = at::empty(x.sizes(), x.options().device(device()));
    const absl::Status status =
        ApplyExperts(config, weights, *context_, x.to(device()), out, form).status();
    EXPECT_TRUE(status.ok()) << status;
    return out.cpu();
  }

  std::unique_ptr<LinearContext> context_;
};

TEST_F(ExpertsTest, BothFormsComputeTheFormula) {
  ExpertsConfig not_normalised = QwenLike();
  not_normalised.normalises = false;
  ExpertsConfig one_chosen = QwenLike();
  one_chosen.num_chosen = 1;
  one_chosen.activation = Activation::kGeluTanh;
  ExpertsConfig all_chosen = GptOssLike();
  all_chosen.num_chosen = all_chosen.num_experts;
  uint64_t seed = 1;
  for (const ExpertsConfig& config :
       {QwenLike(), GptOssLike(), not_normalised, one_chosen, all_chosen}) {
    const ExpertWeights weights = Made(config, device(), DType::kFloat32, ++seed);
    // Fewer choices than experts, more of them, and more tokens than are multiplied at once.
    for (const int64_t num_tokens : {1, 3, 40, 300}) {
      const at::Tensor x = Tokens(num_tokens, DType::kFloat32, seed);
      const at::Tensor expected = Dense(config, weights, x);
      const double bound = 1e-5 * expected.abs().max().item<double>();
      for (const ExpertsForm form :
           {ExpertsForm::kByShape, ExpertsForm::kChosen, ExpertsForm::kAll}) {
        SCOPED_TRACE(testing::Message() << "config " << seed << ", " << num_tokens
                                        << " tokens, form " << static_cast<int>(form));
        EXPECT_LE((Applied(config, weights, x, form) - expected).abs().max().item<double>(), bound);
      }
    }
  }
}

TEST_F(ExpertsTest, InBFloat16TheErrorIsThatOfRounding) {
  const ExpertsConfig config = QwenLike();
  const ExpertWeights weights = Made(config, device(), DType::kBFloat16, 3);
  const at::Tensor x = Tokens(64, DType::kBFloat16);
  const at::Tensor expected = Dense(config, weights, x);
  for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
    const at::Tensor error = Applied(config, weights, x, form).to(at::kDouble) - expected;
    // Roundings of gate_up, gate, product, output and sum.
    EXPECT_LE(error.square().mean().sqrt().item<double>(),
              0.01 * expected.square().mean().sqrt().item<double>());
  }
}

TEST_F(ExpertsTest, RoutingIsThatOfTheLargestLogits) {
  const ExpertsConfig config = QwenLike();
  const ExpertWeights weights = Made(config, device(), DType::kFloat32, 4);
  const at::Tensor x = Tokens(50, DType::kFloat32);
  const auto routing = RouteTokens(config, weights, *context_, x.to(device()));
  ASSERT_TRUE(routing.ok()) << routing.status();
  const at::Tensor experts = routing->experts.cpu();
  const at::Tensor factors = routing->weights.cpu();
  const at::Tensor logits = x.matmul(weights.router.weight().cpu().t());
  std::set<int64_t> seen;
  for (int64_t token = 0; token < 50; ++token) {
    const int64_t first = experts[token][0].item<int64_t>();
    const int64_t second = experts[token][1].item<int64_t>();
    seen.insert({first, second});
    EXPECT_NE(first, second);
    EXPECT_EQ(first, logits[token].argmax().item<int64_t>());
    EXPECT_GE(factors[token][0].item<float>(), factors[token][1].item<float>());
    EXPECT_NEAR(factors[token].sum().item<float>(), 1, 1e-6);
  }
  EXPECT_EQ(seen.size(), 8u) << "too few experts are chosen for a test of them";
}

TEST_F(ExpertsTest, WhatIsPaddedChangesNoBitOfLiveTokens) {
  const ExpertsConfig config = GptOssLike();
  const ExpertWeights weights = Made(config, device(), DType::kBFloat16, 5);
  const at::Tensor x = Tokens(12, DType::kBFloat16);
  for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
    const at::Tensor whole = Applied(config, weights, x, form);
    // The same shape with other tokens after the first five, NaN among them.
    at::Tensor padded = x.clone();
    padded.narrow(0, 5, 6).zero_();
    padded.narrow(0, 11, 1).fill_(std::numeric_limits<float>::quiet_NaN());
    const at::Tensor got = Applied(config, weights, padded, form);
    EXPECT_TRUE(at::equal(got.narrow(0, 0, 5), whole.narrow(0, 0, 5)))
        << "form " << static_cast<int>(form);
  }
}

TEST_F(ExpertsTest, ExpertsThatWereNotChosenMayOverflow) {
  const ExpertsConfig config = QwenLike();
  ExpertWeights weights = Made(config, device(), DType::kFloat32, 6);
  const at::Tensor x = Tokens(1, DType::kFloat32);
  const at::Tensor expected = Applied(config, weights, x, ExpertsForm::kChosen);
  const auto routing = RouteTokens(config, weights, *context_, x.to(device()));
  ASSERT_TRUE(routing.ok());
  std::set<int64_t> chosen;
  for (int64_t i = 0; i < 2; ++i) chosen.insert(routing->experts[0][i].item<int64_t>());
  for (int64_t expert = 0; expert < config.num_experts; ++expert) {
    if (chosen.contains(expert)) continue;
    weights.gate_up.weight()[expert].fill_(std::numeric_limits<float>::infinity());
  }
  for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
    const at::Tensor got = Applied(config, weights, x, form);
    EXPECT_LE((got - expected).abs().max().item<float>(), 1e-5) << static_cast<int>(form);
  }
}

TEST_F(ExpertsTest, OutMayBeXAndNoTokensAreServed) {
  const ExpertsConfig config = QwenLike();
  const ExpertWeights weights = Made(config, device(), DType::kFloat32, 8);
  const at::Tensor x = Tokens(300, DType::kFloat32);
  for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
    const at::Tensor in_place = x.to(device()).clone();
    ASSERT_TRUE(ApplyExperts(config, weights, *context_, in_place, in_place, form).ok());
    EXPECT_TRUE(at::equal(in_place.cpu(), Applied(config, weights, x, form)));
  }
  const at::Tensor none = x.narrow(0, 0, 0).to(device());
  EXPECT_TRUE(ApplyExperts(config, weights, *context_, none, none).ok());
}

TEST_F(ExpertsTest, FilesHoldExpertsInEitherForm) {
  std::vector<std::string> separate, stacked;
  for (const auto& [config, names] :
       {std::pair(QwenLike(), &separate), std::pair(GptOssLike(), &stacked)}) {
    const auto tensors = ListTensors([&config = config](WeightSource& source) {
      return ReadExperts(config, LayerReader(source, "layer."), kHidden);
    });
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    for (const ExpectedTensor& tensor : *tensors) {
      std::string text = tensor.name;
      for (const int64_t size : tensor.shape) absl::StrAppend(&text, " ", size);
      names->push_back(text);
    }
  }
  EXPECT_EQ(separate.size(), 1 + 8 * 3u);
  EXPECT_THAT(separate, testing::IsSupersetOf({"layer.mlp.gate.weight 8 48",
                                               "layer.mlp.experts.0.gate_proj.weight 24 48",
                                               "layer.mlp.experts.7.up_proj.weight 24 48",
                                               "layer.mlp.experts.3.down_proj.weight 48 24"}));
  EXPECT_THAT(stacked, testing::UnorderedElementsAre("layer.mlp.router.weight 5 48",
                                                     "layer.mlp.router.bias 5",
                                                     "layer.mlp.experts.gate_up_proj 5 48 48",
                                                     "layer.mlp.experts.gate_up_proj_bias 5 48",
                                                     "layer.mlp.experts.down_proj 5 24 48",
                                                     "layer.mlp.experts.down_proj_bias 5 48"));
}

}  // namespace
}  // namespace reprise
