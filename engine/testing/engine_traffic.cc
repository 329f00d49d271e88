#include "reprise/engine/testing/engine_traffic.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/sampling/sampling.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/speculation/draft_levels.h"
#include "reprise/runner/step.h"

namespace reprise {
namespace {

constexpr int kVocab = 37;
constexpr int kMaxEncoderTokens = 24;
// Maximum rounding error of a float32 logit of these models (runner/testing/layered_model.h).
constexpr float kRounding = 2e-4f;

LayerSpec Full() {
  return {.params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16}};
}

// Whether the maskers of these tests allow `token` after the generated token `last`; -1: no token
// has been generated.
bool IsAllowed(int32_t last, int32_t token) { return (token * 5 + last * 3 + 1) % 4 != 0; }

class TestMasker final : public TokenMasker {
 public:
  void Fill(absl::Span<int32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (int32_t token = 0; token < kVocab; ++token) {
      if (IsAllowed(last_, token)) mask[token / 32] |= static_cast<int32_t>(1u << token % 32);
    }
  }
  bool Accept(int32_t token) override {
    last_ = token;
    return true;
  }

 private:
  int32_t last_ = -1;
};

// Random matrices over hidden states and tokens, optionally followed by a layer with attention.
class TrafficHeads final : public DraftHeads {
 public:
  TrafficHeads(int hidden_dim, bool attends, uint64_t seed, c10::Device device) {
    if (attends) layers_ = {Full()};
    std::mt19937 rng(static_cast<uint32_t>(seed));
    std::normal_distribution<float> normal(0, 0.3f);
    const auto random = [&](int64_t rows, int64_t columns) {
      at::Tensor matrix = at::empty({rows, columns}, at::kFloat);
      std::generate_n(matrix.data_ptr<float>(), matrix.numel(), [&] { return normal(rng); });
      return matrix.to(device);
    };
    of_token_ = random(kVocab, kWidth);
    of_state_ = random(hidden_dim, kWidth);
    q_ = random(kWidth, 4 * 16);
    k_ = random(kWidth, 2 * 16);
    v_ = random(kWidth, 2 * 16);
    out_ = random(attends ? 4 * 16 : kWidth, kVocab);
  }

  absl::Span<const LayerSpec> layers() const override { return layers_; }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& heads_step) override {
    const at::Tensor x =
        of_token_.index_select(0, heads_step.token_ids) + at::matmul(heads_step.hidden, of_state_);
    if (layers_.empty()) return HeadsOutput{.logits = at::matmul(x, out_)};
    const reprise::Step& step = *heads_step.step;
    const auto heads = [&](const at::Tensor& weight) {
      return at::matmul(x, weight).view({x.size(0), -1, 16});
    };
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended,
                             step.Attend(0, heads(q_), heads(k_), heads(v_)));
    const at::Tensor last = attended.index_select(0, step.logits_indices());
    return HeadsOutput{.logits = at::matmul(last.view({last.size(0), -1}), out_)};
  }

 private:
  static constexpr int kWidth = 24;

  std::vector<LayerSpec> layers_;
  at::Tensor of_token_, of_state_, q_, k_, v_, out_;
};

double LogSumExp(const std::vector<float>& logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - most);
  return most + std::log(sum);
}

// Returns the token that sampling chooses from `logits`.
int32_t Choose(const std::vector<float>& logits, const SamplingParams& params, int64_t index) {
  const int32_t slot = 0;
  int32_t last_token = 0;
  int32_t token = -1;
  SampleOnHost({.logits = logits.data(),
                .logits_stride = kVocab,
                .num_rows = 1,
                .vocab_size = kVocab,
                .slots = {.params = &params,
                          .last_token = &last_token,
                          .sample_index = &index,
                          .num_slots = 1},
                .sample_slot = &slot,
                .out = &token});
  return token;
}

}  // namespace

EngineTraffic::EngineTraffic(const EngineTrafficOptions& options)
    : options_(options), rng_(options.seed * 7919 + 1) {
  model_options_ = RandomModel(options.device);
  if (HasHeads()) model_options_.hidden = LayeredModelOptions::Hidden::kPosition;
  model_ = std::make_unique<LayeredModel>(model_options_);
  auto engine = CreateEngine(model_.get(), RandomEngine());
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (engine.ok()) engine_ = *std::move(engine);
  for (int i = 0; i < 3; ++i) prefixes_.push_back(RandomTokens(Uniform(4, 20)));
}

std::vector<int32_t> EngineTraffic::RandomTokens(int count) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(Uniform(0, kVocab - 1));
  return tokens;
}

