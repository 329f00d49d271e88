// Penalties, biases, masks and log-probabilities of requests, through an engine over a model.
// Compares with their definitions on dense logits.

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/async_engine.h"
#include "reprise/engine/create_engine.h"
#include "reprise/runner/sampling/logits_stage.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kVocab = 61;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Allows every third token; the first allowed token changes with each token. Complete after
// `num_tokens`.
class Thirds : public TokenMasker {
 public:
  explicit Thirds(int num_tokens) : num_left_(num_tokens) {}
  void Fill(absl::Span<int32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    for (int token = 0; token < kVocab; ++token) {
      if (Allows(token)) mask[token / 32] |= static_cast<int32_t>(1u << (token % 32));
    }
  }
  bool Accept(int32_t token) override {
    EXPECT_TRUE(Allows(token));
    ++phase_;
    return --num_left_ > 0;
  }
  bool Allows(int32_t token) const { return (token + phase_) % 3 == 0; }

 private:
  int num_left_;
  int phase_ = 0;
};

std::vector<float> ToVector(const at::Tensor& logits) {
  const at::Tensor row = logits.to(at::kFloat).contiguous();
  return {row.const_data_ptr<float>(), row.const_data_ptr<float>() + row.numel()};
}

// The generated tokens of a sequence, and their log-probabilities.
struct Text {
  std::vector<int32_t> tokens = {};
  FinishReason finish = FinishReason::kNone;
  std::vector<TokenLogProbs> log_probs = {};
  std::vector<TokenLogProbs> prompt_log_probs = {};
};

TokenLogProbs DenseLogProbs(const ToyModel& model, absl::Span<const int32_t> text, int32_t token,
                            int num_top) {
  const std::vector<float> logits =
      ToVector(model.DenseLogits(text).to(at::kDouble).log_softmax(0));
  std::vector<int32_t> order(kVocab);
  for (int i = 0; i < kVocab; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  TokenLogProbs result = {.token = token, .log_prob = logits[token]};
  result.rank =
      1 + static_cast<int32_t>(std::find(order.begin(), order.end(), token) - order.begin());
  for (int i = 0; i < num_top; ++i) {
    result.top.push_back({.token = order[i], .log_prob = logits[order[i]]});
  }
  return result;
}

// Computes the output of a greedy request by the definitions of logits_params.h.
Text DenseText(const ToyModel& model, const Request& request) {
  const SamplingOptions& sampling = request.sampling;
  Text expected;
  std::vector<int32_t> text = request.prompt;
  for (size_t i = 1; request.num_prompt_log_probs >= 0 && i < text.size(); ++i) {
    expected.prompt_log_probs.push_back(DenseLogProbs(model, absl::MakeConstSpan(text).first(i),
                                                      text[i], request.num_prompt_log_probs));
  }
  std::unique_ptr<TokenMasker> masker;
  if (request.new_token_masker) masker = request.new_token_masker();
  const size_t most =
      request.forced_tokens.empty() ? request.max_new_tokens : request.forced_tokens.size();
  std::map<int32_t, int> counts;  // occurrences in the output
  while (expected.tokens.size() < most) {
    std::vector<float> logits = ToVector(model.DenseLogits(text));
    for (int32_t token = 0; token < kVocab; ++token) {
      float& x = logits[token];
      if (std::count(text.begin(), text.end(), token) > 0) {
        x = x > 0 ? x / sampling.repetition_penalty : x * sampling.repetition_penalty;
      }
      if (counts[token] > 0) {
        x -= sampling.frequency_penalty * static_cast<float>(counts[token]) +
             sampling.presence_penalty;
      }
      for (const LogitBias& bias : sampling.biases) {
        if (bias.token == token) x += bias.bias;
      }
      if (masker != nullptr && !static_cast<Thirds&>(*masker).Allows(token)) x = -kInfinity;
    }
    const auto chosen =
        static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const int32_t token =
        request.forced_tokens.empty() ? chosen : request.forced_tokens[expected.tokens.size()];
    if (request.num_log_probs >= 0) {
      expected.log_probs.push_back(DenseLogProbs(model, text, token, request.num_log_probs));
    }
    expected.tokens.push_back(token);
    text.push_back(token);
    ++counts[token];
    if (masker != nullptr && !masker->Accept(token)) {
      expected.finish = FinishReason::kStop;
      return expected;
    }
  }
  expected.finish = FinishReason::kLength;
  return expected;
}

void ExpectNear(const std::vector<TokenLogProbs>& got, const std::vector<TokenLogProbs>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "entry " << i);
    EXPECT_EQ(got[i].token, expected[i].token);
    EXPECT_EQ(got[i].rank, expected[i].rank);
    EXPECT_NEAR(got[i].log_prob, expected[i].log_prob, 1e-4);
    ASSERT_EQ(got[i].top.size(), expected[i].top.size());
    for (size_t k = 0; k < got[i].top.size(); ++k) {
      EXPECT_EQ(got[i].top[k].token, expected[i].top[k].token);
      EXPECT_NEAR(got[i].top[k].log_prob, expected[i].top[k].log_prob, 1e-4);
    }
  }
}

