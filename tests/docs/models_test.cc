// The code of docs/porting.md, sampling.md, speculation.md, distributed.md and upgrading.md, compiled
// and run. See concepts_test.cc for the markers.

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/launch.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/engine_metrics.h"
#include "reprise/engine/speculation_policy.h"
#include "reprise/runner/model.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/model_runner_options.h"
#include "reprise/runner/sampling/logits_stage.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/speculation/speculation_options.h"
#include "reprise/runner/step.h"
#include "reprise/runner/step_result.h"

namespace reprise {
namespace {

constexpr int kVocabSize = 64, kWidth = 32, kNumQHeads = 4, kNumKvHeads = 2, kHeadDim = 16;
constexpr int kNumLayers = 2, kMaxPosition = 128;

struct LayerWeights {
  at::Tensor norm, qkv, out, mlp_norm, gate, up, down;
};

struct Weights {
  at::Tensor embedding, head;
  std::vector<LayerWeights> layers = {};
};

at::Tensor Random(int64_t rows, int64_t columns) {
  return at::randn({rows, columns}, at::kFloat) / std::sqrt(static_cast<double>(columns));
}

Weights RandomWeights() {
  at::manual_seed(7);
  Weights weights = {.embedding = at::randn({kVocabSize, kWidth}, at::kFloat),
                     .head = Random(kVocabSize, kWidth) * 8};
  for (int layer = 0; layer < kNumLayers; ++layer) {
    weights.layers.push_back({.norm = at::randn({kWidth}, at::kFloat) / 4 + 1,
                              .qkv = Random((kNumQHeads + 2 * kNumKvHeads) * kHeadDim, kWidth) * 2,
                              .out = Random(kWidth, kNumQHeads * kHeadDim),
                              .mlp_norm = at::randn({kWidth}, at::kFloat) / 4 + 1,
                              .gate = Random(2 * kWidth, kWidth),
                              .up = Random(2 * kWidth, kWidth),
                              .down = Random(kWidth, 2 * kWidth)});
  }
  return weights;
}

// Rotates the halves of each head: x [num_tokens, heads, kHeadDim], positions [num_tokens].
at::Tensor Rotate(const at::Tensor& x, const at::Tensor& positions) {
  const at::Tensor powers = at::arange(0, kHeadDim, 2, at::kFloat) / -kHeadDim;
  const at::Tensor angles =
      at::outer(positions.to(at::kFloat), at::pow(10000.0, powers)).unsqueeze(1);
  const std::vector<at::Tensor> halves = x.chunk(2, -1);
  return at::cat({halves[0] * angles.cos() - halves[1] * angles.sin(),
                  halves[1] * angles.cos() + halves[0] * angles.sin()},
                 -1);
}

at::Tensor FeedForward(const LayerWeights& w, const at::Tensor& x) {
  const at::Tensor normed = at::rms_norm(x, {kWidth}, w.mlp_norm);
  return at::linear(at::silu(at::linear(normed, w.gate)) * at::linear(normed, w.up), w.down);
}

// [porting begin]
class PortedModel : public Model {
 public:
  explicit PortedModel(Weights weights) : weights_(std::move(weights)) {
    const LayerSpec layer = {.params = {.num_q_heads = kNumQHeads,
                                        .num_kv_heads = kNumKvHeads,
                                        .head_dim_qk = kHeadDim,
                                        .head_dim_v = kHeadDim}};
    spec_ = {.layers = std::vector<LayerSpec>(kNumLayers, layer),
             .vocab_size = kVocabSize,
             .max_position = kMaxPosition};
  }

  const ModelSpec& spec() const override { return spec_; }

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    at::Tensor x = at::embedding(weights_.embedding, step.token_ids());  // [num_tokens, kWidth]
    for (int layer = 0; layer < kNumLayers; ++layer) {
      const LayerWeights& w = weights_.layers[layer];
      const std::vector<at::Tensor> heads =
          at::linear(at::rms_norm(x, {kWidth}, w.norm), w.qkv)
              .view({-1, kNumQHeads + 2 * kNumKvHeads, kHeadDim})
              .split_with_sizes({kNumQHeads, kNumKvHeads, kNumKvHeads}, 1);
      const at::Tensor q = Rotate(heads[0], step.positions());
      const at::Tensor k = Rotate(heads[1], step.positions());
      // Writes k and v to the cache, and attends: prompts, decodes and any mixture of them.
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended, step.Attend(layer, q, k, heads[2]));
      x = x + at::linear(attended.flatten(1), w.out);
      x = x + FeedForward(w, x);
    }
    return at::linear(x.index_select(0, step.logits_indices()), weights_.head);
  }

 private:
  const Weights weights_;
  ModelSpec spec_;
};
// [porting end]

