#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/testing/borrowed_runner.h"
#include "reprise/engine/testing/puppet_device.h"
#include "reprise/engine/testing/puppet_runner.h"
#include "reprise/runner/trace/step_trace.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class EngineStepsTest : public testing::Test {
 protected:
  EngineStepsTest() {
    options_.shape.max_num_seqs = 3;
    options_.shape.max_num_tokens = 8;
    options_.shape.max_seq_len = 64;
    options_.shape.max_steps_in_flight = 2;
    options_.shape.num_blocks = 60;
    options_.shape.block_size = 4;
  }

  void Start() {
    runner_.emplace(options_);
    auto engine = Engine::Create(
        Borrowed(*runner_),
        {.scheduler = options_.policy, .clock = [this] { return now_; }, .trace = &trace_});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  SequenceId Add(const Request& request) {
    const auto id = engine_->Add(request);
    EXPECT_TRUE(id.ok()) << id.status();
    requests_[*id] = request;
    return *id;
  }

  // Runs a step of one second. Returns its events.
  std::vector<TokenEvent> Step() {
    now_ += absl::Seconds(1);
    std::vector<TokenEvent> events;
    const absl::Status status = engine_->Step(events);
    EXPECT_EQ(status, runner_->death);
    engine_->scheduler().CheckInvariants();
    for (const TokenEvent& event : events) {
      texts_[event.sequence].Add(event);
      if (!event.error.ok()) errors_[event.sequence] = event.error;
    }
    return events;
  }

  void RunAll() {
    for (int i = 0; engine_->has_work(); ++i) {
      ASSERT_LT(i, 10000);
      Step();
    }
  }

  // Expects the complete text that the request gets without other requests.
  void ExpectWhole(SequenceId id) {
    EXPECT_EQ(texts_[id], ExpectedText(requests_.at(id), 0, options_, 64)) << "sequence " << id;
  }

  SchedulerOptions options_;
  absl::Time now_ = absl::UnixEpoch();
  StepTrace trace_;
  std::optional<PuppetRunner> runner_;
  std::unique_ptr<Engine> engine_;
  std::map<SequenceId, Request> requests_;
  std::map<SequenceId, PuppetText> texts_;
  std::map<SequenceId, absl::Status> errors_;
};

TEST_F(EngineStepsTest, TextsMatchSingleRequests) {
  Start();
  std::vector<SequenceId> ids;
  for (int i = 0; i < 7; ++i) {
    ids.push_back(Add({.prompt = {i, 2, 3}, .max_new_tokens = 3 + 2 * i}));
  }
  RunAll();
  for (const SequenceId id : ids) ExpectWhole(id);
}

TEST_F(EngineStepsTest, CountsDraftsAndKeepsTexts) {
  options_.shape.max_num_tokens = 24;
  options_.policy.speculation = SpeculationPolicy{.num_drafts = 4};
  Start();
  const SequenceId id = Add({.prompt = {1, 2, 3}, .max_new_tokens = 41});
  RunAll();
  ExpectWhole(id);
  const EngineMetrics metrics = engine_->metrics();
  EXPECT_EQ(metrics.speculation.num_rows, 8);
  EXPECT_EQ(metrics.speculation.num_drafts, 32);
  EXPECT_EQ(metrics.speculation.num_accepted, 32);
  EXPECT_EQ(metrics.speculation.num_accepted_at[3], 8);
  EXPECT_EQ(metrics.speculation.tokens_per_row(), 5);
  EXPECT_EQ(metrics.num_generated_tokens, 41);
  EXPECT_EQ(metrics.num_steps, 9);
}

// A step takes 100 us without drafts, and 300 us with drafts.
class SlowWithDrafts : public PuppetRunner {
 public:
  SlowWithDrafts(const SchedulerOptions& options, absl::Time* now)
      : PuppetRunner(options), now_(now) {}

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    const bool has_drafts =
        absl::c_any_of(batch.rows, [](const ScheduledRow& row) { return row.draft_count() > 0; });
    has_drafts_.push_back(has_drafts);
    num_with_drafts += has_drafts ? 1 : 0;
    ++num_steps;
    return PuppetRunner::Launch(batch);
  }
  absl::StatusOr<StepResult> Await(int64_t step) override {
    *now_ += absl::Microseconds(has_drafts_[step] ? 300 : 100);
    return PuppetRunner::Await(step);
  }

  int num_steps = 0;
  int num_with_drafts = 0;

 private:
  absl::Time* now_;
  std::vector<bool> has_drafts_;  // by step
};