std::map<int64_t, Text> RunAll(Engine& engine) {
  std::map<int64_t, Text> texts;
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    const absl::Status status = engine.Step(events);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) break;
    for (const TokenEvent& event : events) {
      EXPECT_TRUE(event.error.ok()) << event.error;
      Text& text = texts[event.sequence.value()];
      if (event.token.has_value()) text.tokens.push_back(*event.token);
      if (event.log_probs.has_value()) text.log_probs.push_back(*event.log_probs);
      if (event.prompt_log_probs != nullptr) text.prompt_log_probs = *event.prompt_log_probs;
      text.finish = event.finish;
    }
    engine.scheduler().CheckInvariants();
  }
  return texts;
}

std::vector<int32_t> Tokens(int num_tokens, int seed) {
  std::vector<int32_t> tokens(num_tokens);
  for (int i = 0; i < num_tokens; ++i) tokens[i] = (i * i * 7 + i * 3 + seed) % kVocab;
  return tokens;
}

const LogitsOptions kLogits = {
    .penalties = true, .max_biases = 4, .allowed_tokens = true, .max_log_probs = 5};

struct Case {
  int max_num_seqs;
  int num_blocks;
  int prefill_chunk;
  int max_steps_in_flight;
  int max_earlier_logits;
};

LogitsOptions LogitsOf(const Case& c) {
  LogitsOptions logits = kLogits;
  logits.max_earlier_logits = c.max_earlier_logits;
  return logits;
}

class EngineLogitsTest : public testing::TestWithParam<Case> {};