LayeredModelOptions EngineTraffic::RandomModel(c10::Device device) {
  LayeredModelOptions model = {
      .vocab_size = kVocab, .max_position = 128, .device = device, .seed = options_.seed + 1};
  LayerSpec window = Full();
  window.params.window_left = Uniform(3, 12);
  LayerSpec chunked = Full();
  chunked.chunk_size = Uniform(4, 12);
  LayerSpec latent = {
      .params = {.num_q_heads = 4, .num_kv_heads = 1, .head_dim_qk = 32, .head_dim_v = 16}};
  latent.v_in_k = true;
  switch (Uniform(0, 4)) {
    case 0:
      model.layers = {Full(), Full()};
      break;
    case 1:
      model.layers = {window, Full()};
      break;
    case 2:
      model.layers = {window, Full(), chunked};
      break;
    case 3:
      model.layers = {latent, latent};
      break;
    default: {
      LayerSpec encoder = Full();
      encoder.kind = AttentionKind::kEncoder;
      LayerSpec cross = Full();
      cross.kind = AttentionKind::kEncoderDecoder;
      model.layers = {encoder, Full(), cross};
      model.max_encoder_position = kMaxEncoderTokens;
      has_encoder_ = true;
    }
  }
  return model;
}

void EngineTraffic::AddDrafts(ModelRunnerOptions& runner) {
  std::mt19937 rng(
      options_.seed);  // a separate generator: draws for drafts do not shift the other draws
  if (options_.seed % 3 == 0) return;
  SpeculationOptions& speculation = runner.speculation;
  speculation.max_drafts = 1 + static_cast<int>(rng() % 6);
  speculation.proposer = NgramProposer{};
  runner.max_num_tokens =
      std::max(runner.max_num_tokens, runner.max_num_seqs * (1 + speculation.max_drafts));
  if (HasHeads()) {
    draft_heads_ = std::make_unique<TrafficHeads>(model_->spec().hidden_dim, HasAttendingHeads(),
                                                  options_.seed, options_.device);
    speculation.proposer = HeadsProposer{*draft_heads_};
  }
  if (options_.seed % 3 == 1 || has_encoder_) return;
  // The model itself, whose drafts are right, or a model that shares only its embeddings and its
  // first layer.
  LayeredModelOptions draft = model_options_;
  if (rng() % 2 == 0) draft.layers.resize(1);
  draft_model_ = std::make_unique<LayeredModel>(draft);
  speculation.proposer = ModelProposer{*draft_model_};
  const bool has_chunks = absl::c_any_of(
      model_options_.layers, [](const LayerSpec& layer) { return layer.chunk_size.has_value(); });
  if (has_chunks || !model_->spec().within.empty() || rng() % 2 == 0) return;
  const int widths[] = {1 + static_cast<int>(rng() % 3), 1 + static_cast<int>(rng() % 2)};
  speculation.shape = DraftShape::kTree;
  speculation.tree = *TreeOfWidths(widths, 2 + static_cast<int>(rng() % 2));
  speculation.max_drafts = static_cast<int>(speculation.tree.size());
  runner.max_num_tokens =
      std::max(runner.max_num_tokens, runner.max_num_seqs * (1 + speculation.max_drafts));
}

ModelEngineOptions EngineTraffic::RandomEngine() {
  max_seq_len_ = Uniform(40, 64);
  ModelEngineOptions options;
  ModelRunnerOptions& runner = options.runner;
  runner.max_num_seqs = Uniform(1, 8);
  runner.max_num_tokens = runner.max_num_seqs + Uniform(2, 24);
  runner.max_seq_len = max_seq_len_;
  runner.cache.block_size = Uniform(1, 6);
  AddDrafts(runner);
  // The cache holds few sequences of the maximum length, which causes preemptions with many seeds.
  const int num_groups =
      static_cast<int>(model_->spec().layers.size() +
                       (draft_model_ == nullptr ? 0 : draft_model_->spec().layers.size()) +
                       (draft_heads_ == nullptr ? 0 : draft_heads_->layers().size()));
  const int blocks_per_seq = num_groups * (max_seq_len_ / runner.cache.block_size + 2);
  runner.cache.size = NumBlocks{1 + blocks_per_seq + Uniform(0, blocks_per_seq)};
  runner.max_steps_in_flight = Uniform(1, 3);
  runner.graphs.mode = Chance(20)   ? GraphSetOptions::Mode::kOff
                       : Chance(50) ? GraphSetOptions::Mode::kLazy
                                    : GraphSetOptions::Mode::kEager;
  if (Chance(50)) runner.graphs.mixed = MixedGraphs::kOn;
  if (Chance(50)) {
    runner.cache.swap = runner.cache.size;
    options.scheduler.preemption = Chance(50) ? PreemptionMode::kSwap : PreemptionMode::kAuto;
  }
  has_stages_ = Chance(50);
  if (has_stages_) {
    runner.logits = {
        .penalties = true, .max_biases = 4, .allowed_tokens = true, .max_log_probs = 3};
  }
  if (Chance(30)) runner.device.batch_invariance = BatchInvariance::kOn;
  options.scheduler.prefill_chunk = Chance(50) ? Uniform(1, 8) : 0;
  if (Chance(30)) options.scheduler.max_prefill_tokens_while_decoding = Uniform(1, 8);
  if (Chance(20)) options.scheduler.prefix_reuse = PrefixReuse::kOff;
  if (Chance(40)) options.scheduler.partial_hits = PartialHits::kCopied;
  // Which steps have drafts depends on the clock (SpeculationPolicy::measures_steps).
  options.clock = [now = absl::UnixEpoch()]() mutable { return now += absl::Microseconds(20); };
  return options;
}