// The same without a cache, over one whole sequence: the next token.
int32_t NextToken(const Weights& weights, const std::vector<int32_t>& tokens) {
  const at::Tensor positions = at::arange(static_cast<int64_t>(tokens.size()), at::kInt);
  at::Tensor x = at::embedding(weights.embedding, at::tensor(tokens));
  for (const LayerWeights& w : weights.layers) {
    const std::vector<at::Tensor> heads =
        at::linear(at::rms_norm(x, {kWidth}, w.norm), w.qkv)
            .view({-1, kNumQHeads + 2 * kNumKvHeads, kHeadDim})
            .split_with_sizes({kNumQHeads, kNumKvHeads, kNumKvHeads}, 1);
    const at::Tensor attended =
        at::scaled_dot_product_attention(Rotate(heads[0], positions).transpose(0, 1).unsqueeze(0),
                                         Rotate(heads[1], positions).transpose(0, 1).unsqueeze(0),
                                         heads[2].transpose(0, 1).unsqueeze(0), {}, /*dropout_p=*/0,
                                         /*is_causal=*/true,
                                         /*scale=*/std::nullopt, /*enable_gqa=*/true)
            .squeeze(0)
            .transpose(0, 1);
    x = x + at::linear(attended.flatten(1), w.out);
    x = x + FeedForward(w, x);
  }
  return at::linear(x[-1], weights.head).argmax().item<int32_t>();
}

TEST(PortingTest, ThePortedModelWritesWhatItWritesWithoutACache) {
  const at::InferenceMode no_gradients;
  const Weights weights = RandomWeights();
  PortedModel model(weights);
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 4, .max_num_tokens = 8}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<std::vector<int32_t>> prompts = {
      {1, 2, 3}, {5, 8, 13, 21, 34, 55, 26, 18, 44, 62, 43, 42}, {60}};
  std::vector<std::vector<int32_t>> texts = prompts;
  std::vector<SequenceId> ids;
  for (const std::vector<int32_t>& prompt : prompts) {
    const auto id = (*engine)->Add({.prompt = prompt, .max_new_tokens = 20});
    ASSERT_TRUE(id.ok()) << id.status();
    ids.push_back(*id);
  }
  for (std::vector<TokenEvent> events; (*engine)->has_work(); events.clear()) {
    ASSERT_TRUE((*engine)->Step(events).ok());
    for (const TokenEvent& event : events) {
      ASSERT_TRUE(event.error.ok()) << event.error;
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == event.sequence) texts[i].push_back(*event.token);
      }
    }
  }
  EXPECT_GT(ModelRunnerOf(**engine).graph_report().num_replays(), 0);
  for (size_t i = 0; i < prompts.size(); ++i) {
    std::vector<int32_t> expected = prompts[i];
    for (int n = 0; n < 20; ++n) expected.push_back(NextToken(weights, expected));
    EXPECT_EQ(texts[i], expected) << "prompt " << i;
  }
}

// ---- docs/speculation.md