// With two drafts per row, of which 60 % are right, drafts do not pay if they make a step three
// times as long.
TEST_F(EngineStepsTest, MeasuredTimesReduceUnprofitableDraftsToProbes) {
  for (const bool measures : {false, true}) {
    SCOPED_TRACE(testing::Message() << "measures " << measures);
    options_.shape.max_num_tokens = 32;
    options_.shape.max_seq_len = 600;
    options_.shape.num_blocks = 600;
    options_.policy.speculation = SpeculationPolicy{.num_drafts = 2, .measures_steps = measures};
    SlowWithDrafts runner(options_, &now_);
    runner.set_right_drafts(600);
    auto engine = Engine::Create(Borrowed(runner),
                                 {.scheduler = options_.policy, .clock = [this] { return now_; }});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const Request request = {.prompt = {1, 2, 3}, .max_new_tokens = 500};
    ASSERT_TRUE((*engine)->Add(request).ok());
    PuppetText text;
    while ((*engine)->has_work()) {
      std::vector<TokenEvent> events;
      ASSERT_TRUE((*engine)->Step(events).ok());
      for (const TokenEvent& event : events) text.Add(event);
    }
    EXPECT_EQ(text, ExpectedText(request, 0, options_, 600));
    const SpeculationStatistics statistics = (*engine)->metrics().speculation;
    EXPECT_EQ(
        (*engine)->scheduler().draft_costs().Best({.num_rows = 1, .num_drafting = 1, .most = 2}),
        measures ? 0 : 2);
    if (measures) {
      EXPECT_GE(runner.num_with_drafts, DraftCosts::kFirstRows);
      EXPECT_LE(runner.num_with_drafts, DraftCosts::kFirstRows + 16);
      EXPECT_GT(statistics.num_unpaid_steps, 300);
    } else {
      EXPECT_GT(runner.num_with_drafts, runner.num_steps / 2);
      EXPECT_EQ(statistics.num_unpaid_steps, 0);
    }
  }
}

TEST_F(EngineStepsTest, FailedStepFailsItsSequencesButNotStep) {
  Start();
  const SequenceId hit = Add({.prompt = {1}, .max_new_tokens = 9});
  runner_->fate_of_next = {.fails = true};
  Step();
  const SequenceId spared = Add({.prompt = {2}, .max_new_tokens = 9});
  RunAll();
  EXPECT_THAT(texts_[hit].tokens, IsEmpty());
  EXPECT_EQ(texts_[hit].finish, FinishReason::kError);
  EXPECT_EQ(errors_[hit], absl::InternalError("the step failed"));
  ExpectWhole(spared);
  EXPECT_EQ(engine_->metrics().num_failed_steps, 1);
  EXPECT_EQ(engine_->scheduler().blocks().pool().num_used(), 0);
}

TEST_F(EngineStepsTest, NanRowFailsOnlyItsSequence) {
  Start();
  const SequenceId hit = Add({.prompt = {1}, .max_new_tokens = 9});
  const SequenceId spared = Add({.prompt = {2}, .max_new_tokens = 9});
  runner_->fate_of_next = {.nan_rows = {0}};
  RunAll();
  EXPECT_EQ(texts_[hit].finish, FinishReason::kError);
  EXPECT_THAT(std::string(errors_[hit].message()), HasSubstr("all logits are NaN or -inf"));
  ExpectWhole(spared);
}

TEST_F(EngineStepsTest, RefusedBatchFailsItsSequencesButNotTheEngine) {
  options_.shape.max_num_seqs = 2;
  Start();
  const SequenceId runs = Add({.prompt = {1}, .max_new_tokens = 9});
  for (int i = 0; i < 3; ++i) Step();
  const SequenceId joins = Add({.prompt = {2}, .max_new_tokens = 9});
  const SequenceId waits = Add({.prompt = {3}, .max_new_tokens = 9});
  runner_->refusal_of_next = absl::InternalError("refuse");
  RunAll();
  for (const SequenceId id : {runs, joins}) {
    EXPECT_EQ(texts_[id].finish, FinishReason::kError);
    EXPECT_EQ(errors_[id], absl::InvalidArgumentError("rows: refused"));
  }
  EXPECT_THAT(texts_[runs].tokens, SizeIs(2));
  ExpectWhole(waits);
}

