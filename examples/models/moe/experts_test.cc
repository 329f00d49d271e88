// Compiled with REPRISE_TEST_ON_GPU, on a GPU.

#include "reprise/models/moe/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/models/moe/routing_reference.h"
#include "reprise/models/random_source.h"
#include "reprise/runner/ops/test_device.h"
#ifdef REPRISE_TEST_ON_GPU
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

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
          .files = ExpertFiles::kStacked,
          .names = {.router = "router"}};
}

ExpertsConfig Qwen2MoeLike() {
  ExpertsConfig config = QwenLike();
  config.normalises = false;
  config.shared_inner_size = 40;
  config.shared_gate = true;
  config.names.shared = "shared_expert";
  return config;
}

ExpertsConfig DeepSeekV2Like() {
  return {.num_experts = 9,
          .num_chosen = 4,
          .inner_size = 24,
          .num_groups = 3,
          .num_chosen_groups = 2,
          .normalises = false,
          .scale = 16,
          .shared_inner_size = 48};
}

ExpertsConfig DeepSeekV3Like() {
  return {.num_experts = 12,
          .num_chosen = 4,
          .inner_size = 24,
          .scores = RouterScores::kSigmoid,
          .choice_bias = true,
          .num_groups = 4,
          .num_chosen_groups = 2,
          .group_score = GroupScore::kTopTwo,
          .scale = 2.5,
          .shared_inner_size = 24};
}

ExpertsConfig Llama4Like() {
  return {.num_experts = 6,
          .num_chosen = 1,
          .inner_size = 24,
          .scores = RouterScores::kSigmoid,
          .normalises = false,
          .scales_input = true,
          .shared_inner_size = 24,
          .files = ExpertFiles::kStackedHalves,
          .names = {.prefix = "feed_forward.", .router = "router", .shared = "shared_expert"}};
}

ExpertsConfig MixtralLike() {
  ExpertsConfig config = QwenLike();
  config.names = {.prefix = "block_sparse_moe.",
                  .gate = "w1",
                  .up = "w3",
                  .down = "w2",
                  .choice_bias = "e_score_correction_bias"};
  return config;
}

