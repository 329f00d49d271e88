#include "reprise/engine/testing/attending_heads_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/engine/testing/run_all.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/step.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {

// A build without CUDA does not instantiate the suite for GPUs.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AttendingHeadsSuite);

namespace {

using ::testing::HasSubstr;
using Texts = std::map<int64_t, std::vector<int32_t>>;

constexpr int kVocab = 61;
constexpr int kMaxSeqLen = 96;
constexpr int kHeadDim = 16;

// [positions.size(0), kMaxSeqLen]: in a row at position p, element p is 1 and all others are 0. If
// p < 0, all elements are 0.
at::Tensor OneHot(const at::Tensor& positions, at::ScalarType dtype) {
  const at::Tensor all = at::arange(kMaxSeqLen, positions.options()).unsqueeze(0);
  return (positions.unsqueeze(1) == all).to(dtype);
}

// [num_tokens] bool: which tokens of the step are in one of its rows.
at::Tensor IsLive(const Step& step) {
  const PagedBatch& batch = step.batch(0);
  const at::TensorOptions options = step.token_ids().options().dtype(at::kInt);
  const at::Tensor end =
      at::from_blob(const_cast<int32_t*>(batch.query_start_loc) + batch.num_rows, {1}, options);
  return at::arange(step.num_tokens(), options) < end;
}

AttentionParams SomeParams() {
  return {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = kHeadDim, .head_dim_v = kHeadDim};
}

LayeredModelOptions ModelOptions(c10::Device device, std::vector<LayerSpec> layers) {
  return {.layers = std::move(layers),
          .hidden = LayeredModelOptions::Hidden::kPosition,
          .vocab_size = kVocab,
          .max_position = kMaxSeqLen,
          .device = device,
          .seed = 5};
}

std::vector<LayerSpec> FullAttention() { return {{.params = SomeParams()}}; }

std::vector<LayerSpec> WindowsAndChunks() {
  AttentionParams window = SomeParams();
  window.window_left = 9;
  return {{.params = window}, {.params = SomeParams()}, {.params = SomeParams(), .chunk_size = 16}};
}

// A model whose spec names hidden states and whose forward pass does not write them.
class KeepsNoStates : public LayeredModel {
 public:
  using LayeredModel::LayeredModel;

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    return LayeredModel::Forward(step.WithHidden(nullptr));
  }
};

// Draft heads that are the model itself: their drafts are right if all their keys are right. They
// count tokens with a wrong hidden state. The right state of a token is the model's state of the
// previous token, or, in passes over drafts, twice this state, which the heads returned.
class ModelAsHeads : public DraftHeads {
 public:
  explicit ModelAsHeads(const LayeredModelOptions& options)
      : model_(options),
        num_wrong_(at::zeros({}, at::TensorOptions(options.device).dtype(at::kLong))),
        num_tokens_(num_wrong_.clone()),
        num_first_pass_tokens_(num_wrong_.clone()) {}

  absl::Span<const LayerSpec> layers() const override { return model_.spec().layers; }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& heads_step) override {
    const Step& step = *heads_step.step;
    const at::Tensor& positions = step.positions();
    const at::Tensor is_live = IsLive(step);
    const at::Tensor expected = OneHot(positions - 1, at::kFloat) * (heads_step.pass > 0 ? 2 : 1);
    const at::Tensor is_wrong = (heads_step.hidden != expected).any(1).logical_and(is_live);
    num_wrong_.add_(is_wrong.sum());
    num_tokens_.add_(is_live.sum());
    if (heads_step.pass == 0) num_first_pass_tokens_.add_(is_live.sum());
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, model_.Forward(step));
    return HeadsOutput{
        .logits = logits,
        .hidden = OneHot(positions.index_select(0, step.logits_indices()), at::kFloat) * 2};
  }

  // Forgets the steps that ran during capture. REQUIRES: these steps are done.
  void Reset() {
    num_wrong_.zero_();
    num_tokens_.zero_();
    num_first_pass_tokens_.zero_();
  }
  int64_t num_wrong() const { return num_wrong_.item<int64_t>(); }
  int64_t num_tokens() const { return num_tokens_.item<int64_t>(); }
  int64_t num_first_pass_tokens() const { return num_first_pass_tokens_.item<int64_t>(); }

 private:
  LayeredModel model_;
  at::Tensor num_wrong_;
  at::Tensor num_tokens_;
  at::Tensor num_first_pass_tokens_;
};