TEST_F(EngineStepsTest, DeadRunnerFailsAllSequencesAndLaterRequests) {
  Start();
  std::vector<SequenceId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(Add({.prompt = {i}, .max_new_tokens = 9}));
  for (int i = 0; i < 3; ++i) Step();
  runner_->death = absl::DataLossError("uncorrectable ECC error");
  EXPECT_THAT(Step(), SizeIs(5));
  for (const SequenceId id : ids) {
    EXPECT_EQ(texts_[id].finish, FinishReason::kError);
    EXPECT_EQ(errors_[id], runner_->death);
  }
  EXPECT_FALSE(engine_->has_work());
  EXPECT_THAT(Step(), IsEmpty());
  const absl::Status refused = engine_->Add({.prompt = {1}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uncorrectable ECC error"));
}

// A runner that dies in Await(), like a device.
class DyingRunner : public PuppetRunner {
 public:
  using PuppetRunner::PuppetRunner;
  absl::StatusOr<StepResult> Await(int64_t) override {
    death = absl::InternalError("illegal address");
    return absl::InternalError("the step was lost");
  }
};

TEST_F(EngineStepsTest, RunnerThatDiesInAwaitFailsAllSequencesInTheSameStep) {
  DyingRunner runner(options_);
  auto engine = Engine::Create(Borrowed(runner), {.scheduler = options_.policy});
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE((*engine)->Add({.prompt = {i}}).ok());
  std::vector<TokenEvent> events;
  EXPECT_TRUE((*engine)->Step(events).ok());  // two steps may be in flight
  EXPECT_EQ((*engine)->Step(events), runner.death);
  EXPECT_THAT(events, SizeIs(5));
  EXPECT_FALSE((*engine)->has_work());
}

TEST_F(EngineStepsTest, DeadlinesFollowTheClock) {
  Start();
  const SequenceId late =
      Add({.prompt = {1}, .max_new_tokens = 50, .deadline = now_ + absl::Seconds(5)});
  const SequenceId spared = Add({.prompt = {2}, .max_new_tokens = 20});
  RunAll();
  EXPECT_EQ(texts_[late].finish, FinishReason::kDeadline);
  // The steps launched at 1, 2 and 3 s are awaited one step later. At 5 s, the sequence ends before
  // the step launched at 4 s is awaited.
  EXPECT_THAT(texts_[late].tokens, SizeIs(3));
  ExpectWhole(spared);
}

TEST_F(EngineStepsTest, CancelEndsSequencesImmediately) {
  Start();
  const SequenceId id = Add({.prompt = {1}, .max_new_tokens = 50});
  for (int i = 0; i < 4; ++i) Step();
  std::vector<TokenEvent> events;
  ASSERT_TRUE(engine_->Cancel(id, events).ok());
  EXPECT_THAT(events, ElementsAre(TokenEvent{
                          .sequence = id, .index = 3, .finish = FinishReason::kCancelled}));
  EXPECT_THAT(Step(), IsEmpty());
  EXPECT_FALSE(engine_->has_work());
  EXPECT_TRUE(absl::IsNotFound(engine_->Cancel(id, events)));
}

TEST_F(EngineStepsTest, RejectsTokensOutsideTheVocabulary) {
  Start();
  EXPECT_THAT(std::string(engine_->Add({.prompt = {-1}}).status().message()), HasSubstr("prompt"));
  EXPECT_THAT(std::string(engine_->Add({.prompt = {1}, .forced_tokens = {50}}).status().message()),
              HasSubstr("forced_tokens"));
  EXPECT_EQ(engine_->metrics().num_refused, 2);
  EXPECT_FALSE(engine_->has_work());
}

TEST_F(EngineStepsTest, CountsRequestsTokensAndSteps) {
  options_.shape.max_steps_in_flight = 1;
  options_.shape.max_num_seqs = 1;
  Start();
  Add({.prompt = {1, 2, 3, 4, 5}, .max_new_tokens = 3});  // tokens after 1, 2 and 3 s
  Add({.prompt = {1, 2, 3, 4, 6}, .max_new_tokens = 2});  // tokens after 4 and 5 s
  Step();
  EngineMetrics now = engine_->metrics();
  EXPECT_EQ(now.num_waiting, 1);
  EXPECT_EQ(now.num_running, 1);
  EXPECT_EQ(now.num_blocks, 59);
  EXPECT_EQ(now.num_blocks_used, 2);
  RunAll();
  now = engine_->metrics();
  EXPECT_EQ(now.num_running, 0);
  EXPECT_EQ(now.num_requests, 2);
  EXPECT_EQ(now.num_prompt_tokens, 10);
  EXPECT_EQ(now.num_generated_tokens, 5);
  EXPECT_EQ(now.num_finished[static_cast<int>(FinishReason::kLength)], 2);
  EXPECT_EQ(now.num_prefix_tokens, 10);
  EXPECT_EQ(now.num_prefix_tokens_hit, 4);
  EXPECT_EQ(now.num_steps, 5);
  EXPECT_EQ(now.num_graph_replays, 5);
  EXPECT_EQ(now.time_to_first_token.count(), 2);
  EXPECT_EQ(now.time_to_first_token.sum_seconds(), 1 + 4);
  EXPECT_EQ(now.inter_token_latency.count(), 3);
  EXPECT_EQ(now.inter_token_latency.sum_seconds(), 3);
}

TEST_F(EngineStepsTest, CountsSwappedBytes) {
  options_.shape.max_num_seqs = 2;
  options_.shape.block_size = 1;
  options_.shape.num_blocks = 7;
  options_.policy.prefix_reuse = PrefixReuse::kOff;
  options_.shape.num_swap_blocks = 9;
  options_.shape.bytes_per_block = 1000;
  options_.policy.preemption = PreemptionMode::kSwap;
  Start();
  Add({.prompt = {1}, .max_new_tokens = 5});
  Add({.prompt = {2}, .max_new_tokens = 5});
  while (engine_->metrics().num_preemptions == 0) Step();
  EngineMetrics now = engine_->metrics();
  EXPECT_EQ(now.num_swap_blocks, 8);
  EXPECT_GT(now.num_swap_blocks_used, 0);
  EXPECT_EQ(now.num_swap_preemptions, 1);
  EXPECT_EQ(now.num_swapped_out_bytes, 1000 * now.num_swap_blocks_used);
  EXPECT_EQ(now.num_swapped_in_bytes, 0);
  RunAll();
  const int64_t num_swapped_out_bytes = now.num_swapped_out_bytes;
  now = engine_->metrics();
  EXPECT_EQ(now.num_swap_blocks_used, 0);
  EXPECT_EQ(now.num_preemptions, 1);
  EXPECT_EQ(now.num_swapped_in_bytes, num_swapped_out_bytes);
}

// Returns token 5 for every row, without allocating.
class FlatRunner : public StepRunner {
 public:
  explicit FlatRunner(const RunnerShape& shape) : shape_(shape) { shape_.vocab_size = 10; }

  const RunnerShape& shape() const override { return shape_; }
  absl::Status CheckLogits(const LogitsRequest&) const override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Launch(const ScheduledBatch&) override { return 0; }
  absl::StatusOr<StepResult> Await(int64_t) override { return StepResult{.tokens = tokens_}; }
  absl::Status status() const override { return absl::OkStatus(); }
  const GraphReport& graph_report() const override { return report_; }

 private:
  RunnerShape shape_;
  GraphReport report_;
  const std::vector<int32_t> tokens_ = std::vector<int32_t>(4, 5);
};

// A matcher that never ends a sequence.
class Unending : public StopMatcher {
 public:
  bool Ends(int32_t) override { return false; }
};

// A masker that allows all tokens.
class Permissive : public TokenMasker {
 public:
  void Fill(absl::Span<int32_t> mask) override { absl::c_fill(mask, -1); }
  bool Accept(int32_t) override { return true; }
};

TEST_F(EngineStepsTest, SteadyDecodingAllocatesNothingOnTheHeap) {
  options_.shape.max_num_seqs = 4;
  options_.shape.max_num_tokens = 16;
  options_.shape.max_seq_len = 512;
  options_.shape.num_blocks = 600;
  options_.shape.mask_words = 2;
  for (const bool is_masked : {false, true}) {
    options_.shape.max_steps_in_flight = is_masked ? 1 : 2;  // all rows in each step
    FlatRunner runner(options_.shape);
    auto engine = Engine::Create(Borrowed(runner), {.scheduler = options_.policy});
    ASSERT_TRUE(engine.ok()) << engine.status();
    for (int i = 0; i < 4; ++i) {
      Request request = {.prompt = {1, 2, 3},
                         .max_new_tokens = 400,
                         .sampling = {.presence_penalty = 0.5f},
                         .deadline = absl::Now() + absl::Hours(9)};
      request.new_stop_matcher = [] { return std::make_unique<Unending>(); };
      if (is_masked) request.new_token_masker = [] { return std::make_unique<Permissive>(); };
      ASSERT_TRUE((*engine)->Add(request).ok());
    }
    std::vector<TokenEvent> events;
    events.reserve(8);
    for (int warmup = 0; warmup < 4; ++warmup) {
      events.clear();
      ASSERT_TRUE((*engine)->Step(events).ok());
    }
    AllocationCounter allocations;
    for (int step = 0; step < 300; ++step) {
      events.clear();
      ASSERT_TRUE((*engine)->Step(events).ok());
    }
    EXPECT_EQ(allocations.count(), 0);
    EXPECT_THAT(events, SizeIs(4));
  }
}

TEST_F(EngineStepsTest, RejectsUnsupportedRequests) {
  Start();
  runner_->max_log_probs = 2;
  const auto refusal = [&](const Request& request) {
    return std::string(engine_->Add(request).status().message());
  };
  EXPECT_EQ(refusal({.prompt = {1}, .num_log_probs = 3}), "num_log_probs: expected -1 to 2, got 3");
  EXPECT_EQ(refusal({.prompt = {1}, .num_prompt_log_probs = 3}),
            "of the prompt: num_log_probs: expected -1 to 2, got 3");
  EXPECT_THAT(refusal({.prompt = {1}, .num_log_probs = -2}), HasSubstr("num_log_probs"));
  EXPECT_THAT(refusal({.prompt = {1}, .sampling = {.repetition_penalty = 0}}),
              HasSubstr("repetition_penalty"));
  EXPECT_THAT(refusal({.prompt = {1}, .sampling = {.biases = {{.token = kPuppetVocab}}}}),
              HasSubstr("biases"));
  EXPECT_EQ(engine_->metrics().num_refused, 5);
  EXPECT_FALSE(engine_->has_work());
}

TEST_F(EngineStepsTest, ForcedTokensAreNotCountedAsGenerated) {
  options_.shape.max_earlier_logits = 4;
  Start();
  const SequenceId scored = Add({.prompt = {1, 2}, .num_log_probs = 1, .forced_tokens = {3, 4, 5}});
  const SequenceId other = Add({.prompt = {6}, .max_new_tokens = 2});
  RunAll();
  ExpectWhole(scored);
  ExpectWhole(other);
  EXPECT_EQ(engine_->metrics().num_forced_tokens, 3);
  EXPECT_EQ(engine_->metrics().num_generated_tokens, 2);
  EXPECT_EQ(engine_->metrics().time_to_first_token.count(), 1);
}

TEST_F(EngineStepsTest, StepsAreTraced) {
  Start();
  Add({.prompt = {1, 2, 3}, .max_new_tokens = 4});
  RunAll();
  std::map<std::string, std::vector<int>> steps;  // by name of the span
  std::pair<double, double> engine;               // begin and end of the last span
  const nlohmann::json trace = nlohmann::json::parse(trace_.ToJson());
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    EXPECT_EQ(event.at("tid"), 1);
    const std::string name = event.at("name");
    steps[name].push_back(event.at("args").at("step"));
    const double begin = event.at("ts");
    const double end = begin + event.at("dur").get<double>();
    if (name == "engine") {
      EXPECT_GE(begin, engine.second - 0.01);
      engine = {begin, end};
    } else {
      EXPECT_GE(begin, engine.first - 0.01) << name;
      EXPECT_LE(end, engine.second + 0.01) << name;
    }
  }
  // One step per token. A batch without rows has a "schedule" span, but launches no step.
  const int64_t num_steps = engine_->metrics().num_steps;
  ASSERT_GE(num_steps, 4);
  ASSERT_EQ(steps["commit"].size(), static_cast<size_t>(num_steps));
  for (int64_t i = 0; i < num_steps; ++i) EXPECT_EQ(steps["commit"][i], i);
  EXPECT_GE(steps["schedule"].size(), static_cast<size_t>(num_steps));
  EXPECT_EQ(steps["schedule"].front(), 0);
  EXPECT_GE(steps["engine"].size(), steps["schedule"].size());
}

}  // namespace
}  // namespace reprise
