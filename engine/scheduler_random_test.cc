// Random traffic. The tokens of a sequence must not depend on other sequences, batching, chunks,
// steps in flight, priorities, preemptions by swap or recomputation, forks, drafts, or failures of
// other sequences.
//
// REPRISE_SEED=<seed> replaces the seed of every case.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/test_seed.h"
#include "reprise/cache/blocks/prefix_cache.h"
#include "reprise/cache/kv_group.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/preemption_rule.h"
#include "reprise/engine/scheduler.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_masker.h"
#include "reprise/engine/testing/throwing_callbacks.h"
#include "reprise/runner/sampling/logits_params.h"

namespace reprise {
namespace {

// Failure rates per 1,000 steps.
struct Mishaps {
  int fails = 0;     // a step fails after its launch
  int nan_rows = 0;  // a row is NaN
  int refusals = 0;  // a launch is refused
  int cancels = 0;
  int deaths = 0;  // the runner dies
  int throws = 0;  // per 1,000 requests: a matcher or a masker throws
};

class Traffic {
 public:
  // `swaps`: probability of host memory, per 1,000.
  Traffic(unsigned seed, const Mishaps& mishaps, int swaps = 660)
      : rng_(seed), draft_rng_(seed), throw_rng_(seed), mishaps_(mishaps) {
    options_.policy.speculation.emplace();
    options_.shape.max_num_seqs = Uniform(1, 6);
    options_.shape.max_num_tokens = options_.shape.max_num_seqs + Uniform(0, 12);
    options_.policy.prefill_chunk = Uniform(0, 5);
    if (Chance(300)) options_.policy.max_prefill_tokens_while_decoding = Uniform(1, 6);
    options_.shape.max_seq_len = Uniform(8, 40);
    options_.shape.max_steps_in_flight = Uniform(1, 3);
    options_.shape.block_size = Uniform(1, 6);
    options_.shape.num_blocks = 1 + Uniform(2, 40);  // small pools preempt
    if (Chance(330)) {
      const bool is_window = Chance(500);
      options_.shape.groups = {
          {},
          {.retention = is_window ? KvRetention::kSlidingWindow : KvRetention::kChunkedLocal,
           .span = Uniform(1, 12)}};
    }
    if (Chance(200)) {
      options_.shape.groups.resize(std::max<size_t>(options_.shape.groups.size(), 1));
      options_.shape.groups.push_back({.retention = KvRetention::kCross});
      options_.shape.max_encoder_tokens = Uniform(1, 10);
      options_.shape.max_encoder_step_tokens = options_.shape.max_encoder_tokens + Uniform(0, 10);
      options_.shape.num_blocks += options_.shape.max_encoder_tokens;
    }
    if (Chance(250)) options_.policy.prefix_reuse = PrefixReuse::kOff;
    options_.shape.mask_words = static_cast<int>(MaskWords(kPuppetVocab));
    if (Chance(500)) options_.shape.max_earlier_logits = Uniform(1, 9);
    if (options_.policy.prefix_reuse == PrefixReuse::kOn && Chance(500)) {
      options_.policy.partial_hits = PartialHits::kCopied;
    }
    if (Chance(swaps)) {
      options_.shape.num_swap_blocks = Uniform(2, 60);
      options_.shape.bytes_per_block = 1000 * Uniform(1, 10);
      options_.policy.preemption =
          Chance(500) ? PreemptionMode::kAuto
                      : (Chance(900) ? PreemptionMode::kSwap : PreemptionMode::kRecompute);
      options_.policy.preemption_costs = PreemptionCosts{.us_per_prompt_token = 1.0 * Uniform(1, 9),
                                                         .num_hidden_tokens = Uniform(0, 3),
                                                         .out_gb_per_s = 1.0 * Uniform(1, 9),
                                                         .in_gb_per_s = 1.0 * Uniform(1, 9)};
    }
    if (draft_rng_() % 2 == 0) {
      options_.policy.speculation->num_drafts = 1 + static_cast<int>(draft_rng_() % 8);
      options_.shape.max_num_tokens += static_cast<int>(draft_rng_() % 20);
      if (draft_rng_() % 3 == 0) {  // trees
        for (int i = 0, drafts = 0; i < options_.policy.speculation->num_drafts; ++i) {
          options_.shape.drafts.level_drafts.push_back(drafts +=
                                                       1 + static_cast<int>(draft_rng_() % 4));
        }
      }
      if (draft_rng_() % 4 == 0) {
        options_.policy.speculation->max_speculating_rows = 1 + static_cast<int>(draft_rng_() % 5);
      }
      // No drafts, all, or some of them are right.
      constexpr int kRight[] = {0, 1000, 300, 700, 950};
      right_drafts_ = kRight[draft_rng_() % 5];
    }
    auto scheduler = Scheduler::Create(options_);
    EXPECT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    device_.emplace(options_);
    device_->set_right_drafts(right_drafts_);
  }