// Draft heads of one layer over a function of tokens and states, with random weights. Does not
// return states.
class RandomHeads : public DraftHeads {
 public:
  explicit RandomHeads(c10::Device device) : layers_(FullAttention()) {
    const auto random = [&](int64_t rows, int64_t columns) {
      return (at::randn({rows, columns}, at::kFloat) * 0.3).to(device);
    };
    const AttentionParams params = SomeParams();
    embedding_ = random(kVocab, kWidth);
    of_state_ = random(kMaxSeqLen, kWidth);
    q_ = random(kWidth, int64_t{params.num_q_heads} * kHeadDim);
    k_ = random(kWidth, int64_t{params.num_kv_heads} * kHeadDim);
    v_ = random(kWidth, int64_t{params.num_kv_heads} * kHeadDim);
    out_ = random(int64_t{params.num_q_heads} * kHeadDim, kVocab);
  }

  absl::Span<const LayerSpec> layers() const override { return layers_; }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& heads_step) override {
    const Step& step = *heads_step.step;
    const at::Tensor x =
        embedding_.index_select(0, heads_step.token_ids) + at::matmul(heads_step.hidden, of_state_);
    const auto heads = [&](const at::Tensor& weight) {
      return at::matmul(x, weight).view({x.size(0), -1, kHeadDim});
    };
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                             step.Attend(0, heads(q_), heads(k_), heads(v_)));
    const at::Tensor last = attended.index_select(0, step.logits_indices());
    return HeadsOutput{.logits = at::matmul(last.view({last.size(0), -1}), out_)};
  }

 private:
  static constexpr int kWidth = 32;

  std::vector<LayerSpec> layers_;
  at::Tensor embedding_, of_state_, q_, k_, v_, out_;
};

ModelEngineOptions Options(DraftHeads* heads, int num_drafts) {
  ModelEngineOptions options = {
      .runner = {.max_num_seqs = 4,
                 .max_num_tokens = 64,
                 .max_seq_len = kMaxSeqLen,
                 .cache = {.block_size = 4, .size = NumBlocks{1 + 4 * 24}},
                 .graphs = {.mixed = MixedGraphs::kOn}},
      .scheduler = {.prefill_chunk = 13}};
  if (heads == nullptr) return options;
  options.runner.speculation = {.max_drafts = num_drafts, .proposer = HeadsProposer{*heads}};
  options.scheduler.speculation = SpeculationPolicy{.num_drafts = num_drafts};
  return options;
}

std::vector<Request> SomeRequests(int count, bool is_greedy = false) {
  std::mt19937 rng(11);
  std::vector<Request> requests;
  for (int i = 0; i < count; ++i) {
    Request& request = requests.emplace_back();
    for (int n = 1 + static_cast<int>(rng() % 40); n > 0; --n) {
      request.prompt.push_back(static_cast<int32_t>(rng() % kVocab));
    }
    request.max_new_tokens = 1 + static_cast<int>(rng() % 50);
    request.sampling.temperature = i % 3 == 0 || is_greedy ? 0.0f : 0.7f;
    request.sampling.seed = rng();
  }
  return requests;
}