TEST_P(EngineLogitsTest, OutputsMatchDenseLogits) {
  const Case& c = GetParam();
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto engine =
      CreateEngine(&model, {.runner = {.max_num_seqs = c.max_num_seqs,
                                       .max_num_tokens = 32,
                                       .max_steps_in_flight = c.max_steps_in_flight,
                                       .cache = {.block_size = 4, .size = NumBlocks{c.num_blocks}},
                                       .logits = LogitsOf(c)},
                            .scheduler = {.prefill_chunk = c.prefill_chunk}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<int32_t> prompt = Tokens(9, 2);
  const int32_t likeliest =
      static_cast<int32_t>(model.DenseLogits(prompt).argmax().item<int64_t>());
  const auto new_masker = [] { return std::make_unique<Thirds>(7); };
  const std::vector<Request> requests = {
      {.prompt = prompt, .max_new_tokens = 12},
      {.prompt = prompt,
       .max_new_tokens = 14,
       .sampling = {.repetition_penalty = 1.6f, .frequency_penalty = 0.3f}},
      {.prompt = Tokens(3, 9), .max_new_tokens = 14, .sampling = {.presence_penalty = 1.5f}},
      {.prompt = prompt,
       .max_new_tokens = 6,
       .sampling = {.biases = {{.token = likeliest, .bias = -kInfinity}, {.token = 5, .bias = 2}}},
       .num_log_probs = 2},
      {.prompt = Tokens(5, 11), .max_new_tokens = 20, .new_token_masker = new_masker},
      {.prompt = prompt, .max_new_tokens = 4, .num_log_probs = 5, .num_prompt_log_probs = 1},
      {.prompt = Tokens(20, 4), .max_new_tokens = 0, .num_prompt_log_probs = 5},
      {.prompt = Tokens(6, 1), .num_log_probs = 1, .forced_tokens = Tokens(9, 30)},
  };
  std::vector<int64_t> ids;
  for (const Request& request : requests) {
    const auto id = (*engine)->Add(request);
    ASSERT_TRUE(id.ok()) << id.status();
    ids.push_back(id->value());
  }
  const std::map<int64_t, Text> texts = RunAll(**engine);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i);
    const Text& got = texts.at(ids[i]);
    const Text expected = DenseText(model, requests[i]);
    EXPECT_EQ(got.tokens, expected.tokens);
    EXPECT_EQ(got.finish, expected.finish);
    ExpectNear(got.log_probs, expected.log_probs);
    ExpectNear(got.prompt_log_probs, expected.prompt_log_probs);
  }
  EXPECT_EQ((*engine)->scheduler().num_preemptions() > 0, c.num_blocks < 20);
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineLogitsTest,
                         testing::Values(Case{8, 80, 0, 1, 0}, Case{8, 80, 0, 3, 16},
                                         Case{8, 13, 5, 2, 3},  // preempts
                                         Case{2, 80, 7, 2, 32}));

TEST(EngineScoresTest, ScoresInChunksMatchScoresTokenByToken) {
  ToyModel model({.vocab_size = kVocab, .max_position = 512});
  std::vector<std::vector<TokenLogProbs>> scores;
  for (const int max_earlier_logits : {127, 0}) {
    auto engine = CreateEngine(
        &model,
        {.runner = {.max_num_seqs = 2,
                    .max_num_tokens = 128,
                    .max_steps_in_flight = 2,
                    .logits = {.max_log_probs = 0, .max_earlier_logits = max_earlier_logits}}});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const auto id =
        (*engine)->Add({.prompt = Tokens(400, 3), .max_new_tokens = 0, .num_prompt_log_probs = 0});
    ASSERT_TRUE(id.ok()) << id.status();
    scores.push_back(RunAll(**engine).at(id->value()).prompt_log_probs);
    EXPECT_EQ((*engine)->metrics().num_steps, max_earlier_logits == 0 ? 400 : 4);
    EXPECT_EQ((*engine)->metrics().num_generated_tokens, 0);
  }
  ASSERT_THAT(scores[0], SizeIs(399));
  ExpectNear(scores[0], scores[1]);
}

TEST(EngineScoresTest, EventsOfForcedTokensReferToTheirLogits) {
  ToyModel model({.vocab_size = kVocab, .max_position = 64});
  auto created = CreateEngine(
      &model,
      {.runner = {.max_num_seqs = 2,
                  .max_num_tokens = 16,
                  .max_steps_in_flight = 2,
                  .logits = {.step_logits = StepLogits::kOfEvery, .max_earlier_logits = 16}}});
  ASSERT_TRUE(created.ok()) << created.status();
  Engine& engine = **created;
  std::map<int64_t, std::vector<int32_t>> texts;
  for (int i = 0; i < 2; ++i) {
    const std::vector<int32_t> prompt = Tokens(3 + i, i);
    const auto id = engine.Add({.prompt = prompt, .forced_tokens = Tokens(12, 40 + i)});
    ASSERT_TRUE(id.ok()) << id.status();
    texts[id->value()] = prompt;
  }
  std::vector<TokenEvent> events;
  while (engine.has_work()) {
    events.clear();
    ASSERT_TRUE(engine.Step(events).ok());
    for (const TokenEvent& event : events) {
      std::vector<int32_t>& text = texts[event.sequence.value()];
      const at::Tensor error = (*LogitsOf(engine, event) - model.DenseLogits(text)).abs().max();
      EXPECT_LT(error.item<float>(), 1e-4f);
      text.push_back(*event.token);
    }
  }
  EXPECT_LT(engine.metrics().num_steps, 8);
}

