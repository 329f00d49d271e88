// Logits requests: parameters in the joins of sequences, masks, and log-probabilities of sampled
// tokens, forced tokens and prompts.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_masker.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<int32_t> Tokens(int num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  for (int i = 0; i < num_tokens; ++i) tokens[i] = i * 7 % kPuppetVocab;
  return tokens;
}

// A scheduler whose batches run on a PuppetDevice, one Step() at a time.
class SchedulerLogitsTest : public testing::Test {
 protected:
  SchedulerLogitsTest() {
    options_ = {.shape = {.max_num_seqs = 3,
                          .max_num_tokens = 16,
                          .max_seq_len = 64,
                          .num_blocks = 60,
                          .block_size = 4,
                          .mask_words = static_cast<int>(MaskWords(kPuppetVocab))}};
  }

  void Start() {
    auto scheduler = Scheduler::Create(options_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    device_.emplace(options_);
  }

  SequenceId Add(const Request& request) {
    const auto id = scheduler_->Add(request);
    EXPECT_TRUE(id.ok()) << id.status();
    requests_.push_back(request);
    texts_.emplace_back(request.num_sequences);
    return *id;
  }

  std::string Refusal(const Request& request) {
    const absl::Status status = scheduler_->Add(request).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  // Schedules and launches the next batch.
  const ScheduledBatch& Launch(const PuppetDevice::Fate& fate = {}) {
    const ScheduledBatch& batch = scheduler_->Schedule();
    if (!batch.rows.empty()) device_->Launch(batch, fate);
    scheduler_->CheckInvariants();
    return batch;
  }

  std::vector<TokenEvent> Await() {
    EXPECT_TRUE(device_->Await().ok());
    std::vector<TokenEvent> events;
    scheduler_->Commit(device_->output(), events);
    scheduler_->CheckInvariants();
    for (const TokenEvent& event : events) {
      texts_[event.sequence.value()][event.sample].Add(event);
    }
    return events;
  }

  // Runs all requests to the end. Returns the number of steps.
  int RunAll() {
    int num_steps = 0;
    while (scheduler_->has_work() && num_steps < 1000) {
      const bool launched = scheduler_->can_schedule() && !Launch().rows.empty();
      num_steps += launched;
      if (launched && scheduler_->can_schedule()) continue;
      Await();
    }
    EXPECT_FALSE(scheduler_->has_work());
    return num_steps;
  }

  void ExpectWhole() const {
    for (size_t i = 0; i < requests_.size(); ++i) {
      for (int sample = 0; sample < requests_[i].num_sequences; ++sample) {
        SCOPED_TRACE(testing::Message() << "request " << i << ", sample " << sample);
        const PuppetText expected =
            ExpectedText(requests_[i], sample, options_, scheduler_->max_cached_tokens());
        const PuppetText& got = texts_[i][sample];
        EXPECT_EQ(got.tokens, expected.tokens);
        EXPECT_EQ(got.finish, expected.finish);
        EXPECT_EQ(got.log_probs, expected.log_probs);
        EXPECT_EQ(got.prompt_log_probs, expected.prompt_log_probs);
      }
    }
  }

  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<PuppetDevice> device_;
  std::vector<Request> requests_;
  std::vector<std::vector<PuppetText>> texts_;  // by request and sample
};

// ---- Parameters.

TEST_F(SchedulerLogitsTest, SequencesJoinWithTheirLogitsRequests) {
  Start();
  Add({.prompt = {1, 2}, .max_new_tokens = 2});
  Add({.prompt = {3, 4},
       .max_new_tokens = 2,
       .sampling = {.repetition_penalty = 1.5f, .biases = {{.token = 9, .bias = -1.0f}}},
       .logits_stages = 2,
       .num_log_probs = 1,
       .num_prompt_log_probs = 4});
  const ScheduledBatch& batch = Launch();
  ASSERT_THAT(batch.joins, SizeIs(2));
  ASSERT_THAT(batch.logits_requests, SizeIs(1));  // the first sequence has no logits request
  const LogitsRequest& request = batch.logits_requests[0];
  EXPECT_EQ(request.slot, batch.joins[1].slot);
  EXPECT_EQ(request.params, (LogitsParams{.repetition_penalty = 1.5f,
                                          .num_biases = 1,
                                          .num_log_probs = 1,
                                          .num_known_log_probs = 4}));
  EXPECT_THAT(request.biases, ElementsAre(LogitBias{.token = 9, .bias = -1.0f}));
  EXPECT_THAT(request.prompt, ElementsAre(3, 4));
  EXPECT_THAT(request.output, IsEmpty());
  EXPECT_EQ(request.stages, 2u);
  Await();
  EXPECT_THAT(Launch().logits_requests, IsEmpty());
  Await();
  RunAll();
  ExpectWhole();
}

TEST_F(SchedulerLogitsTest, PreemptedSequenceRejoinsWithItsGeneratedTokens) {
  options_.shape.max_num_seqs = 2;
  options_.shape.num_blocks = 7;
  Start();
  for (const int first : {1, 2}) {
    Add({.prompt = {first, 3, 4, 5, 6},
         .max_new_tokens = 12,
         .sampling = {.presence_penalty = 0.5f}});
  }
  int num_with_output = 0;
  for (int step = 0; scheduler_->has_work(); ++step) {
    ASSERT_LT(step, 1000);
    for (const LogitsRequest& request : Launch().logits_requests) {
      EXPECT_THAT(request.prompt, SizeIs(5));
      num_with_output += !request.output.empty();
    }
    Await();
  }
  EXPECT_GT(scheduler_->num_preemptions(), 0);
  EXPECT_EQ(num_with_output, scheduler_->num_preemptions());
  ExpectWhole();  // the tokens of the PuppetDevice depend on the counts
}

// ---- Masks.

TEST_F(SchedulerLogitsTest, ASequenceWithAMaskerTakesPartInEveryNthStepOfN) {
  for (int num_in_flight = 1; num_in_flight <= 3; ++num_in_flight) {
    options_.shape.max_steps_in_flight = num_in_flight;
    Start();
    requests_.clear();
    texts_.clear();
    Add({.prompt = {1, 2}, .max_new_tokens = 30});
    Add({.prompt = {3}, .max_new_tokens = 8, .new_token_masker = PuppetMasker::Factory(5, 99)});
    // The other sequence has a row in every step.
    EXPECT_EQ(RunAll(), 30);
    ExpectWhole();
  }
}

TEST_F(SchedulerLogitsTest, OnlySamplingRowsHaveMasks) {
  options_.shape.max_steps_in_flight = 2;
  options_.policy.prefill_chunk = 2;
  Start();
  Add({.prompt = {1, 2, 3},
       .max_new_tokens = 4,
       .num_sequences = 2,
       .new_token_masker = PuppetMasker::Factory(6, 99)});
  EXPECT_THAT(Launch().rows[0].allowed_tokens, IsEmpty());  // the first chunk
  const ScheduledBatch& second = Launch();
  ASSERT_THAT(second.rows, SizeIs(1));
  std::vector<int32_t> mask(options_.shape.mask_words);
  PuppetMasker(6, 99).Fill(absl::MakeSpan(mask));
  EXPECT_EQ(second.rows[0].allowed_tokens, absl::MakeConstSpan(mask));
  const SlotId first_slot = second.rows[0].slot;
  Await();
  // The first sequence has no row until its token in flight is known.
  const ScheduledBatch& third = Launch();
  ASSERT_THAT(third.rows, SizeIs(1));  // a row of the forked sequence
  EXPECT_NE(third.rows[0].slot, first_slot);
  Await();
  RunAll();
  ExpectWhole();
}

TEST_F(SchedulerLogitsTest, MaskerEndsItsSequence) {
  Start();
  Add({.prompt = {1}, .max_new_tokens = 50, .new_token_masker = PuppetMasker::Factory(7, 5)});
  RunAll();
  ExpectWhole();
  EXPECT_THAT(texts_[0][0].tokens, SizeIs(5));
  EXPECT_EQ(texts_[0][0].finish, FinishReason::kStop);
}

// A masker that allows no token.
class Censor : public TokenMasker {
 public:
  void Fill(absl::Span<int32_t> mask) override { std::fill(mask.begin(), mask.end(), 0); }
  bool Accept(int32_t) override { return true; }
};

TEST_F(SchedulerLogitsTest, EmptyMaskFailsOnlyItsSequence) {
  Start();
  Add({.prompt = {1}, .max_new_tokens = 5, .new_token_masker = [] {
         return std::make_unique<Censor>();
       }});
  Add({.prompt = {2}, .max_new_tokens = 5, .new_token_masker = [] { return nullptr; }});
  RunAll();
  EXPECT_EQ(texts_[0][0].finish, FinishReason::kError);
  EXPECT_THAT(texts_[1][0].tokens, SizeIs(5));
}

TEST_F(SchedulerLogitsTest, RejectsMaskersIfTheRunnerHasNoMasks) {
  options_.shape.mask_words = 0;
  Start();
  EXPECT_THAT(Refusal({.prompt = {1}, .new_token_masker = PuppetMasker::Factory(1, 1)}),
              HasSubstr("new_token_masker"));
  EXPECT_FALSE(scheduler_->has_work());
}

// ---- Log-probabilities.

TEST_F(SchedulerLogitsTest, EventsHaveTheRequestedNumberOfLogProbs) {
  options_.shape.max_earlier_logits = 1;
  Start();
  Add({.prompt = {1, 2}, .max_new_tokens = 2});
  Add({.prompt = {1, 3}, .max_new_tokens = 2, .num_log_probs = 0});
  Add({.prompt = {1, 4}, .max_new_tokens = 2, .num_log_probs = 2, .num_prompt_log_probs = 5});
  Launch();
  const std::vector<TokenEvent> events = Await();
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_FALSE(events[0].log_probs.has_value());
  ASSERT_TRUE(events[1].log_probs.has_value());
  EXPECT_THAT(events[1].log_probs->top, IsEmpty());
  EXPECT_EQ(events[1].log_probs->token, events[1].token);
  EXPECT_THAT(events[2].log_probs->top, SizeIs(2));
  EXPECT_EQ(events[0].prompt_log_probs, nullptr);
  RunAll();
  ExpectWhole();
}

// ---- Of prompts.

TEST_F(SchedulerLogitsTest, APromptIsScoredInChunksOrTokenByToken) {
  std::vector<PuppetText> texts;
  const std::vector<int32_t> prompt = Tokens(60);
  struct Case {
    int max_earlier_logits;
    int num_steps;
  };
  // Chunks of 15, 16 and 1.
  for (const Case& c : {Case{14, 4}, Case{100, 4}, Case{0, 60}}) {
    options_.shape.max_earlier_logits = c.max_earlier_logits;
    Start();
    requests_.clear();
    texts_.clear();
    Add({.prompt = prompt, .max_new_tokens = 0, .num_prompt_log_probs = 2});
    EXPECT_EQ(RunAll(), c.num_steps);
    ExpectWhole();
    EXPECT_THAT(texts_[0][0].prompt_log_probs, SizeIs(59));
    EXPECT_THAT(texts_[0][0].tokens, IsEmpty());
    EXPECT_EQ(texts_[0][0].finish, FinishReason::kLength);
    texts.push_back(texts_[0][0]);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST_F(SchedulerLogitsTest, ScoredPromptIsComputedAndLaterHitByOtherRequests) {
  options_.shape.max_earlier_logits = 16;
  Start();
  const std::vector<int32_t> prompt = Tokens(13);
  Add({.prompt = prompt, .max_new_tokens = 1});
  RunAll();
  Add({.prompt = prompt, .max_new_tokens = 2, .num_prompt_log_probs = 0});
  const ScheduledBatch& scored = Launch();
  EXPECT_EQ(scored.joins[0].seq_len, 0);  // does not hit the keys of the first request
  EXPECT_EQ(scored.rows[0].logits, RowLogits::kAll);
  EXPECT_EQ(scored.rows[0].output, RowOutput::kToken);
  const std::vector<TokenEvent> events = Await();
  ASSERT_NE(events[0].prompt_log_probs, nullptr);
  EXPECT_THAT(*events[0].prompt_log_probs, SizeIs(12));
  RunAll();
  Add({.prompt = prompt, .max_new_tokens = 2});
  EXPECT_EQ(Launch().joins[0].seq_len, 12);
  Await();
  RunAll();
  ExpectWhole();
}

TEST_F(SchedulerLogitsTest, SequencesOfARequestShareThePromptLogProbs) {
  options_.shape.max_earlier_logits = 3;
  options_.shape.max_steps_in_flight = 2;
  Start();
  Add({.prompt = Tokens(9), .max_new_tokens = 3, .num_prompt_log_probs = 1, .num_sequences = 3});
  Add({.prompt = Tokens(5), .max_new_tokens = 0, .num_prompt_log_probs = 1, .num_sequences = 2});
  RunAll();
  EXPECT_GT(scheduler_->num_forks(), 0);
  ExpectWhole();
}

TEST_F(SchedulerLogitsTest, PreemptedPromptContinuesScoring) {
  options_.shape.max_earlier_logits = 3;
  options_.shape.max_num_seqs = 2;
  options_.shape.num_blocks = 6;
  Start();
  Add({.prompt = {1}, .max_new_tokens = 19});
  for (int i = 0; i < 6; ++i) {  // the sequence holds two blocks
    Launch();
    Await();
  }
  Add({.prompt = Tokens(12), .max_new_tokens = 0, .num_prompt_log_probs = 1});
  RunAll();
  EXPECT_GT(scheduler_->num_preemptions(), 0);
  ExpectWhole();
}

TEST_F(SchedulerLogitsTest, RejectsZeroMaxNewTokensUnlessThePromptIsScored) {
  Start();
  EXPECT_THAT(Refusal({.prompt = {1}, .max_new_tokens = 0}), HasSubstr("max_new_tokens"));
  EXPECT_THAT(Refusal({.prompt = {1}, .max_new_tokens = -1, .num_prompt_log_probs = 0}),
              HasSubstr("max_new_tokens"));
  Add({.prompt = {1}, .max_new_tokens = 0, .num_prompt_log_probs = 0});
  EXPECT_EQ(RunAll(), 1);
  ExpectWhole();
}

// ---- Of forced tokens.

TEST_F(SchedulerLogitsTest, ForcedTokensAreFedInChunksIfEarlierLogitsExist) {
  struct Case {
    int max_earlier_logits;
    int num_log_probs;
    int num_steps;
  };
  // The prompt and 20 - 1 tokens are fed in chunks. Without earlier logits, the tokens after the
  // prompt are fed one per step.
  for (const Case& c :
       {Case{16, -1, 3}, Case{16, 2, 3}, Case{4, 0, 5}, Case{0, -1, 20}, Case{0, 2, 20}}) {
    SCOPED_TRACE(testing::Message() << c.max_earlier_logits << ", " << c.num_log_probs);
    options_.shape.max_earlier_logits = c.max_earlier_logits;
    Start();
    requests_.clear();
    texts_.clear();
    Add({.prompt = {1, 2, 3}, .num_log_probs = c.num_log_probs, .forced_tokens = Tokens(20)});
    EXPECT_EQ(RunAll(), c.num_steps);
    ExpectWhole();
    EXPECT_EQ(texts_[0][0].tokens, Tokens(20));
  }
}

TEST_F(SchedulerLogitsTest, EventsOfAChunkHaveTheIndexOfTheirLogits) {
  options_.shape.max_earlier_logits = 16;
  Start();
  Add({.prompt = Tokens(6),
       .max_new_tokens = 0,
       .num_prompt_log_probs = 0});  // uses 5 earlier logits
  Add({.prompt = {1}, .num_log_probs = 0, .forced_tokens = {4, 5, 6, 7}});
  Launch();
  const std::vector<TokenEvent> events = Await();
  ASSERT_THAT(events, SizeIs(5));
  EXPECT_THAT(*events[0].prompt_log_probs, SizeIs(5));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(events[1 + i].token, 4 + i);
    EXPECT_EQ(events[1 + i].row, 1);
    EXPECT_EQ(events[1 + i].earlier, i < 3 ? 5 + i : -1);  // -1: the last token of the row
  }
  EXPECT_EQ(events[4].finish, FinishReason::kLength);
  ExpectWhole();
}

TEST_F(SchedulerLogitsTest, ScoresAPromptAndItsForcedTokens) {
  for (const int max_earlier_logits : {0, 5, 16}) {
    options_.shape.max_earlier_logits = max_earlier_logits;
    Start();
    requests_.clear();
    texts_.clear();
    Add({.prompt = Tokens(11),
         .num_log_probs = 1,
         .num_prompt_log_probs = 2,
         .forced_tokens = {4, 5, 6, 7, 8, 9}});
    RunAll();
    ExpectWhole();
  }
}

// ---- Broken rows.

TEST_F(SchedulerLogitsTest, CommittedKeysOfABrokenSequenceAreNotHit) {
  options_.policy.prefill_chunk = 4;
  options_.shape.max_earlier_logits = 4;
  Start();
  // The failure appears in a row that samples, or in a row that is scored.
  for (const Request& request :
       {Request{.prompt = Tokens(12), .max_new_tokens = 3},
        Request{.prompt = Tokens(12), .max_new_tokens = 0, .num_prompt_log_probs = 0},
        Request{.prompt = Tokens(8), .num_log_probs = 0, .forced_tokens = {28, 35, 42, 49, 6}}}) {
    const SequenceId id = Add(request);
    for (int chunk = 0; chunk < 2; ++chunk) {
      Launch();
      Await();
    }
    Launch({.nan_rows = {0}});
    const std::vector<TokenEvent> events = Await();
    ASSERT_FALSE(events.empty());
    EXPECT_EQ(events.back().sequence, id);
    EXPECT_EQ(events.back().finish, FinishReason::kError);
    EXPECT_THAT(std::string(events.back().error.message()), HasSubstr("tokens of the sequence"));
    Add({.prompt = Tokens(12), .max_new_tokens = 1});
    EXPECT_EQ(Launch().joins[0].seq_len, 0);
    // The next case must not hit the valid keys of this request.
    std::vector<TokenEvent> ended;
    EXPECT_TRUE(device_->Await().ok());
    scheduler_->CommitFailed(absl::InternalError("next"), ended);
  }
}

}  // namespace
}  // namespace reprise