  // Runs `num_requests` requests to the end, with at most `num_at_once` unfinished requests at any
  // time.
  void Run(int num_requests, int num_at_once, int steps_between_checks) {
    int num_to_add = num_requests;
    for (int64_t step = 0; num_to_add > 0 || scheduler_->has_work(); ++step) {
      while (num_to_add > 0 && static_cast<int>(live_.size()) < num_at_once &&
             (live_.empty() || Chance(600))) {
        AddOne();
        --num_to_add;
      }
      ASSERT_NO_FATAL_FAILURE(Step());
      if (testing::Test::HasFailure()) return;
      if (step % steps_between_checks == 0) scheduler_->CheckInvariants();
    }
    scheduler_->CheckInvariants();
    EXPECT_TRUE(live_.empty()) << live_.begin()->first << " never ended";
    EXPECT_EQ(scheduler_->num_running(), 0);
    EXPECT_EQ(scheduler_->num_waiting(), 0);
    EXPECT_EQ(scheduler_->blocks().pool().num_used(), 0) << "leaked blocks";
    EXPECT_EQ(scheduler_->blocks().num_sequences(), 0);
    ExpectNothingStored();
  }

  const Scheduler& scheduler() const { return *scheduler_; }
  int64_t num_finished(FinishReason reason) const {
    const auto it = num_finished_.find(reason);
    return it == num_finished_.end() ? 0 : it->second;
  }

 private:
  struct Live {
    Request request;
    std::vector<PuppetText> texts;  // by sample
    int num_unfinished = 0;
  };

  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  bool Chance(int per_thousand) { return Uniform(0, 999) < per_thousand; }

  void AddOne() {
    const int longest_prompt = scheduler_->max_cached_tokens();
    Request request;
    if (!stems_.empty() && Chance(660)) {  // begins like an earlier prompt
      request.prompt = stems_[Uniform(0, static_cast<int>(stems_.size()) - 1)];
      if (Chance(700)) request.prompt.resize(Uniform(0, static_cast<int>(request.prompt.size())));
    }
    const int num_own =
        request.prompt.empty() || Chance(800) ? Uniform(request.prompt.empty(), longest_prompt) : 0;
    for (int n = num_own; n > 0; --n) request.prompt.push_back(Uniform(0, kPuppetVocab - 1));
    request.prompt.resize(std::min<size_t>(request.prompt.size(), longest_prompt));
    if (stems_.size() < 5) stems_.push_back(request.prompt);
    request.max_new_tokens = Uniform(1, 30);
    if (Chance(500)) request.sampling = {.temperature = 1, .seed = rng_() % 100};
    if (Chance(500)) request.stop_tokens = {Uniform(0, kPuppetVocab - 1)};
    if (Chance(200)) {
      for (int n = Uniform(1, 9); n > 0; --n) {
        request.forced_tokens.push_back(Uniform(0, kPuppetVocab - 1));
      }
    }
    if (Chance(150)) {
      request.sampling.repetition_penalty = 1.0f + static_cast<float>(Uniform(0, 2)) / 8;
      request.sampling.frequency_penalty = static_cast<float>(Uniform(-4, 4)) / 8;
    }
    if (Chance(100)) request.sampling.biases = {{.token = Uniform(0, 49), .bias = 1.5f}};
    if (Chance(100)) request.logits_stages = Uniform(0, 3);
    if (Chance(200)) request.num_log_probs = Uniform(0, 3);
    if (Chance(150)) {
      request.num_prompt_log_probs = Uniform(0, 3);
      if (Chance(300)) request.max_new_tokens = 0;
    }
    if (Chance(150)) request.new_token_masker = PuppetMasker::Factory(rng_(), Uniform(1, 20));
    if (options_.shape.max_encoder_tokens > 0 && Chance(800)) {
      // Few different inputs, so that the cache has hits.
      request.encoder_tokens.resize(Uniform(1, options_.shape.max_encoder_tokens), Uniform(0, 1));
    }
    if (Chance(300)) request.num_sequences = Uniform(1, options_.shape.max_num_seqs);
    if (Chance(400)) request.priority = Uniform(-2, 2);
    if (Chance(200)) request.prefix_salt = Chance(500) ? "a" : "b";
    if (mishaps_.cancels > 0 && Chance(100))
      request.deadline = now_ + absl::Seconds(Uniform(0, 60));
    if (draft_rng_() % 8 == 0) request.max_drafts = static_cast<int>(draft_rng_() % 3);
    Request throwing = request;
    if (static_cast<int>(throw_rng_() % 1000) < mishaps_.throws) AddThrow(request, throwing);
    const auto id = scheduler_->Add(throwing);
    ASSERT_TRUE(id.ok()) << id.status();
    Live& live = live_[id->value()];
    live.texts.resize(request.num_sequences);
    live.num_unfinished = request.num_sequences;
    live.request = std::move(request);
  }