std::vector<int32_t> TextOf(Model& model, const ModelEngineOptions& options, EngineMetrics& metrics,
                            Request request = {.prompt = {1, 2, 3, 1, 2}}) {
  request.max_new_tokens = 60;
  const auto engine = CreateEngine(&model, options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return {};
  EXPECT_TRUE((*engine)->Add(std::move(request)).ok());
  std::vector<int32_t> text;
  for (std::vector<TokenEvent> events; (*engine)->has_work(); events.clear()) {
    EXPECT_TRUE((*engine)->Step(events).ok());
    for (const TokenEvent& event : events) text.push_back(event.token.value_or(-1));
  }
  metrics = (*engine)->metrics();
  return text;
}

TEST(SpeculationPageTest, DraftsDoNotChangeTheText) {
  const at::InferenceMode no_gradients;
  PortedModel model(RandomWeights());
  // [speculation begin]
  ModelEngineOptions options = {.runner = {.max_num_seqs = 8, .max_num_tokens = 512}};
  options.runner.speculation = {.max_drafts = 4, .proposer = NgramProposer{}};
  options.scheduler.speculation = SpeculationPolicy{.num_drafts = 4, .max_speculating_rows = 16};
  // [speculation end]
  EngineMetrics plain, drafted;
  const std::vector<int32_t> text =
      TextOf(model, {.runner = {.max_num_seqs = 8, .max_num_tokens = 512}}, plain);
  EXPECT_EQ(text.size(), 60u);
  EXPECT_EQ(TextOf(model, options, drafted), text);
  EXPECT_EQ(plain.speculation.num_drafts, 0);
  EXPECT_GT(drafted.speculation.num_drafts, 0);
}

TEST(SpeculationPageTest, PredictionsDoNotChangeTheText) {
  const at::InferenceMode no_gradients;
  PortedModel model(RandomWeights());
  ModelEngineOptions options = {.runner = {.max_num_seqs = 8, .max_num_tokens = 512}};
  EngineMetrics plain, predicted;
  const std::vector<int32_t> question = {1, 2, 3, 1, 2};
  const std::vector<int32_t> file = TextOf(model, options, plain);
  // [prediction begin]
  Request request = {.prompt = question};
  request.predicted_tokens = file;  // the predicted answer
  // [prediction end]
  options.runner.speculation.max_drafts = 4;
  options.scheduler.speculation = SpeculationPolicy{.num_drafts = 4};
  EXPECT_EQ(TextOf(model, options, predicted, request), file);
  EXPECT_GT(predicted.speculation.num_accepted, 40);
  EXPECT_EQ(predicted.speculation.num_accepted, predicted.speculation.num_drafts);
}

// ---- docs/distributed.md

// The world of one: the test is started by no launcher.
absl::Status RanksPage(double& sum) {
  const bool has_gpu = false;
  const std::string fingerprint = "a model and its options";
  at::Tensor sums = at::ones({3}, at::kFloat);
  // [ranks begin]
  REPRISE_ASSIGN_OR_RETURN(const RankPlace place, RanksFromEnvironment());
  const at::Device device = has_gpu ? at::Device(at::kCUDA, place.local_rank) : at::kCPU;
  REPRISE_ASSIGN_OR_RETURN(const auto ranks, ConnectRanks(place, device, {.config = fingerprint}));
  REPRISE_RETURN_IF_ERROR(ranks->AllReduce(sums));
  // [ranks end]
  sum = sums.sum().item<double>();
  return absl::OkStatus();
}

absl::Status RanksOfAModelPage(Collectives* ranks, int& num_blocks) {
  const auto LoadPart = [](Collectives*) -> absl::StatusOr<std::unique_ptr<Model>> {
    return std::make_unique<PortedModel>(RandomWeights());
  };
  ModelEngineOptions options;
  // [ranks_model begin]
  // This rank's part: LoadModel(folder, config, {.collectives = ranks}), or as you load it.
  REPRISE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, LoadPart(ranks));
  options.runner.ranks.collectives = ranks;
  // All but rank 0: returns when rank 0's engine is gone.
  if (ranks->ranks().rank > 0) return FollowEngine(model.get(), options);
  REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(model.get(), options));
  // [ranks_model end]
  num_blocks = ModelRunnerOf(*engine).shape().num_blocks;
  return absl::OkStatus();
}

TEST(DistributedPageTest, AWorldOfOneRunsTheCodeOfThePage) {
  const at::InferenceMode no_gradients;
  double sum = 0;
  absl::Status status = RanksPage(sum);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(sum, 3);
  int num_blocks = 0;
  const std::unique_ptr<Collectives> ranks = OneRank();
  status = RanksOfAModelPage(ranks.get(), num_blocks);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(num_blocks, 1);
}

// ---- docs/sampling.md

// Stands for device work: raises the logit of token 3.
absl::Status AddWatermark(const at::Tensor& logits, const int32_t* sample_slot) {
  for (int64_t row = 0; row < logits.size(0); ++row) {
    if (sample_slot[row] >= 0) logits[row][3] += 1000;
  }
  return absl::OkStatus();
}

// [watermark begin]
class Watermark : public reprise::LogitsStage {
 public:
  absl::Status BeforeSample(const reprise::LogitsStep& step) override {
    // [num_rows, vocab_size] on LibTorch's current stream. Rows that did not ask must stay as they
    // are.
    return AddWatermark(step.logits, step.sample_slot);
  }
};
// [watermark end]