TEST(EngineScoresTest, RejectsUnsupportedLogitsRequests) {
  ToyModel model({.vocab_size = kVocab});
  auto plain = CreateEngine(&model, {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  auto rich = CreateEngine(&model, {.runner = {.logits = kLogits}});
  ASSERT_TRUE(rich.ok()) << rich.status();
  const auto refusal = [](Engine& engine, const Request& request) {
    const absl::Status status = engine.Add(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(engine.has_work());
    return std::string(status.message());
  };
  const auto masker = [] { return std::make_unique<Thirds>(1); };
  EXPECT_THAT(refusal(**plain, {.prompt = {1}, .sampling = {.presence_penalty = 1}}),
              HasSubstr("penalties"));
  EXPECT_THAT(refusal(**plain, {.prompt = {1}, .sampling = {.biases = {{1, 1}}}}),
              HasSubstr("biases"));
  EXPECT_THAT(refusal(**plain, {.prompt = {1}, .logits_stages = 1}), HasSubstr("stages"));
  EXPECT_THAT(refusal(**plain, {.prompt = {1}, .num_log_probs = 0}), HasSubstr("num_log_probs"));
  EXPECT_THAT(refusal(**plain, {.prompt = {1}, .new_token_masker = masker}),
              HasSubstr("new_token_masker"));
  EXPECT_EQ(refusal(**rich, {.prompt = {1}, .num_log_probs = 6}),
            "num_log_probs: expected -1 to 5, got 6");
  EXPECT_EQ(refusal(**rich, {.prompt = {1}, .num_prompt_log_probs = 6}),
            "of the prompt: num_log_probs: expected -1 to 5, got 6");
  EXPECT_THAT(refusal(**rich, {.prompt = {1}, .sampling = {.biases = {{1, 1}, {1, 2}}}}),
              HasSubstr("distinct"));
  EXPECT_THAT(refusal(**rich, {.prompt = {1}, .sampling = {.repetition_penalty = -1}}),
              HasSubstr("repetition_penalty"));
}

TEST(AsyncLogitsTest, AListenerReadsTheLogitsOfItsEvent) {
  ToyModel model({.vocab_size = kVocab});
  auto engine = CreateEngine(&model, {.runner = {.max_num_seqs = 2,
                                                 .max_num_tokens = 16,
                                                 .max_steps_in_flight = 2,
                                                 .logits = {.step_logits = StepLogits::kOfEvery}}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  AsyncEngine async(*std::move(engine));
  std::vector<int32_t> tokens, likeliest;
  const auto listener = [&](const TokenEvent& event) {
    const absl::Status inspected = async.Inspect([&](const Engine& inner) {
      const auto logits = LogitsOf(inner, event);
      ASSERT_TRUE(logits.ok()) << logits.status();
      likeliest.push_back(static_cast<int32_t>(logits->argmax().item<int64_t>()));
    });
    EXPECT_EQ(inspected, absl::OkStatus());
    tokens.push_back(*event.token);
  };
  ASSERT_TRUE(async.Add({.prompt = {1, 2, 3}, .max_new_tokens = 12}, listener).ok());
  ASSERT_TRUE(async.Drain().ok());
  EXPECT_THAT(tokens, SizeIs(12));
  EXPECT_EQ(likeliest, tokens);
}

}  // namespace
}  // namespace reprise