  // Gives `throwing` a callback that throws. Gives `request` the same masker without the exception;
  // a matcher has no other effect.
  void AddThrow(Request& request, Request& throwing) {
    const Fuse fuse = {.num_calls_before = static_cast<int>(throw_rng_() % 6)};
    const unsigned kind = throw_rng_() % 3;
    if (kind == 0) {
      throwing.new_stop_matcher = ThrowingMatcher::Factory(fuse);
      return;
    }
    const auto in = kind == 1 ? ThrowingMasker::In::kFill : ThrowingMasker::In::kAccept;
    const uint64_t mask_seed = throw_rng_();
    throwing.new_token_masker = ThrowingMasker::Factory(mask_seed, /*num_tokens=*/20, in, fuse);
    request.new_token_masker = PuppetMasker::Factory(mask_seed, /*num_tokens=*/20);
  }

  void Step() {
    std::vector<TokenEvent> events;
    now_ += absl::Seconds(1);
    if (!live_.empty() && Chance(mishaps_.cancels)) {
      auto it = live_.begin();
      std::advance(it, Uniform(0, static_cast<int>(live_.size()) - 1));
      const SequenceId id(it->first);
      const absl::Status status = scheduler_->Cancel(id, events);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(absl::IsNotFound(scheduler_->Cancel(id, events)));
    }
    scheduler_->EndExpired(now_, events);
    if (Chance(mishaps_.deaths)) {
      scheduler_->EndAll(absl::InternalError("the runner is dead"), events);
      EXPECT_FALSE(scheduler_->has_work());
      Restart();
    } else {
      RunStep(events);
    }
    for (const TokenEvent& event : events) Take(event);
  }

  void ExpectNothingStored() const {
    if (scheduler_->swap_store() == nullptr) return;
    EXPECT_EQ(scheduler_->swap_store()->num_sequences(), 0);
    EXPECT_EQ(scheduler_->swap_store()->host_pool().num_used(), 0) << "leaked host blocks";
  }

  // After EndAll(), the scheduler cannot be used with another runner. Makes a new one.
  void Restart() {
    EXPECT_EQ(scheduler_->blocks().pool().num_used(), 0) << "leaked blocks";
    ExpectNothingStored();
    scheduler_->CheckInvariants();
    auto scheduler = Scheduler::Create(options_);
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    device_.emplace(options_);
    device_->set_right_drafts(right_drafts_);
  }

  void RunStep(std::vector<TokenEvent>& events) {
    bool launched = false;
    if (scheduler_->can_schedule()) {
      const ScheduledBatch& batch = scheduler_->Schedule();
      launched = !batch.rows.empty();
      if (launched && Chance(mishaps_.refusals)) {
        scheduler_->AbandonLaunch(absl::InvalidArgumentError("refused"), events);
        return;
      }
      PuppetDevice::Fate fate = {.fails = Chance(mishaps_.fails)};
      if (launched && Chance(mishaps_.nan_rows)) {
        const int last = static_cast<int>(batch.rows.size()) - 1;  // often a prompt
        fate.nan_rows.insert(Chance(500) ? last : Uniform(0, last));
      }
      if (launched) device_->Launch(batch, fate);
      if (testing::Test::HasFatalFailure()) return;
    }
    if (scheduler_->num_in_flight() == 0) {
      EXPECT_FALSE(scheduler_->has_work()) << "work left, but nothing to do";
      return;
    }
    if (launched && scheduler_->can_schedule()) return;
    const auto tokens = device_->Await();
    if (tokens.ok()) {
      scheduler_->Commit(device_->output(), events);
    } else {
      scheduler_->CommitFailed(tokens.status(), events);
    }
  }

  void Take(const TokenEvent& event) {
    const auto it = live_.find(event.sequence.value());
    ASSERT_TRUE(it != live_.end()) << "an event of " << event.sequence << " after its end";
    Live& live = it->second;
    PuppetText& text = live.texts[event.sample];
    EXPECT_EQ(text.finish, FinishReason::kNone) << "an event after the end";
    EXPECT_EQ(event.index, static_cast<int>(text.tokens.size()));
    text.Add(event);
    EXPECT_EQ(event.error.ok(), event.finish != FinishReason::kError);
    if (event.finish == FinishReason::kNone) return;
    ++num_finished_[event.finish];
    CheckText(it->first, live.request, event.sample, text);
    if (--live.num_unfinished == 0) live_.erase(it);
  }