TEST(SamplingPageTest, AStageOfTheUsersChangesTheLogits) {
  const at::InferenceMode no_gradients;
  PortedModel model(RandomWeights());
  Watermark watermark;
  ModelEngineOptions options = {.runner = {.max_num_seqs = 2, .max_num_tokens = 8}};
  options.runner.logits.stages = {&watermark};
  auto engine = CreateEngine(&model, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  ASSERT_TRUE((*engine)->Add({.prompt = {1, 2}, .max_new_tokens = 3, .logits_stages = 1}).ok());
  std::vector<int32_t> tokens;
  for (std::vector<TokenEvent> events; (*engine)->has_work(); events.clear()) {
    ASSERT_TRUE((*engine)->Step(events).ok());
    for (const TokenEvent& event : events) tokens.push_back(*event.token);
  }
  EXPECT_THAT(tokens, testing::ElementsAre(3, 3, 3));
}

TEST(SamplingPageTest, AChunkThatIsScoredIsARowOfTheBatch) {
  const SlotId slot(0);
  const std::vector<int32_t> chunk = {1, 2, 3};
  const int32_t first_of_next_chunk = 4;
  // [scored_chunk begin]
  const ScheduledRow row = {.slot = slot,
                            .tokens = chunk,
                            .output = RowOutput::kNone,
                            .logits = RowLogits::kAll,
                            .next_token = first_of_next_chunk};
  // [scored_chunk end]
  EXPECT_EQ(row.num_earlier_logits(), 2);
  EXPECT_TRUE(row.is_scored());
}

// ---- docs/upgrading.md

absl::Status UpgradedEngine(Model& model, std::vector<int32_t>& likeliest,
                            std::vector<int32_t>& tokens) {
  const auto Use = [&](int32_t token, const at::Tensor& logits) {
    tokens.push_back(token);
    likeliest.push_back(logits.argmax().item<int32_t>());
  };
  int num_blocks = 0;
  // [upgraded_engine begin]
  const ModelEngineOptions options = {.runner = {.logits = {.step_logits = StepLogits::kOfEvery}},
                                      .scheduler = {.prefill_chunk = 64}};
  REPRISE_ASSIGN_OR_RETURN(const auto engine, CreateEngine(&model, options));
  REPRISE_RETURN_IF_ERROR(engine->Add({.prompt = {1, 2, 3}, .max_new_tokens = 4}).status());
  for (std::vector<TokenEvent> events; engine->has_work(); events.clear()) {
    REPRISE_RETURN_IF_ERROR(engine->Step(events));
    for (const TokenEvent& event : events) {
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, LogitsOf(*engine, event));
      Use(*event.token, logits);
    }
  }
  num_blocks = engine->runner().shape().num_blocks;
  // [upgraded_engine end]
  EXPECT_GT(num_blocks, 1);
  return absl::OkStatus();
}

TEST(UpgradingPageTest, LogitsOfAnEventAreThoseItsTokenWasChosenFrom) {
  const at::InferenceMode no_gradients;
  PortedModel model(RandomWeights());
  std::vector<int32_t> likeliest, tokens;
  const absl::Status status = UpgradedEngine(model, likeliest, tokens);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(tokens.size(), 4u);
  EXPECT_EQ(tokens, likeliest);
}

absl::Status UpgradedLoop(ModelRunner* runner, const ScheduledBatch& batch,
                          std::vector<int32_t>& next, std::vector<int32_t>& earlier_next) {
  // [upgraded_loop begin]
  REPRISE_ASSIGN_OR_RETURN(const int64_t step, runner->Launch(batch));
  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner->Await(step));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, runner->logits(step));
  REPRISE_ASSIGN_OR_RETURN(const at::Tensor earlier, runner->earlier_logits(step));
  const int first_of_row_1 = FirstEarlierLogits(batch.rows, 1);
  // [upgraded_loop end]
  EXPECT_EQ(result.step, step);
  for (int64_t row = 0; row < logits.size(0); ++row) {
    next.push_back(logits[row].argmax().item<int32_t>());
  }
  for (int64_t i = first_of_row_1; i < earlier.size(0); ++i) {
    earlier_next.push_back(earlier[i].argmax().item<int32_t>());
  }
  return absl::OkStatus();
}

TEST(UpgradingPageTest, EarlierLogitsOfARowBeginAtItsFirstIndex) {
  const at::InferenceMode no_gradients;
  const Weights weights = RandomWeights();
  PortedModel model(weights);
  const auto runner =
      ModelRunner::Create(&model, {.max_num_seqs = 2, .logits = {.max_earlier_logits = 8}});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<BlockTableUpdate> updates = {
      {.slot = SlotId(0), .column = 0, .block = BlockId(1)},
      {.slot = SlotId(1), .column = 0, .block = BlockId(2)}};
  const std::vector<int32_t> first = {1, 2, 3}, second = {8, 13};
  const std::vector<SlotJoin> joins = {JoinOf(SlotId(0), {}, first.size()),
                                       JoinOf(SlotId(1), {}, second.size())};
  const std::vector<ScheduledRow> rows = {
      {.slot = SlotId(0), .tokens = first, .logits = RowLogits::kAll},
      {.slot = SlotId(1), .tokens = second, .logits = RowLogits::kAll}};
  std::vector<int32_t> next, earlier_next;
  const absl::Status status = UpgradedLoop(
      runner->get(), {.joins = joins, .updates = updates, .rows = rows}, next, earlier_next);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(next, testing::ElementsAre(NextToken(weights, first), NextToken(weights, second)));
  EXPECT_THAT(earlier_next, testing::ElementsAre(NextToken(weights, {8})));
}

}  // namespace
}  // namespace reprise