class Generation {
 public:
  Generation(Model* model, const ModelEngineOptions& options, const std::vector<Request>& requests,
             ModelAsHeads* heads = nullptr) {
    auto engine = CreateEngine(model, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return;
    engine_ = *std::move(engine);
    if (heads != nullptr) {
      ModelRunnerOf(*engine_).stream().synchronize();
      heads->Reset();
    }
    for (const Request& request : requests) {
      const auto id = engine_->Add(request);
      EXPECT_TRUE(id.ok()) << id.status();
    }
    texts_ = RunAll(*engine_);
  }

  const Texts& texts() const { return texts_; }
  SpeculationStatistics drafts() const { return engine_->metrics().speculation; }
  double accepted() const {
    const SpeculationStatistics statistics = drafts();
    return static_cast<double>(statistics.num_accepted) /
           static_cast<double>(std::max<int64_t>(statistics.num_drafts, 1));
  }
  const Engine& engine() const { return *engine_; }

 private:
  std::unique_ptr<Engine> engine_;
  Texts texts_;
};

// Prompts run in chunks, in steps with decodes and drafts. The heads read each token with the state
// of the previous token, and have the keys of all tokens that their layers attend to.
TEST_P(AttendingHeadsSuite, DraftsOfHeadsThatEqualTheModelAreAccepted) {
  const LayerSpec layer = {.params = SomeParams()};
  for (const std::vector<LayerSpec>& layers :
       {FullAttention(), {layer, layer}, WindowsAndChunks()}) {
    const LayeredModelOptions model_options = ModelOptions(GetParam(), layers);
    LayeredModel model(model_options);
    const std::vector<Request> requests = SomeRequests(16);
    ModelEngineOptions plain = Options(nullptr, 0);
    plain.scheduler.prefix_reuse = PrefixReuse::kOff;
    const Generation want(&model, plain, requests);
    for (const int num_drafts : {1, 4, 8}) {
      SCOPED_TRACE(testing::Message() << layers.size() << " layers, " << num_drafts << " drafts");
      ModelAsHeads heads(model_options);
      ModelEngineOptions options = Options(&heads, num_drafts);
      options.scheduler.prefix_reuse = PrefixReuse::kOff;
      options.runner.speculation.graph_num_drafts = {num_drafts};
      const Generation run(&model, options, requests, &heads);
      EXPECT_EQ(run.texts(), want.texts());
      EXPECT_GT(heads.num_tokens(), 500);
      EXPECT_EQ(heads.num_wrong(), 0);
      EXPECT_GT(run.drafts().num_drafts, 100);
      EXPECT_GT(heads.num_first_pass_tokens(), run.drafts().num_accepted / 2)
          << "the heads read accepted drafts again, with the model's states";
      EXPECT_GT(run.accepted(), 0.97);
      EXPECT_EQ(run.engine().runner().graph_report().num_eager_steps(), 0);
    }
  }
}

// A chunk with more tokens than kept states overwrites the state before the chunk. A second pass of
// the heads over the chunk would have no state for its first token.
TEST_P(AttendingHeadsSuite, ReplayCheckRunsHeadsOnce) {
  const LayeredModelOptions model_options = ModelOptions(GetParam(), FullAttention());
  LayeredModel model(model_options);
  std::vector<Request> requests = SomeRequests(3);
  for (Request& request : requests) {
    request.prompt.resize(80, 3);
    request.max_new_tokens = 12;
  }
  ModelAsHeads heads(model_options);
  ModelEngineOptions options = Options(&heads, 4);
  options.runner.graphs.mode = GraphSetOptions::Mode::kEager;  // kLazy: a warm-up runs a step twice
  options.scheduler.prefill_chunk = 40;
  options.scheduler.prefix_reuse = PrefixReuse::kOff;
  const Generation want(&model, options, requests, &heads);
  ASSERT_EQ(heads.num_wrong(), 0);
  options.runner.debug.replay_check = ReplayCheck::kEveryReplay;
  const Generation run(&model, options, requests, &heads);
  EXPECT_EQ(run.texts(), want.texts());
  EXPECT_EQ(heads.num_wrong(), 0);
  EXPECT_GT(run.engine().graph_report().num_replays(), 5);
}

// Later steps with drafts read the tokens that were decoded without drafts.
TEST_P(AttendingHeadsSuite, HeadsCatchUpAfterStepsWithoutDrafts) {
  for (const auto& [num_plain, layers] :
       {std::pair(20, FullAttention()), {60, FullAttention()}, {20, WindowsAndChunks()}}) {
    SCOPED_TRACE(testing::Message() << num_plain << " steps, " << layers.size() << " layers");
    const LayeredModelOptions model_options = ModelOptions(GetParam(), layers);
    LayeredModel model(model_options);
    std::vector<Request> requests = SomeRequests(2);
    requests[0].prompt.resize(1);
    requests[1].prompt.resize(1);
    requests[0].max_new_tokens = num_plain;
    requests[1].max_new_tokens = 90;
    const Generation want(&model, Options(nullptr, 0), requests);
    ModelAsHeads heads(model_options);
    ModelEngineOptions options = Options(&heads, 4);
    options.scheduler.speculation->max_speculating_rows = 1;
    const Generation run(&model, options, requests, &heads);
    EXPECT_EQ(run.texts(), want.texts());
    EXPECT_GT(run.drafts().num_drafts, 10);
    if (num_plain == 20) {
      EXPECT_EQ(heads.num_wrong(), 0);
      EXPECT_GT(run.drafts().num_accepted, 30);
    } else {
      EXPECT_GT(heads.num_wrong(), 10) << "more tokens than kept states";
    }
  }
}

LayerSpec SmallLayer() {
  return {
      .params = {
          .num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = kHeadDim, .head_dim_v = kHeadDim}};
}

// Options of a model and of its drafter, which is the same model.
LayeredModelOptions ModelAndDrafter(c10::Device device,
                                    std::vector<LayerSpec> layers = {SmallLayer(), SmallLayer()}) {
  return {.layers = std::move(layers),
          .vocab_size = kVocab,
          .max_position = 300,
          .device = device,
          .seed = 3};
}

ModelEngineOptions OfTwoSequences(int max_seq_len, int num_blocks) {
  return {.runner = {.max_num_seqs = 2,
                     .max_num_tokens = 64,
                     .max_seq_len = max_seq_len,
                     .cache = {.block_size = 4, .size = NumBlocks{num_blocks}}}};
}

// Only steps with one row have drafts.
void SpeculateAlone(int num_drafts, Model& draft, ModelEngineOptions& options) {
  options.runner.speculation = {.max_drafts = num_drafts, .proposer = ModelProposer{draft}};
  options.scheduler.speculation =
      SpeculationPolicy{.num_drafts = num_drafts, .max_speculating_rows = 1};
}

// The draft model is the model itself: all its drafts are accepted if it has the keys of all
// tokens. While two sequences run, there are no drafts. The remaining sequence then has far more
// tokens to catch up on than its windows hold. Afterwards, a prompt hits the cache.
TEST_P(AttendingHeadsSuite, DraftModelCatchesUpAfterStepsWithoutDrafts) {
  const LayerSpec full = SmallLayer();
  LayerSpec window = full;
  window.params.window_left = 5;
  LayerSpec chunk = full;
  chunk.chunk_size = 8;
  for (const std::vector<LayerSpec>& layers :
       {std::vector{full, full}, {window, full}, {window, window}, {chunk, window, full}}) {
    LayeredModel model(ModelAndDrafter(GetParam(), layers));
    LayeredModel draft(ModelAndDrafter(GetParam(), layers));
    ModelEngineOptions options = OfTwoSequences(/*max_seq_len=*/160, /*num_blocks=*/1 + 3 * 2 * 40);
    const Request plain_request = {
        .prompt = {1, 2, 3}, .max_new_tokens = 150, .sampling = {.temperature = 0.7f, .seed = 5}};
    Request short_request = plain_request;
    short_request.prompt = {7};
    short_request.max_new_tokens = 48;
    auto plain = CreateEngine(&model, options);
    ASSERT_TRUE(plain.ok()) << plain.status();
    ASSERT_TRUE((*plain)->Add(plain_request).ok());
    ASSERT_TRUE((*plain)->Add(short_request).ok());
    const auto want = RunAll(**plain);

    for (const int num_drafts : {1, 4}) {
      SCOPED_TRACE(testing::Message()
                   << layers.size() << " layers, window "
                   << layers[0].params.window_left.value_or(-1) << ", " << num_drafts << " drafts");
      SpeculateAlone(num_drafts, draft, options);
      auto engine = CreateEngine(&model, options);
      ASSERT_TRUE(engine.ok()) << engine.status();
      ASSERT_TRUE((*engine)->Add(plain_request).ok());
      ASSERT_TRUE((*engine)->Add(short_request).ok());
      const auto texts = RunAll(**engine);
      EXPECT_EQ(texts, want);
      const SpeculationStatistics first = (*engine)->metrics().speculation;
      // 48 tokens. A catch-up row reads 1 + num_drafts tokens, and generates one.
      const int num_behind = num_drafts == 1 ? 48 : 12;
      EXPECT_GE(first.num_catch_up_rows, num_behind * 4 / 5);
      EXPECT_LE(first.num_catch_up_rows, num_behind + 4);
      EXPECT_GT(first.num_drafts, num_drafts == 1 ? 20 : 60);
      EXPECT_GE(first.num_accepted, first.num_drafts - 2);

      // Uses the text so far as a prompt. The cache has its keys, and the drafter's keys.
      Request longer = plain_request;
      const std::vector<int32_t>& text = texts.begin()->second;
      longer.prompt.insert(longer.prompt.end(), text.begin(), text.begin() + 100);
      longer.max_new_tokens = 40;
      ASSERT_TRUE((*engine)->Add(longer).ok());
      RunAll(**engine);
      const EngineMetrics metrics = (*engine)->metrics();
      EXPECT_GE(metrics.num_prefix_tokens_hit, 96);
      EXPECT_EQ(metrics.speculation.num_catch_up_rows, first.num_catch_up_rows);
      const int64_t num_later = metrics.speculation.num_drafts - first.num_drafts;
      EXPECT_GT(num_later, 15);
      EXPECT_GE(metrics.speculation.num_accepted - first.num_accepted, num_later - 2);
    }
  }
}

// Two sequences decode without drafts. The second is swapped out, and returns when the first has
// ended. The drafter, which is the model itself, catches up on the tokens that were decoded without
// it; then all its drafts are right.
TEST_P(AttendingHeadsSuite, DraftModelCatchesUpAfterASwap) {
  LayeredModel model(ModelAndDrafter(GetParam()));
  LayeredModel draft(ModelAndDrafter(GetParam()));
  ModelEngineOptions options = OfTwoSequences(/*max_seq_len=*/96, /*num_blocks=*/1 + 2 * 24);
  options.runner.cache.swap = NumBlocks{40};
  options.scheduler.prefix_reuse = PrefixReuse::kOff;
  options.scheduler.preemption = PreemptionMode::kSwap;
  const auto texts_of = [](Engine& engine) {
    for (const int i : {0, 1}) {
      const Request request = {.prompt = {1, 2 + i, 3},
                               .max_new_tokens = i == 0 ? 52 : 84,
                               .sampling = {.temperature = 0.7f, .seed = 5u + i}};
      EXPECT_TRUE(engine.Add(request).ok());
    }
    return RunAll(engine);
  };
  auto plain = CreateEngine(&model, options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const auto want = texts_of(**plain);
  EXPECT_EQ((*plain)->metrics().num_preemptions, 0);

  options.runner.cache.size = NumBlocks{1 + 24};  // 48 tokens per sequence
  SpeculateAlone(/*num_drafts=*/4, draft, options);
  auto engine = CreateEngine(&model, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ(texts_of(**engine), want);
  const EngineMetrics metrics = (*engine)->metrics();
  EXPECT_EQ(metrics.num_swap_preemptions, 1);
  // 45 tokens, 4 per row. The first sequence ends before its drafter has caught up.
  EXPECT_GE(metrics.speculation.num_catch_up_rows, 10);
  EXPECT_LE(metrics.speculation.num_catch_up_rows, 14);
  EXPECT_GE(metrics.speculation.num_drafts, 16);
  EXPECT_GE(metrics.speculation.num_accepted, metrics.speculation.num_drafts - 2);
}

// The prompt is a text that was decoded without drafts. The cache has its keys, but not the
// drafter's keys, which the drafter computes. The same happens for forks of a prompt that the
// drafter has not read.
TEST_P(AttendingHeadsSuite, DraftModelCatchesUpOnUnreadPrefixes) {
  LayeredModel model(ModelAndDrafter(GetParam()));
  LayeredModel draft(ModelAndDrafter(GetParam()));
  ModelEngineOptions options = OfTwoSequences(/*max_seq_len=*/240, /*num_blocks=*/1 + 3 * 60);
  SpeculateAlone(/*num_drafts=*/4, draft, options);
  auto engine = CreateEngine(&model, options);
  ASSERT_TRUE(engine.ok()) << engine.status();
  Request request = {
      .prompt = {1, 2, 3}, .max_new_tokens = 110, .sampling = {.temperature = 0.7f, .seed = 5}};
  Request beside = request;
  beside.prompt = {7};
  ASSERT_TRUE((*engine)->Add(request).ok());
  ASSERT_TRUE((*engine)->Add(beside).ok());
  const auto texts = RunAll(**engine);
  ASSERT_EQ((*engine)->metrics().speculation.num_rows, 0);

  const std::vector<int32_t>& text = texts.begin()->second;
  request.prompt.insert(request.prompt.end(), text.begin(), text.begin() + 100);
  request.max_new_tokens = 100;
  ASSERT_TRUE((*engine)->Add(request).ok());
  RunAll(**engine);
  const EngineMetrics metrics = (*engine)->metrics();
  EXPECT_GE(metrics.num_prefix_tokens_hit, 96);
  EXPECT_GE(metrics.speculation.num_catch_up_rows, 20);
  EXPECT_LE(metrics.speculation.num_catch_up_rows, 26);
  EXPECT_GE(metrics.speculation.num_drafts, 40);
  EXPECT_GE(metrics.speculation.num_accepted, metrics.speculation.num_drafts - 2);

  options.scheduler.prefill_chunk = 1;
  options.scheduler.speculation->max_speculating_rows = 0;
  auto forks = CreateEngine(&model, options);
  ASSERT_TRUE(forks.ok()) << forks.status();
  request.prompt.resize(41);
  request.num_sequences = 2;
  ASSERT_TRUE((*forks)->Add(request).ok());
  RunAll(**forks);
  const SpeculationStatistics drafts = (*forks)->metrics().speculation;
  EXPECT_EQ((*forks)->metrics().num_forks, 1);
  EXPECT_GE(drafts.num_catch_up_rows, 2 * 7);
  EXPECT_GE(drafts.num_drafts, 80);
  EXPECT_GE(drafts.num_accepted, drafts.num_drafts - 4);
}

// Runs with prefix hits, preemptions and swaps, and heads that are mostly wrong.
TEST_P(AttendingHeadsSuite, TextsMatchPlainDecodingWithAnyHeads) {
  int64_t num_prefix_tokens_hit = 0;
  int64_t num_preemptions = 0;
  for (const std::vector<LayerSpec>& layers : {FullAttention(), WindowsAndChunks()}) {
    LayeredModel model(ModelOptions(GetParam(), layers));
    std::vector<Request> requests = SomeRequests(24);
    const std::vector<int32_t> common = requests[0].prompt;
    for (size_t i = 0; i < requests.size(); i += 2) {
      std::vector<int32_t>& prompt = requests[i].prompt;
      prompt.insert(prompt.begin(), common.begin(), common.end());
      prompt.resize(std::min<size_t>(prompt.size(), 44));
    }
    ModelEngineOptions plain = Options(nullptr, 0);
    const Generation want(&model, plain, requests);
    for (const int num_drafts : {1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << layers.size() << " layers, " << num_drafts << " drafts");
      RandomHeads heads(GetParam());
      ModelEngineOptions options = Options(&heads, num_drafts);
      options.runner.cache.size = NumBlocks{1 + 36};
      options.runner.cache.swap = NumBlocks{40};
      const Generation run(&model, options, requests);
      EXPECT_EQ(run.texts(), want.texts());
      EXPECT_GT(run.drafts().num_drafts, 50);
      EXPECT_LT(run.accepted(), 0.5);
      num_preemptions += run.engine().metrics().num_preemptions;
      num_prefix_tokens_hit += run.engine().metrics().num_prefix_tokens_hit;
    }
  }
  EXPECT_GT(num_prefix_tokens_hit, 0);
  EXPECT_GT(num_preemptions, 0);
}

// The draft count of the rows decreases to 0, and no pass of the heads exceeds the context.
TEST_P(AttendingHeadsSuite, SequencesGrowToTheEndOfTheContext) {
  for (const std::vector<LayerSpec>& layers : {FullAttention(), WindowsAndChunks()}) {
    const LayeredModelOptions model_options = ModelOptions(GetParam(), layers);
    LayeredModel model(model_options);
    std::vector<Request> requests = SomeRequests(6);
    for (Request& request : requests) request.max_new_tokens = 2 * kMaxSeqLen;
    const Generation want(&model, Options(nullptr, 0), requests);
    auto request = requests.begin();
    for (const auto& [id, text] : want.texts()) {
      EXPECT_EQ(request++->prompt.size() + text.size(), size_t{kMaxSeqLen} + 1) << id;
    }
    for (const int num_drafts : {1, 4, 8}) {
      SCOPED_TRACE(testing::Message() << layers.size() << " layers, " << num_drafts << " drafts");
      ModelAsHeads right(model_options);
      ModelEngineOptions options = Options(&right, num_drafts);
      options.scheduler.prefix_reuse = PrefixReuse::kOff;
      const Generation run(&model, options, requests, &right);
      EXPECT_EQ(run.texts(), want.texts());
      EXPECT_EQ(right.num_wrong(), 0);
      EXPECT_GT(run.accepted(), 0.97);
      RandomHeads wrong(GetParam());
      const Generation others(&model, Options(&wrong, num_drafts), requests);
      EXPECT_EQ(others.texts(), want.texts());
    }
  }
}

TEST_P(AttendingHeadsSuite, RejectionSamplingKeepsGreedyTexts) {
  const LayeredModelOptions model_options = ModelOptions(GetParam(), FullAttention());
  LayeredModel model(model_options);
  const std::vector<Request> requests = SomeRequests(8, /*is_greedy=*/true);
  const Generation want(&model, Options(nullptr, 0), requests);
  ModelAsHeads heads(model_options);
  ModelEngineOptions options = Options(&heads, 4);
  options.scheduler.prefix_reuse = PrefixReuse::kOff;
  options.runner.speculation.acceptance = DraftAcceptance::kRejection;
  const Generation run(&model, options, requests);
  EXPECT_EQ(run.texts(), want.texts());
  EXPECT_GT(run.accepted(), 0.97);
  // Sampled rows: drafts of heads that have the model's probabilities are accepted, except for
  // rounding.
  ModelAsHeads others(model_options);
  options.runner.speculation.proposer = HeadsProposer{others};
  const Generation sampled(&model, options, SomeRequests(8));
  EXPECT_GT(sampled.drafts().num_drafts, 50);
  EXPECT_GT(sampled.accepted(), 0.97);
}

TEST_P(AttendingHeadsSuite, RejectsUnsupportedHeadsAndModels) {
  const LayeredModelOptions model_options = ModelOptions(GetParam(), FullAttention());
  ModelAsHeads heads(model_options);
  KeepsNoStates no_states(model_options);
  auto engine = CreateEngine(&no_states, Options(&heads, 2));
  absl::Status status = engine.status();
  if (engine.ok()) {  // on the CPU a graph is run with the first step
    ASSERT_TRUE((*engine)->Add({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 2}).ok());
    std::vector<TokenEvent> events;
    while ((*engine)->has_work()) ASSERT_TRUE((*engine)->Step(events).ok());
    ASSERT_FALSE(events.empty());
    status = events.back().error;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("must call Step::KeepHidden()"));
  LayeredModel model(model_options);
  ModelEngineOptions trees = Options(&heads, 2);
  trees.runner.speculation.shape = DraftShape::kTree;
  EXPECT_THAT(CreateEngine(&model, trees).status().message(), HasSubstr("chains"));
  LayerSpec encoder = FullAttention()[0];
  encoder.kind = AttentionKind::kEncoderDecoder;
  ModelAsHeads others(ModelOptions(GetParam(), {encoder}));
  EXPECT_THAT(CreateEngine(&model, Options(&others, 2)).status().message(),
              HasSubstr("layers of the heads of speculation.proposer must be decoder layers: layer "
                        "0 has another "
                        "kind"));
}

}  // namespace
}  // namespace reprise
