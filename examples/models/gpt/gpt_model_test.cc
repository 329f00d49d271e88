// The model through an engine against the papers' formulas in float64.

#include "reprise/models/gpt/gpt_model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/hf/paths.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using testing::HasSubstr;

GptConfig TinyGpt2() {
  GptConfig config;
  config.family = GptFamily::kGpt2;
  config.hidden_size = 48;
  config.inner_size = 56;
  config.num_layers = 2;
  config.num_heads = 4;
  config.vocab_size = 50;
  config.max_seq_len = 40;
  return config;
}

GptConfig TinyBloom(int num_heads) {
  GptConfig config = TinyGpt2();
  config.family = GptFamily::kBloom;
  config.inner_size = 192;
  config.num_heads = num_heads;
  config.max_seq_len = 64;
  return config;
}

std::unique_ptr<GptModel> Made(const GptConfig& config) {
  auto weights = MakeRandomGptWeights(config, {.dtype = DType::kFloat32, .seed = 3});
  CHECK(weights.ok()) << weights.status();
  auto model = GptModel::Create(config, *std::move(weights), {});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

class DenseGpt {
 public:
  explicit DenseGpt(const GptModel& model) : config_(model.config()), weights_(model.weights()) {}

  at::Tensor Logits(const std::vector<int32_t>& tokens) const {
    const at::Tensor ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()));
    at::Tensor x = Wide(weights_.embedding).index_select(0, ids);
    if (config_.family == GptFamily::kGpt2) {
      x = x + Wide(*weights_.positions).narrow(0, 0, x.size(0));
    } else {
      x = Norm(x, *weights_.embedding_norm);
    }
    for (const GptLayerWeights& layer : weights_.layers) {
      x = x + Attention(layer, Norm(x, layer.attention_norm));
      const at::Tensor inner = Apply(layer.up, Norm(x, layer.mlp_norm));
      const char* const form = config_.gelu == GeluForm::kTanh ? "tanh" : "none";
      x = x + Apply(layer.down, at::gelu(inner, form));
    }
    return Apply(weights_.lm_head, Norm(x, weights_.final_norm));
  }

 private:
  static at::Tensor Wide(const at::Tensor& x) { return x.to(at::kDouble); }

  static at::Tensor Apply(const Linear& linear, const at::Tensor& x) {
    std::optional<at::Tensor> bias;
    if (linear.bias().has_value()) bias = Wide(*linear.bias());
    return at::linear(x, Wide(linear.weight()), bias);
  }

  at::Tensor Norm(const at::Tensor& x, const GptNorm& norm) const {
    return at::layer_norm(x, {x.size(1)}, Wide(norm.weight), Wide(norm.bias),
                          config_.layer_norm_eps);
  }

  // The slope of a head as in "Train Short, Test Long": a geometric series for 2^k heads; else that
  // of the next lower power of two, then every other slope of twice as many.
  double Slope(int head) const {
    int power = 1;
    while (2 * power <= config_.num_heads) power *= 2;
    const double ratio = std::pow(2.0, -8.0 / power);
    if (head < power) return std::pow(ratio, head + 1);
    return std::pow(std::sqrt(ratio), 2 * (head - power) + 1);
  }

  at::Tensor Attention(const GptLayerWeights& layer, const at::Tensor& x) const {
    const int64_t n = x.size(0);
    const int dim = config_.head_dim();
    const at::Tensor fused = Apply(layer.qkv, x);
    const at::Tensor positions = at::arange(n, at::kDouble);
    const at::Tensor distance = positions.view({n, 1}) - positions;  // query - key
    std::vector<at::Tensor> outs;
    for (int head = 0; head < config_.num_heads; ++head) {
      const auto part = [&](int i) {
        const int64_t begin = config_.family == GptFamily::kGpt2
                                  ? i * config_.hidden_size + head * dim
                                  : (head * 3 + i) * dim;
        return fused.narrow(1, begin, dim);
      };
      at::Tensor scores = at::matmul(part(0), part(1).t()) / std::sqrt(static_cast<double>(dim));
      if (config_.family == GptFamily::kBloom) scores = scores - distance * Slope(head);
      scores = scores.masked_fill(distance.lt(0), -std::numeric_limits<double>::infinity());
      outs.push_back(at::matmul(at::softmax(scores, -1), part(2)));
    }
    return Apply(layer.out, at::cat(outs, 1));
  }

  const GptConfig& config_;
  const GptWeights& weights_;
};