std::vector<ExpertsConfig> AllFamilies() {
  return {QwenLike(),       GptOssLike(),  Qwen2MoeLike(), DeepSeekV2Like(),
          DeepSeekV3Like(), MixtralLike(), Llama4Like()};
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

at::Tensor Wide(const at::Tensor& tensor) { return tensor.cpu().to(at::kDouble); }

at::Tensor Gated(Activation activation, const at::Tensor& gate_up) {
  const std::vector<at::Tensor> halves = gate_up.chunk(2, 0);
  switch (activation) {
    case Activation::kSilu:
      return at::silu(halves[0]) * halves[1];
    case Activation::kGeluTanh:
      return at::gelu(halves[0], "tanh") * halves[1];
    case Activation::kClampedSwiglu:
      break;
  }
  const at::Tensor gate = halves[0].clamp_max(7);
  return gate * at::sigmoid(gate * 1.702) * (halves[1].clamp(-7, 7) + 1);
}

at::Tensor OfExpert(const ExpertsConfig& config, const ExpertWeights& weights, int expert,
                    const at::Tensor& x) {
  const auto product = [&](const ExpertLinear& linear, const at::Tensor& input) {
    const at::Tensor out = at::mv(Wide(linear.weight())[expert], input);
    return linear.bias().has_value() ? out + Wide(*linear.bias())[expert] : out;
  };
  return product(weights.down, Gated(config.activation, product(weights.gate_up, x)));
}

at::Tensor OfSharedExpert(const ExpertsConfig& config, const ExpertWeights& weights,
                          const at::Tensor& x) {
  const at::Tensor gated =
      Gated(config.activation, at::mv(Wide(weights.shared_gate_up->weight()), x));
  const at::Tensor out = at::mv(Wide(weights.shared_down->weight()), gated);
  if (!config.shared_gate) return out;
  const at::Tensor gate = Wide(weights.router.weight()).narrow(0, config.num_experts, 1);
  return out * at::sigmoid(at::mv(gate, x));
}

// The formula of experts.h in float64, token by token and expert by expert. x on the CPU.
at::Tensor Dense(const ExpertsConfig& config, const ExpertWeights& weights, const at::Tensor& x) {
  const auto doubles = [](const at::Tensor& tensor) {
    const at::Tensor wide = Wide(tensor).contiguous();
    return std::vector<double>(wide.const_data_ptr<double>(),
                               wide.const_data_ptr<double>() + wide.numel());
  };
  std::vector<double> bias;
  if (config.choice_bias) bias = doubles(*weights.choice_bias);
  std::vector<at::Tensor> rows;
  for (int64_t token = 0; token < x.size(0); ++token) {
    const at::Tensor input = Wide(x[token]);
    at::Tensor logits =
        at::mv(Wide(weights.router.weight()).narrow(0, 0, config.num_experts), input);
    if (weights.router_bias.has_value()) logits = logits + Wide(*weights.router_bias);
    const ReferenceRouting routing = RouteInFloat64(config, doubles(logits), bias);
    at::Tensor sum = at::zeros_like(input);
    for (int i = 0; i < config.num_chosen; ++i) {
      const double weight = routing.weights[i];
      sum = sum + (config.scales_input
                       ? OfExpert(config, weights, routing.experts[i], input * weight)
                       : OfExpert(config, weights, routing.experts[i], input) * weight);
    }
    if (config.shared_inner_size > 0) sum = sum + OfSharedExpert(config, weights, input);
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
    return AppliedIn(*context_, config, weights, x, form);
  }

  static at::Tensor AppliedIn(LinearContext& context, const ExpertsConfig& config,
                              const ExpertWeights& weights, const at::Tensor& x,
                              ExpertsForm form = ExpertsForm::kByShape) {
    const at::Tensor out = at::empty(x.sizes(), x.options().device(device()));
    const absl::Status status =
        ApplyExperts(config, weights, context, x.to(device()), out, form).status();
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
  ExpertsConfig two_scaled = Llama4Like();
  two_scaled.num_chosen = 2;
  std::vector<ExpertsConfig> configs = AllFamilies();
  configs.insert(configs.end(), {not_normalised, one_chosen, all_chosen, two_scaled});
  uint64_t seed = 1;
  for (const ExpertsConfig& config : configs) {
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
  for (const ExpertsConfig& config : {QwenLike(), Qwen2MoeLike(), Llama4Like()}) {
    const ExpertWeights weights = Made(config, device(), DType::kBFloat16, 3);
    const at::Tensor x = Tokens(64, DType::kBFloat16);
    const at::Tensor expected = Dense(config, weights, x);
    for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
      const at::Tensor error = Applied(config, weights, x, form).to(at::kDouble) - expected;
      // Roundings of gate_up, gate, product, output and sum. The median: rounded logits may choose
      // other experts for a few tokens.
      const at::Tensor relative = error.square().mean(1).sqrt() / expected.square().mean(1).sqrt();
      EXPECT_LE(relative.median().item<double>(), 0.01);
    }
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
  for (const ExpertsConfig& config : AllFamilies()) {
    const ExpertWeights weights = Made(config, device(), DType::kFloat32, 8);
    const at::Tensor x = Tokens(300, DType::kFloat32);
    for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
      const at::Tensor in_place = x.to(device()).clone();
      ASSERT_TRUE(ApplyExperts(config, weights, *context_, in_place, in_place, form).ok());
      EXPECT_TRUE(at::equal(in_place.cpu(), Applied(config, weights, x, form)));
    }
    const at::Tensor none = x.narrow(0, 0, 0).to(device());
    EXPECT_TRUE(ApplyExperts(config, weights, *context_, none, none).ok());
    EXPECT_TRUE(RouteTokens(config, weights, *context_, none).ok());
  }
}

TEST_F(ExpertsTest, DeterministicResultsAreBitwiseIndependentOfTheBatch) {
  const auto context = MakeLinearContext(device(), {.deterministic = true});
  ASSERT_TRUE(context.ok()) << context.status();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const ExpertsConfig& config : AllFamilies()) {
      const ExpertWeights weights = Made(config, device(), dtype, 10);
      const at::Tensor x = Tokens(101, dtype);
      const at::Tensor whole = AppliedIn(**context, config, weights, x);
      for (const auto& [begin, count] : {std::pair(0, 1), std::pair(33, 7), std::pair(100, 1)}) {
        EXPECT_TRUE(at::equal(AppliedIn(**context, config, weights, x.narrow(0, begin, count)),
                              whole.narrow(0, begin, count)));
      }
    }
  }
}