  void CheckText(int64_t id, const Request& request, int sample, const PuppetText& text) const {
    SCOPED_TRACE(testing::Message() << "sequence " << id << ", sample " << sample);
    const PuppetText expected =
        ExpectedText(request, sample, options_, scheduler_->max_cached_tokens());
    if (text.finish != FinishReason::kCancelled && text.finish != FinishReason::kDeadline &&
        text.finish != FinishReason::kError) {
      EXPECT_EQ(text, expected) << "finished by " << text.finish;
      return;
    }
    PuppetText begun = expected;
    ASSERT_LE(text.tokens.size(), expected.tokens.size());
    EXPECT_TRUE(text.tokens.size() < expected.tokens.size() || expected.tokens.empty());
    begun.tokens.resize(text.tokens.size());
    if (request.num_log_probs >= 0) begun.log_probs.resize(text.tokens.size());
    if (text.tokens.empty()) begun.prompt_log_probs.clear();
    begun.finish = text.finish;
    EXPECT_EQ(text, begun) << "ended by " << text.finish;
  }

  std::mt19937 rng_;
  std::mt19937 draft_rng_;
  std::mt19937 throw_rng_;
  int right_drafts_ = 0;
  Mishaps mishaps_;
  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::optional<PuppetDevice> device_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::vector<int32_t>> stems_;
  std::map<int64_t, Live> live_;
  std::map<FinishReason, int64_t> num_finished_;
};

class SchedulerRandomTest : public testing::TestWithParam<unsigned> {};

unsigned SeedOr(unsigned otherwise) {
  return std::getenv("REPRISE_SEED") == nullptr ? otherwise : TestSeed();
}

TEST_P(SchedulerRandomTest, TokensDoNotDependOnOtherSequences) {
  const unsigned seed = SeedOr(GetParam());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Traffic traffic(seed, {});
  traffic.Run(/*num_requests=*/12, /*num_at_once=*/12, /*steps_between_checks=*/1);
}

TEST_P(SchedulerRandomTest, FailuresAndCancellationsDoNotChangeOtherSequences) {
  const unsigned seed = SeedOr(GetParam() + 1000);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Traffic traffic(
      seed,
      {.fails = 30, .nan_rows = 60, .refusals = 10, .cancels = 60, .deaths = 3, .throws = 150});
  traffic.Run(/*num_requests=*/24, /*num_at_once=*/12, /*steps_between_checks=*/1);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerRandomTest, testing::Range(0u, 300u));

TEST(SchedulerLongRunTest, TenThousandRequestsOfOneSchedulerLeakNothing) {
  int64_t num_preemptions = 0;
  int64_t num_swaps = 0;
  int64_t num_returns = 0;
  int64_t num_forks = 0;
  int64_t num_accepted = 0;
  int64_t num_rejected = 0;
  std::map<FinishReason, int64_t> num_finished;
  for (unsigned i = 0; i < 3; ++i) {
    const unsigned seed = SeedOr(5000 + i);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Traffic traffic(seed, {.fails = 5, .nan_rows = 30, .refusals = 2, .cancels = 30, .throws = 100},
                    /*swaps=*/1000);
    traffic.Run(/*num_requests=*/10000, /*num_at_once=*/20, /*steps_between_checks=*/100);
    num_preemptions += traffic.scheduler().num_preemptions();
    num_swaps += traffic.scheduler().swap_statistics().num_swap_outs;
    num_returns += traffic.scheduler().swap_statistics().num_swap_ins;
    num_forks += traffic.scheduler().num_forks();
    const SpeculationStatistics& drafts = traffic.scheduler().speculation_statistics();
    num_accepted += drafts.num_accepted;
    num_rejected += drafts.num_drafts - drafts.num_accepted;
    for (int r = 0; r < kNumFinishReasons; ++r) {
      num_finished[FinishReason(r)] += traffic.num_finished(FinishReason(r));
    }
  }
  // The traffic has enough preemptions of both kinds.
  EXPECT_GT(num_preemptions - num_swaps, 100);
  EXPECT_GT(num_swaps, 100);
  EXPECT_GT(num_returns, 100);
  EXPECT_GT(num_forks, 100);
  EXPECT_GT(num_accepted, 1000);
  EXPECT_GT(num_rejected, 1000);
  for (const FinishReason reason :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
        FinishReason::kDeadline, FinishReason::kError}) {
    EXPECT_GT(num_finished[reason], 50) << reason;
  }
}

}  // namespace
}  // namespace reprise