// Prompt and forced tokens of one sequence, through an engine in chunks, against the plain form.
void ExpectDense(const GptConfig& config) {
  const std::unique_ptr<GptModel> model = Made(config);
  auto engine = CreateEngine(model.get(), {.runner = {.max_num_seqs = 2,
                                                      .max_num_tokens = 16,
                                                      .max_steps_in_flight = 1,
                                                      .cache = {.block_size = 4}},
                                           .scheduler = {.prefill_chunk = 3}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  std::vector<int32_t> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back((i * i * 7 + 3) % config.vocab_size);
  const Request request = {.prompt = {tokens.begin(), tokens.begin() + 11},
                           .forced_tokens = {tokens.begin() + 11, tokens.end()}};
  LogitsRecorder recorder(1);
  const absl::Status status = Generate(**engine, {request}, [&](int i, const TokenEvent& event) {
    return recorder.Record(i, *LogitsOf(**engine, event));
  });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(recorder.num_rows(0), 29);
  const at::Tensor expected = DenseGpt(*model).Logits(tokens).narrow(0, 10, 29);
  const at::Tensor got =
      at::tensor(std::vector<float>(recorder.rows(0).begin(), recorder.rows(0).end()))
          .view({29, config.vocab_size});
  EXPECT_LT((got - expected).abs().max().item<double>(),
            1e-4 * expected.abs().max().item<double>());
}

TEST(GptModelTest, Gpt2ComputesWhatThePlainFormComputesUpToItsLastPosition) {
  ExpectDense(TinyGpt2());
}

TEST(GptModelTest, GeluByItsDefinitionAndAHeadOfItsOwn) {
  GptConfig config = TinyGpt2();
  config.gelu = GeluForm::kErf;
  config.tie_word_embeddings = false;
  ExpectDense(config);
}

TEST(GptModelTest, BloomWithAnyNumberOfHeads) {
  for (const int num_heads : {1, 2, 3, 6, 8, 12}) {
    SCOPED_TRACE(testing::Message() << num_heads << " heads");
    ExpectDense(TinyBloom(num_heads));
  }
}

TEST(GptModelTest, WeightsAndPositionsMustFitTheConfig) {
  const GptConfig config = TinyGpt2();
  const auto weights = [&] { return *MakeRandomGptWeights(config, {.dtype = DType::kFloat32}); };
  EXPECT_TRUE(GptModel::Create(config, weights(), {.max_position = 40}).ok());
  for (const int max_position : {0, 41}) {
    EXPECT_EQ(GptModel::Create(config, weights(), {.max_position = max_position}).status(),
              absl::InvalidArgumentError(
                  absl::StrCat("max_position must be in [1, 40]: got ", max_position)));
  }
  GptWeights without = weights();
  without.positions.reset();
  EXPECT_THAT(std::string(GptModel::Create(config, std::move(without), {}).status().message()),
              HasSubstr("positions must be there"));
  GptConfig bloom = TinyBloom(4);
  EXPECT_FALSE(GptModel::Create(bloom, weights(), {}).ok());
  GptConfig longer = config;
  longer.num_layers = 3;
  EXPECT_THAT(std::string(GptModel::Create(longer, weights(), {}).status().message()),
              HasSubstr("layers must be num_layers: expected 3, got 2"));
}

// The golden's weights under the names of older files, which have masks too.
TEST(GptModelTest, OlderFilesHaveNoPrefix) {
  const std::optional<std::string> golden = FindData("tests/goldens/gpt2", DataRoots());
  ASSERT_TRUE(golden.has_value());
  const auto file = SafetensorsFile::Open(*golden + "/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/gpt2-old-", static_cast<int>(getpid()));
  std::filesystem::create_directories(folder);
  const std::vector<float> mask(4, 1.0f);
  std::vector<TensorToWrite> tensors;
  for (const auto& [name, view] : file->tensors()) {
    tensors.push_back({name.substr(std::string("transformer.").size()), view});
  }
  tensors.push_back({"h.0.attn.bias",
                     {.type = ToStoredType(DType::kFloat32),
                      .shape = {1, 1, 2, 2},
                      .bytes = {reinterpret_cast<const char*>(mask.data()), 16}}});
  ASSERT_TRUE(WriteSafetensors(folder + "/model.safetensors", tensors).ok());
  const auto config = LoadGptConfig(*golden);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto old = LoadGptWeights(folder, *config, {.dtype = DType::kFloat32});
  ASSERT_TRUE(old.ok()) << old.status();
  const auto now = LoadGptWeights(*golden, *config, {.dtype = DType::kFloat32});
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_TRUE(at::equal(*old->positions, *now->positions));
  EXPECT_TRUE(at::equal(old->layers[1].up.weight(), now->layers[1].up.weight()));
  EXPECT_EQ(now->layers[1].up.weight().sizes(), at::IntArrayRef({256, 64}));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace reprise