TEST_F(ExpertsTest, TokensThatAreNotFiniteDoNotChangeOthers) {
  for (const ExpertsConfig& config : AllFamilies()) {
    const ExpertWeights weights = Made(config, device(), DType::kFloat32, 11);
    const at::Tensor x = Tokens(6, DType::kFloat32);
    at::Tensor broken = x.clone();
    broken[2].fill_(std::numeric_limits<float>::quiet_NaN());
    broken[3].fill_(std::numeric_limits<float>::infinity());
    broken[4].fill_(std::numeric_limits<float>::max());
    for (const ExpertsForm form : {ExpertsForm::kChosen, ExpertsForm::kAll}) {
      const at::Tensor expected = Applied(config, weights, x, form);
      const at::Tensor got = Applied(config, weights, broken, form);
      const double bound = 1e-5 * expected.abs().max().item<double>();
      for (const int64_t token : {0, 1, 5}) {
        EXPECT_LE((got[token] - expected[token]).abs().max().item<double>(), bound);
      }
    }
  }
}

#ifdef REPRISE_TEST_ON_GPU
TEST_F(ExpertsTest, AGraphServesEveryChoice) {
  for (const ExpertsConfig& config : AllFamilies()) {
    const ExpertWeights weights = Made(config, device(), DType::kBFloat16, 12);
    const at::Tensor first = Tokens(5, DType::kBFloat16, 1).to(device());
    const at::Tensor second = Tokens(5, DType::kBFloat16, 2).to(device());
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
    c10::cuda::getCurrentCUDAStream(0).synchronize();
    const c10::cuda::CUDAStreamGuard guard(side);
    const at::Tensor x = first.clone();
    const at::Tensor out = at::empty_like(x);
    const auto run = [&] {
      const absl::Status status = ApplyExperts(config, weights, *context_, x, out).status();
      ASSERT_TRUE(status.ok()) << status;
    };
    run();
    const at::Tensor of_first = out.clone();
    x.copy_(second);
    run();
    const at::Tensor of_second = out.clone();
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    run();
    graph.capture_end();
    for (const auto& [input, expected] :
         {std::pair(first, of_first), std::pair(second, of_second)}) {
      x.copy_(input);
      graph.replay();
      EXPECT_TRUE(at::equal(out, expected));
    }
  }
}
#else
bool NoneIsUnused(const std::string&) { return false; }

// A checkpoint of random float32 tensors for ReadExperts().
class ExpertFilesTest : public ExpertsTest {
 protected:
  using Tensors = std::map<std::string, at::Tensor>;

  // Writes the tensors of `config` and returns them.
  Tensors Write(const ExpertsConfig& config) const {
    std::filesystem::create_directories(folder_);
    RandomSource source({.dtype = DType::kFloat32, .seed = 17}, RandomSpread::kLively);
    Tensors tensors;
    const auto expected = ListTensors([&](WeightSource& list) {
      return ReadExperts(config, LayerReader(list, "layer."), kHidden);
    });
    CHECK(expected.ok()) << expected.status();
    std::vector<TensorToWrite> views;
    for (const ExpectedTensor& tensor : *expected) {
      int64_t num_elements = 1;
      for (const int64_t size : tensor.shape) num_elements *= size;
      const at::Tensor made = (*source.Add({.parts = {{"x", num_elements / tensor.shape.back()}},
                                            .row_shape = {tensor.shape.back()}}))
                                  .view(tensor.shape);
      tensors[tensor.name] = made;
      views.push_back({tensor.name,
                       {.type = StoredType::kFloat32,
                        .shape = tensor.shape,
                        .bytes = {static_cast<const char*>(made.const_data_ptr()),
                                  static_cast<size_t>(made.nbytes())}}});
    }
    CHECK(WriteSafetensors((folder_ / "model.safetensors").string(), views).ok());
    return tensors;
  }