Request EngineTraffic::RandomRequest() {
  Request request = {.max_new_tokens = Uniform(1, 20)};
  if (Chance(50)) request.prompt = prefixes_[Uniform(0, 2)];
  for (const int32_t token : RandomTokens(Uniform(1, 16))) request.prompt.push_back(token);
  if (has_encoder_) request.encoder_tokens = RandomTokens(Uniform(1, kMaxEncoderTokens));
  request.sampling.seed = static_cast<uint64_t>(Uniform(0, 1 << 30));
  if (Chance(60)) {
    request.sampling.temperature = Chance(50) ? 1.0f : 0.6f;
    if (Chance(40)) request.sampling.top_k = Uniform(1, 12);
    if (Chance(40)) request.sampling.top_p = 0.8f;
    if (Chance(20)) request.sampling.min_p = 0.05f;
    request.num_sequences = Uniform(1, ModelRunnerOf(*engine_).shape().max_num_seqs);
  }
  request.priority = Uniform(0, 2);
  if (has_stages_ && Chance(60)) {
    if (Chance(50)) request.sampling.repetition_penalty = 1.3f;
    if (Chance(50)) request.sampling.presence_penalty = 0.4f;
    if (Chance(50)) request.sampling.frequency_penalty = 0.3f;
    if (Chance(50)) {
      request.sampling.biases = {{.token = 3, .bias = 1.0f}, {.token = 17, .bias = -2.0f}};
    }
    if (Chance(40)) request.new_token_masker = [] { return std::make_unique<TestMasker>(); };
    if (Chance(50)) request.num_log_probs = Uniform(0, 3);
  }
  if (Chance(20)) request.prefix_salt = "tenant";
  if (Chance(15)) request.stop_tokens = RandomTokens(3);
  return request;
}

void EngineTraffic::Step() {
  std::vector<TokenEvent> events;
  const absl::Status status = engine_->Step(events);
  ASSERT_TRUE(status.ok()) << status;
  engine_->scheduler().CheckInvariants();
  for (const TokenEvent& event : events) {
    ASSERT_TRUE(event.error.ok()) << event.error;
    Text& text = texts_[{event.sequence, event.sample}];
    ASSERT_EQ(text.finish, FinishReason::kNone) << "an event after the last event";
    if (event.token.has_value()) text.tokens.push_back(*event.token);
    if (event.log_probs.has_value()) text.log_probs.push_back(*event.log_probs);
    text.finish = event.finish;
  }
}

int32_t EngineTraffic::Expected(const Request& request, int sample, std::vector<float> logits,
                                absl::Span<const int32_t> generated) const {
  const SamplingOptions& options = request.sampling;
  for (int32_t token = 0; token < kVocab; ++token) {
    float& logit = logits[token];
    const auto count = std::count(generated.begin(), generated.end(), token);
    if (count + std::count(request.prompt.begin(), request.prompt.end(), token) > 0) {
      logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    }
    logit -= options.frequency_penalty * static_cast<float>(count);
    if (count > 0) logit -= options.presence_penalty;
    for (const LogitBias& bias : options.biases) {
      if (bias.token == token) logit += bias.bias;
    }
    if (request.new_token_masker && !IsAllowed(generated.empty() ? -1 : generated.back(), token)) {
      logit = -std::numeric_limits<float>::infinity();
    }
  }
  return Choose(logits, ToSamplingParams(options, *options.seed + static_cast<uint64_t>(sample)),
                static_cast<int64_t>(generated.size()));
}

