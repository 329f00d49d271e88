// Heads that draft from a DecoderModel's hidden states.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/matmul.h>

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/runner/speculation/draft_heads.h"

namespace reprise {
namespace {

constexpr int kHidden = 48;
constexpr int kNumDrafts = 2;

std::unique_ptr<DecoderModel> MakeModel() {
  DecoderConfig config;
  config.hidden_size = kHidden;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_q_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 50;
  config.max_seq_len = 64;
  config.rms_norm_eps = 1e-5;
  auto weights = MakeRandomWeights(config, {.dtype = DType::kFloat32, .seed = 3});
  CHECK(weights.ok()) << weights.status();
  // With a deviation of 0.02 attention would be almost uniform.
  for (DecoderLayerWeights& layer : weights->layers) {
    at::Tensor qkv = layer.qkv->weight();
    qkv.mul_(40);
  }
  auto model = DecoderModel::Create(config, *std::move(weights), {});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

// Heads that apply the model's own output matrix [vocab_size, hidden] to the state. In pass 0 that
// gives again the token that was chosen from the state: HeadsStep::token_ids.
class OutputMatrixAgain : public DraftHeads {
 public:
  explicit OutputMatrixAgain(const at::Tensor& lm_head) : matrix_(lm_head.t()) {}

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& step) override {
    EXPECT_EQ(step.hidden.size(1), kHidden);
    const at::Tensor logits = at::matmul(step.hidden, matrix_);
    if (step.pass == 0) {
      const int64_t num_rows = step.token_ids.numel();
      const int64_t num_same = at::eq(logits.argmax(1), step.token_ids).sum().item<int64_t>();
      num_rows_seen += num_rows;
      num_rows_same += num_same;
    }
    return HeadsOutput{.logits = logits};
  }

  int64_t num_rows_seen = 0;
  int64_t num_rows_same = 0;

 private:
  at::Tensor matrix_;
};

std::map<int64_t, std::vector<int32_t>> TextsOf(DecoderModel& model, DraftHeads* heads,
                                                GraphSetOptions::Mode graphs,
                                                const std::vector<Request>& requests) {
  ModelEngineOptions options = {.runner = {.max_num_seqs = static_cast<int>(requests.size()),
                                           .max_num_tokens = 32,
                                           .cache = {.block_size = 4},
                                           .graphs = {.mode = graphs}}};
  if (heads != nullptr) {
    options.runner.speculation = {.max_drafts = kNumDrafts, .proposer = HeadsProposer{*heads}};
    options.scheduler.speculation = SpeculationPolicy{.num_drafts = kNumDrafts};
  }
  auto engine = CreateEngine(&model, options);
  CHECK(engine.ok()) << engine.status();
  for (const Request& request : requests) CHECK((*engine)->Add(request).ok());
  std::map<int64_t, std::vector<int32_t>> texts = RunAll(**engine);
  EXPECT_EQ((*engine)->metrics().speculation.num_drafts > 0, heads != nullptr);
  return texts;
}

TEST(DecoderHeadsTest, SeeTheStateThatGaveTheNewestToken) {
  const std::unique_ptr<DecoderModel> model = MakeModel();
  OutputMatrixAgain heads(model->weights().lm_head.weight());
  TextsOf(*model, &heads, GraphSetOptions::Mode::kOff,
          {{.prompt = {7, 3, 21, 4}, .max_new_tokens = 40}});
  EXPECT_GT(heads.num_rows_seen, 5);
  EXPECT_EQ(heads.num_rows_same, heads.num_rows_seen);
}

TEST(DecoderHeadsTest, DraftsDoNotChangeTheTexts) {
  const std::unique_ptr<DecoderModel> model = MakeModel();
  const std::vector<Request> requests = {
      {.prompt = {7, 3, 21, 4}, .max_new_tokens = 40},
      {.prompt = {1}, .max_new_tokens = 30},
      {.prompt = {8, 8, 8, 8, 8, 8, 8, 8, 8}, .max_new_tokens = 40}};
  for (const auto graphs : {GraphSetOptions::Mode::kOff, GraphSetOptions::Mode::kEager}) {
    const auto expected = TextsOf(*model, nullptr, graphs, requests);
    OutputMatrixAgain heads(model->weights().lm_head.weight());
    EXPECT_EQ(TextsOf(*model, &heads, graphs, requests), expected);
  }
}

}  // namespace
}  // namespace reprise