  ExpertWeights Load(const ExpertsConfig& config, const LoadWeightsOptions& options) const {
    auto weights = LoadWeights(folder_.string(), options, NoneIsUnused, [&](WeightSource& source) {
      return ReadExperts(config, LayerReader(source, "layer."), kHidden);
    });
    CHECK(weights.ok()) << weights.status();
    return *std::move(weights);
  }

 private:
  const std::filesystem::path folder_ = std::filesystem::path(testing::TempDir()) / "expert_files";
};

TEST_F(ExpertFilesTest, OutputsOfRanksAddUpToTheWhole) {
  for (const ExpertsConfig& config : AllFamilies()) {
    Write(config);
    const at::Tensor x = Tokens(30, DType::kFloat32);
    const ExpertWeights whole = Load(config, {});
    const at::Tensor expected = Dense(config, whole, x);
    const double bound = 1e-5 * expected.abs().max().item<double>();
    EXPECT_LE((Applied(config, whole, x) - expected).abs().max().item<double>(), bound);
    for (const int world : {2, 3}) {
      at::Tensor sum = at::zeros_like(expected);
      for (int rank = 0; rank < world; ++rank) {
        const Ranks ranks = {.rank = rank, .world = world};
        const ExpertWeights own = Load(config, {.ranks = ranks});
        const auto own_config = ExpertsOfRank(config, ranks);
        ASSERT_TRUE(own_config.ok()) << own_config.status();
        EXPECT_EQ(own.down.in_features(), own_config->inner_size);
        EXPECT_LT(own.down.in_features(), config.inner_size);
        if (config.shared_inner_size > 0) {
          EXPECT_EQ(own.shared_down->in_features(), own_config->shared_inner_size);
          EXPECT_LT(own_config->shared_inner_size, config.shared_inner_size);
        }
        sum += Applied(*own_config, own, x);
      }
      EXPECT_LE((sum - expected).abs().max().item<double>(), bound) << world << " ranks";
    }
  }
}

TEST_F(ExpertFilesTest, TheBiasForTheChoiceStaysFloat32) {
  const ExpertsConfig config = DeepSeekV3Like();
  const auto tensors = Write(config);
  const ExpertWeights weights = Load(config, {.dtype = DType::kBFloat16});
  EXPECT_EQ(weights.router.weight().scalar_type(), at::kBFloat16);
  ASSERT_EQ(weights.choice_bias->scalar_type(), at::kFloat);
  EXPECT_TRUE(
      at::equal(*weights.choice_bias, tensors.at("layer.mlp.gate.e_score_correction_bias")));
  Applied(config, weights, Tokens(4, DType::kBFloat16));
}

TEST_F(ExpertFilesTest, StackedHalvesAreGateThenUp) {
  const ExpertsConfig config = Llama4Like();
  const auto tensors = Write(config);
  const at::Tensor& gate_up = tensors.at("layer.feed_forward.experts.gate_up_proj");
  EXPECT_TRUE(at::equal(Load(config, {}).gate_up.weight(), gate_up.transpose(1, 2)));
  const ExpertWeights own = Load(config, {.ranks = {.rank = 1, .world = 3}});
  EXPECT_TRUE(at::equal(
      own.gate_up.weight(),
      at::cat({gate_up.narrow(2, 8, 8), gate_up.narrow(2, 24 + 8, 8)}, 2).transpose(1, 2)));
}

TEST_F(ExpertFilesTest, RejectsMoreRanksThanInnerElements) {
  ExpertsConfig small = DeepSeekV3Like();
  small.shared_inner_size = 2;
  EXPECT_THAT(std::string(ExpertsOfRank(small, {.rank = 0, .world = 3}).status().message()),
              testing::StartsWith("experts.shared_inner_size must give each rank a part"));
}
#endif