void EngineTraffic::Run() {
  if (engine_ == nullptr) return;
  int num_added = 0;
  while ((num_added < options_.num_requests || engine_->has_work()) &&
         !testing::Test::HasFatalFailure()) {
    while (num_added < options_.num_requests && Chance(30)) {
      Request request = RandomRequest();
      const auto id = engine_->Add(request);
      ASSERT_TRUE(id.ok()) << id.status();
      requests_[*id] = std::move(request);
      ++num_added;
    }
    if (Chance(3) && !requests_.empty()) {
      auto victim =
          std::next(requests_.begin(), Uniform(0, static_cast<int>(requests_.size()) - 1));
      std::vector<TokenEvent> events;
      engine_->Cancel(victim->first, events).IgnoreError();  // it may have finished
      for (const TokenEvent& event : events) {
        Text& text = texts_[{event.sequence, event.sample}];
        ASSERT_EQ(text.finish, FinishReason::kNone);
        text.finish = event.finish;
      }
    }
    if (engine_->has_work()) Step();
  }
  for (const auto& [id, request] : requests_) {
    for (int sample = 0; sample < request.num_sequences; ++sample) {
      SCOPED_TRACE("request " + std::to_string(id.value()) + ", sample " + std::to_string(sample));
      CheckText(request, sample, texts_[{id, sample}]);
    }
  }
  EXPECT_EQ(engine_->metrics().num_blocks_used, 0);
  EXPECT_EQ(engine_->metrics().num_swap_blocks_used, 0);
  EXPECT_EQ(engine_->scheduler().num_running(), 0);
  EXPECT_EQ(engine_->scheduler().num_waiting(), 0);
}

void EngineTraffic::CheckText(const Request& request, int sample, const Text& text) {
  ASSERT_NE(text.finish, FinishReason::kNone) << "has not ended";
  if (text.finish != FinishReason::kCancelled) {
    const bool is_stopped = text.finish == FinishReason::kStop;
    ASSERT_FALSE(text.tokens.empty());
    if (!is_stopped && text.finish == FinishReason::kLength) {
      EXPECT_EQ(static_cast<int>(text.tokens.size()),
                std::min(request.max_new_tokens,
                         max_seq_len_ + 1 - static_cast<int>(request.prompt.size())));
    }
    EXPECT_EQ(
        std::count(request.stop_tokens.begin(), request.stop_tokens.end(), text.tokens.back()) > 0,
        is_stopped);
  }
  if (text.tokens.empty()) return;
  std::vector<int32_t> all = request.prompt;
  all.insert(all.end(), text.tokens.begin(), text.tokens.end() - 1);
  const at::Tensor dense = model_->DenseLogits(all, request.encoder_tokens).to(at::kFloat);
  ASSERT_EQ(text.log_probs.size(), request.num_log_probs < 0 ? 0 : text.tokens.size());
  for (size_t i = 0; i < text.tokens.size(); ++i) {
    const float* row =
        dense[static_cast<int64_t>(request.prompt.size() + i) - 1].const_data_ptr<float>();
    const std::vector<float> logits(row, row + kVocab);
    const auto generated = absl::MakeConstSpan(text.tokens).first(i);
    ++num_tokens_;
    if (!text.log_probs.empty()) {
      ASSERT_EQ(text.log_probs[i].token, text.tokens[i]);
      ASSERT_EQ(static_cast<int>(text.log_probs[i].top.size()), request.num_log_probs);
      ASSERT_NEAR(text.log_probs[i].log_prob, logits[text.tokens[i]] - LogSumExp(logits),
                  2 * kRounding);
    }
    if (Expected(request, sample, logits, generated) == text.tokens[i]) continue;
    // A different token is an error unless rounding of the logits can lead to it.
    bool is_near = false;
    for (int trial = 0; trial < 64 && !is_near; ++trial) {
      std::vector<float> rounded = logits;
      for (float& logit : rounded) {
        logit += std::uniform_real_distribution<float>(-kRounding, kRounding)(rng_);
      }
      is_near = Expected(request, sample, rounded, generated) == text.tokens[i];
    }
    ASSERT_TRUE(is_near) << "token " << i << ": expected "
                         << Expected(request, sample, logits, generated) << ", got "
                         << text.tokens[i];
    ++num_near_ties_;
  }
}

int64_t EngineTraffic::num_preemptions() const { return engine_->scheduler().num_preemptions(); }

int64_t EngineTraffic::num_swaps() const {
  return engine_->scheduler().swap_statistics().num_swap_outs;
}

int64_t EngineTraffic::num_replays() const {
  return ModelRunnerOf(*engine_).graph_report().num_replays();
}

}  // namespace reprise