TEST_F(ExpertsTest, WeightsThatTheConfigDoesNotHaveAreAbsent) {
  const auto named = [](const ExpertsConfig& config) {
    const std::optional<ExpertWeights> weights = Made(config, device(), DType::kFloat32, 1);
    std::set<std::string> present;
    for (const NamedWeight& weight : NamedExpertWeights(weights)) {
      if (weight.tensor != nullptr) present.insert(weight.name);
    }
    EXPECT_EQ(NamedExpertWeights(weights).size(), NamedExpertWeights(std::nullopt).size());
    return present;
  };
  EXPECT_THAT(named(QwenLike()),
              testing::UnorderedElementsAre("router", "expert gate_up", "expert down"));
  EXPECT_THAT(named(Qwen2MoeLike()),
              testing::UnorderedElementsAre("router", "expert gate_up", "expert down",
                                            "shared expert gate_up", "shared expert down"));
  EXPECT_THAT(named(DeepSeekV3Like()), testing::UnorderedElementsAre(
                                           "router", "choice_bias", "expert gate_up", "expert down",
                                           "shared expert gate_up", "shared expert down"));
}

TEST_F(ExpertsTest, NamesOfWeightsFollowTheConfig) {
  const auto list = [](const ExpertsConfig& config) {
    const auto tensors = ListTensors([&](WeightSource& source) {
      return ReadExperts(config, LayerReader(source, "layer."), kHidden);
    });
    CHECK(tensors.ok()) << tensors.status();
    std::vector<std::string> names;
    for (const ExpectedTensor& tensor : *tensors) {
      names.push_back(tensor.name);
      for (const int64_t size : tensor.shape) absl::StrAppend(&names.back(), " ", size);
    }
    return names;
  };
  EXPECT_EQ(list(QwenLike()).size(), 1 + 8 * 3u);
  EXPECT_THAT(list(QwenLike()),
              testing::IsSupersetOf({"layer.mlp.gate.weight 8 48",
                                     "layer.mlp.experts.0.gate_proj.weight 24 48",
                                     "layer.mlp.experts.7.up_proj.weight 24 48",
                                     "layer.mlp.experts.3.down_proj.weight 48 24"}));
  EXPECT_THAT(
      list(GptOssLike()),
      testing::UnorderedElementsAre(
          "layer.mlp.router.weight 5 48", "layer.mlp.router.bias 5",
          "layer.mlp.experts.gate_up_proj 5 48 48", "layer.mlp.experts.gate_up_proj_bias 5 48",
          "layer.mlp.experts.down_proj 5 24 48", "layer.mlp.experts.down_proj_bias 5 48"));
  EXPECT_THAT(list(MixtralLike()),
              testing::IsSupersetOf({"layer.block_sparse_moe.gate.weight 8 48",
                                     "layer.block_sparse_moe.experts.0.w1.weight 24 48",
                                     "layer.block_sparse_moe.experts.7.w3.weight 24 48",
                                     "layer.block_sparse_moe.experts.3.w2.weight 48 24"}));
  EXPECT_EQ(list(Qwen2MoeLike()).size(), 1 + 8 * 3 + 4u);
  EXPECT_THAT(list(Qwen2MoeLike()),
              testing::IsSupersetOf({"layer.mlp.shared_expert.gate_proj.weight 40 48",
                                     "layer.mlp.shared_expert.up_proj.weight 40 48",
                                     "layer.mlp.shared_expert.down_proj.weight 48 40",
                                     "layer.mlp.shared_expert_gate.weight 1 48"}));
  EXPECT_EQ(list(DeepSeekV3Like()).size(), 2 + 12 * 3 + 3u);
  EXPECT_THAT(list(DeepSeekV3Like()),
              testing::IsSupersetOf({"layer.mlp.gate.e_score_correction_bias 12",
                                     "layer.mlp.shared_experts.down_proj.weight 48 24"}));
  EXPECT_THAT(list(Llama4Like()), testing::UnorderedElementsAre(
                                      "layer.feed_forward.router.weight 6 48",
                                      "layer.feed_forward.experts.gate_up_proj 6 48 48",
                                      "layer.feed_forward.experts.down_proj 6 24 48",
                                      "layer.feed_forward.shared_expert.gate_proj.weight 24 48",
                                      "layer.feed_forward.shared_expert.up_proj.weight 24 48",
                                      "layer.feed_forward.shared_expert.down_proj.weight 48 24"));
}

}  // namespace
}  // namespace reprise
