#include "reprise/runner/step_builder.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/kv_group.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/slots/slot_mirror.h"

namespace reprise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kVocab = 97;

// Returns the token that follows a text. It depends on all tokens and their order.
int32_t Next(absl::Span<const int32_t> text) {
  uint32_t hash = 2166136261u;
  for (const int32_t token : text) hash = (hash ^ static_cast<uint32_t>(token)) * 16777619u;
  return static_cast<int32_t>((hash >> 8) % kVocab);
}

std::vector<int32_t> Continued(std::vector<int32_t> text, int num_tokens) {
  for (int i = 0; i < num_tokens; ++i) text.push_back(Next(text));
  return text;
}

std::vector<int32_t> Prompt(int first, int size) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < size; ++i) prompt.push_back((first + 7 * i) % kVocab);
  return prompt;
}

// A runner that stores tokens in its cache instead of keys. Checks each batch with a SlotMirror,
// reads each row's text back through the block tables, and fails on demand.
class TokenRunner : public StepRunner {
 public:
  explicit TokenRunner(const RunnerShape& shape)
      : shape_(shape),
        mirror_(shape),
        cache_(static_cast<size_t>(shape.num_blocks) * shape.block_size, -1),
        tables_(shape.groups.size() * shape.max_num_seqs * shape.max_blocks(), 0),
        lengths_(shape.max_num_seqs, 0),
        last_(shape.max_num_seqs, -1) {
    for (int i = 0; i < shape.max_steps_in_flight + 1; ++i) outputs_.emplace_back();
    for (auto& output : outputs_) output.reserve(shape.max_num_seqs);
    text_.reserve(shape.max_seq_len);
  }

  const RunnerShape& shape() const override { return shape_; }
  absl::Status CheckLogits(const LogitsRequest& request) const override {
    if (request.params.num_log_probs < 5) return absl::OkStatus();
    return absl::InvalidArgumentError("num_log_probs: too many");
  }

  absl::StatusOr<int64_t> Launch(const ScheduledBatch& batch) override {
    if (refuses) return absl::ResourceExhaustedError("no memory for the step");
    const auto demand = mirror_.Advance(batch);
    if (!demand.ok()) return demand.status();
    num_tokens += demand->shape.num_tokens;
    max_step_tokens = std::max(max_step_tokens, static_cast<int>(demand->shape.num_tokens));
    num_requests += static_cast<int>(batch.logits_requests.size());
    for (const LogitsRequest& request : batch.logits_requests) {
      last_biases.assign(request.biases.begin(), request.biases.end());
    }
    for (const SlotJoin& join : batch.joins) lengths_[join.slot.value()] = join.seq_len;
    for (const BlockTableUpdate& update : batch.updates) {
      Entry(update.group, update.slot.value(), update.column) = update.block.value();
    }
    for (const BlockCopy& copy : batch.copies) {
      ++num_copies;
      std::copy_n(&cache_[copy.src * shape_.block_size], shape_.block_size,
                  &cache_[copy.dst * shape_.block_size]);
    }
    std::vector<int32_t>& output = outputs_[num_launched_ % outputs_.size()];
    output.clear();
    for (const ScheduledRow& row : batch.rows) output.push_back(Compute(row));
    return num_launched_++;
  }

  absl::StatusOr<StepResult> Await(int64_t step) override {
    EXPECT_EQ(step, num_awaited_);
    ++num_awaited_;
    if (std::exchange(fails_next_await, false)) return absl::InternalError("the step failed");
    return StepResult{.tokens = outputs_[step % outputs_.size()], .step = step};
  }

  absl::Status status() const override { return absl::OkStatus(); }
  const GraphReport& graph_report() const override { return report_; }

  bool refuses = false;
  bool fails_next_await = false;
  bool next_row_is_nan = false;
  int num_tokens = 0;  // computed tokens
  int max_step_tokens = 0;
  int num_copies = 0;
  int num_requests = 0;
  std::vector<LogitBias> last_biases;

 private:
  int32_t& Entry(int group, int slot, int column) {
    return tables_[(static_cast<size_t>(group) * shape_.max_num_seqs + slot) * shape_.max_blocks() +
                   column];
  }
  int32_t& Place(int group, int slot, int position) {
    const int32_t block = Entry(group, slot, position / shape_.block_size);
    return cache_[block * shape_.block_size + position % shape_.block_size];
  }

  int32_t Compute(const ScheduledRow& row) {
    const int slot = row.slot.value();
    const int num_groups = static_cast<int>(shape_.groups.size());
    for (int i = 0; i < row.query_len(); ++i) {
      const int32_t token = row.tokens.empty() ? last_[slot] : row.tokens[i];
      for (int group = 0; group < num_groups; ++group) {
        Place(group, slot, lengths_[slot]) = token;
      }
      ++lengths_[slot];
    }
    text_.clear();
    for (int i = 0; i < lengths_[slot]; ++i) text_.push_back(Place(0, slot, i));
    for (int group = 1; group < num_groups; ++group) {
      const int first = static_cast<int>(
          std::max<int64_t>(0, FirstNeededPosition(shape_.groups[group], lengths_[slot] - 1)));
      for (int i = first; i < lengths_[slot]; ++i) EXPECT_EQ(Place(group, slot, i), text_[i]);
    }
    if (row.output == RowOutput::kNone) return kNotSampled;
    if (std::exchange(next_row_is_nan, false)) return kNanRow;
    return last_[slot] = Next(text_);
  }

  RunnerShape shape_;
  SlotMirror mirror_;
  std::vector<int32_t> cache_;   // tokens by block and offset
  std::vector<int32_t> tables_;  // by group, slot and column
  std::vector<int> lengths_;     // by slot
  std::vector<int32_t> last_;
  std::vector<std::vector<int32_t>> outputs_;  // a ring
  std::vector<int32_t> text_;
  int64_t num_launched_ = 0;
  int64_t num_awaited_ = 0;
  GraphReport report_;
};

const RunnerShape kShape = {.max_num_seqs = 3,
                            .max_num_tokens = 8,
                            .max_seq_len = 40,
                            .vocab_size = kVocab,
                            .num_blocks = 33,
                            .block_size = 4};

RunnerShape WithSteps(int max_steps_in_flight) {
  RunnerShape shape = kShape;
  shape.max_steps_in_flight = max_steps_in_flight;
  return shape;
}

// A builder over a TokenRunner. max_steps_in_flight is the parameter.
class StepBuilderTest : public testing::TestWithParam<int> {
 protected:
  StepBuilderTest() { Make(WithSteps(GetParam())); }

  void Make(const RunnerShape& shape, const StepBuilderOptions& options = {}) {
    steps_.reset();
    runner_ = std::make_unique<TokenRunner>(shape);
    auto steps = StepBuilder::Create(*runner_, options);
    ASSERT_TRUE(steps.ok()) << steps.status();
    steps_ = std::make_unique<StepBuilder>(*std::move(steps));
  }
  SlotId Join(absl::Span<const int32_t> prompt) {
    const auto slot = steps_->Join(prompt);
    EXPECT_TRUE(slot.ok()) << slot.status();
    return slot.value_or(SlotId(-1));
  }
  // Runs until the sequence has `num_tokens` tokens.
  void RunTo(SlotId slot, int num_tokens) {
    for (int i = 0; i < 200 && static_cast<int>(steps_->tokens(slot).size()) < num_tokens; ++i) {
      const auto step = steps_->Run();
      ASSERT_TRUE(step.ok()) << step.status();
    }
    ASSERT_GE(steps_->tokens(slot).size(), static_cast<size_t>(num_tokens));
  }
  // Checks that the sequence continues `prompt` with the tokens of Next().
  void ExpectText(SlotId slot, const std::vector<int32_t>& prompt) {
    const absl::Span<const int32_t> tokens = steps_->tokens(slot);
    EXPECT_EQ(std::vector<int32_t>(tokens.begin(), tokens.end()),
              Continued(prompt, static_cast<int>(tokens.size() - prompt.size())));
  }
  // Awaits all steps in flight.
  void Drain() {
    while (steps_->num_in_flight() > 0) ASSERT_TRUE(steps_->Await().ok());
  }
  absl::StatusCode JoinCode(absl::Span<const int32_t> prompt, const JoinOptions& options = {}) {
    return steps_->Join(prompt, options).status().code();
  }

  std::unique_ptr<TokenRunner> runner_;
  std::unique_ptr<StepBuilder> steps_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, StepBuilderTest, testing::Values(1, 2, 3));

// ---- Texts.

TEST_P(StepBuilderTest, ContinuesSeveralPromptsIndependently) {
  const SlotId a = Join(Prompt(1, 3)), b = Join(Prompt(2, 5));
  RunTo(a, 12);
  const SlotId c = Join(Prompt(3, 1));
  RunTo(c, 9);
  ExpectText(a, Prompt(1, 3));
  ExpectText(b, Prompt(2, 5));
  ExpectText(c, Prompt(3, 1));
}

TEST_P(StepBuilderTest, SplitsPromptsIntoChunksNextToDecodes) {
  const SlotId short_one = Join(Prompt(1, 2));
  RunTo(short_one, 4);
  const SlotId long_one = Join(Prompt(5, 30));
  const size_t before = steps_->tokens(short_one).size();
  RunTo(long_one, 33);
  EXPECT_GE(steps_->tokens(short_one).size(), before + 5);  // 30 tokens, at most 7 per step
  EXPECT_LE(runner_->max_step_tokens, kShape.max_num_tokens);
  ExpectText(short_one, Prompt(1, 2));
  ExpectText(long_one, Prompt(5, 30));
}

TEST_P(StepBuilderTest, LimitsChunksToMaxChunk) {
  Make(WithSteps(GetParam()), {.max_chunk = 3});
  const SlotId slot = Join(Prompt(5, 10));
  RunTo(slot, 12);
  EXPECT_EQ(runner_->max_step_tokens, 3);
  ExpectText(slot, Prompt(5, 10));
}

TEST_P(StepBuilderTest, SkipsTokensThatThePrefixCacheHas) {
  const std::vector<int32_t> prompt = Prompt(1, 14);
  const SlotId first = Join(prompt);
  RunTo(first, 15);
  Drain();
  std::vector<int32_t> other = prompt;
  other.back() += 1;
  runner_->num_tokens = 0;
  const SlotId second = Join(other);
  EXPECT_EQ(steps_->num_cached_tokens(second), 12);
  ASSERT_TRUE(steps_->Leave(first).ok());
  RunTo(second, 15);
  EXPECT_LE(runner_->num_tokens, 2 + GetParam());
  ExpectText(second, other);
}

TEST_P(StepBuilderTest, CopiesABlockThatAPrefixEndsWithin) {
  Make(WithSteps(GetParam()), {.partial_hits = PartialHits::kCopied});
  const std::vector<int32_t> prompt = Prompt(1, 12);
  const SlotId first = Join(prompt);
  RunTo(first, 14);
  Drain();
  std::vector<int32_t> other(prompt.begin(), prompt.begin() + 10);
  other.push_back(prompt[10] + 1);
  const SlotId second = Join(other);
  EXPECT_EQ(steps_->num_cached_tokens(second), 10);
  RunTo(second, 20);
  EXPECT_EQ(runner_->num_copies, 1);
  RunTo(first, 20);
  ExpectText(second, other);
  ExpectText(first, prompt);
}

TEST_P(StepBuilderTest, ServesGroupsWithWindows) {
  RunnerShape shape = WithSteps(GetParam());
  shape.groups = {{}, {.retention = KvRetention::kSlidingWindow, .span = 6}};
  Make(shape, {.partial_hits = PartialHits::kCopied});
  const SlotId first = Join(Prompt(1, 17));
  RunTo(first, 25);
  const SlotId again = Join(Prompt(1, 17));
  RunTo(again, 25);
  ExpectText(first, Prompt(1, 17));
  ExpectText(again, Prompt(1, 17));
  ASSERT_TRUE(steps_->Leave(first).ok());
  ASSERT_TRUE(steps_->Leave(again).ok());
  Drain();
  steps_->blocks().CheckInvariants();
  EXPECT_EQ(steps_->blocks().pool().num_used(), 0);
}

TEST_P(StepBuilderTest, ReusesTheSlotOfASequenceThatLeftWithStepsInFlight) {
  const SlotId first = Join(Prompt(1, 3));
  RunTo(first, 5);
  for (int i = steps_->num_in_flight(); i < GetParam(); ++i) ASSERT_TRUE(steps_->Launch().ok());
  ASSERT_TRUE(steps_->Leave(first).ok());
  const SlotId second = Join(Prompt(9, 4));
  EXPECT_EQ(first, second);
  RunTo(second, 10);
  ExpectText(second, Prompt(9, 4));
}

TEST_P(StepBuilderTest, ReportsThatASequenceIsComplete) {
  const SlotId slot = Join(Prompt(1, 38));
  std::vector<bool> is_last;
  for (int i = 0; i < 20; ++i) {
    const auto step = steps_->Run();
    ASSERT_TRUE(step.ok()) << step.status();
    for (const NewToken& next : *step) is_last.push_back(next.is_last);
  }
  EXPECT_THAT(is_last, ElementsAre(false, false, true));
  EXPECT_THAT(steps_->tokens(slot), SizeIs(41));
  ExpectText(slot, Prompt(1, 38));
}

TEST_P(StepBuilderTest, ContinuesATextWithItsNextTurn) {
  const SlotId slot = Join(Prompt(1, 5));
  RunTo(slot, 8);
  ASSERT_TRUE(steps_->Pause(slot).ok());
  Drain();
  EXPECT_THAT(*steps_->Run(), IsEmpty());
  const absl::Span<const int32_t> so_far = steps_->tokens(slot);
  ExpectText(slot, Prompt(1, 5));
  std::vector<int32_t> both(so_far.begin(), so_far.end());
  const std::vector<int32_t> turn = Prompt(50, 11);  // longer than a chunk
  both.insert(both.end(), turn.begin(), turn.end());
  ASSERT_TRUE(steps_->Append(slot, turn).ok());
  RunTo(slot, static_cast<int>(both.size()) + 4);
  ExpectText(slot, both);
}

TEST_P(StepBuilderTest, AppendsANextTurnAfterTheTokensInFlight) {
  const SlotId slot = Join(Prompt(1, 5));
  RunTo(slot, 7);
  for (int i = steps_->num_in_flight(); i < GetParam(); ++i) ASSERT_TRUE(steps_->Launch().ok());
  const size_t expected = steps_->tokens(slot).size() + GetParam();
  ASSERT_TRUE(steps_->Append(slot, {{60, 61}}).ok());
  Drain();
  std::vector<int32_t> text = Continued(Prompt(1, 5), static_cast<int>(expected) - 5);
  text.push_back(60);
  text.push_back(61);
  EXPECT_EQ(steps_->tokens(slot), absl::MakeConstSpan(text));
  RunTo(slot, static_cast<int>(text.size()) + 3);
  ExpectText(slot, text);
}

TEST_P(StepBuilderTest, ForksContinueTheirOwnTexts) {
  const SlotId parent = Join(Prompt(1, 10));
  RunTo(parent, 13);
  const auto fork = steps_->Fork(parent);
  ASSERT_TRUE(fork.ok()) << fork.status();
  const std::vector<int32_t> shared(steps_->tokens(*fork).begin(), steps_->tokens(*fork).end());
  EXPECT_GE(steps_->num_cached_tokens(*fork), 10);
  ASSERT_TRUE(steps_->Append(*fork, {70}).ok());
  RunTo(*fork, 20);
  std::vector<int32_t> text = shared;
  text.push_back(70);
  ExpectText(*fork, text);
  ExpectText(parent, Prompt(1, 10));
  ASSERT_TRUE(steps_->Leave(parent).ok());
  ASSERT_TRUE(steps_->Leave(*fork).ok());
  Drain();
  steps_->blocks().CheckInvariants();
}

TEST_P(StepBuilderTest, PassesLogitsRequestsWithCopiedBiases) {
  std::vector<LogitBias> biases = {{.token = 4, .bias = 2}};
  LogitsRequest request = {.params = {.num_biases = 1, .num_log_probs = 1}};
  request.biases = biases;
  ASSERT_TRUE(steps_->Join(Prompt(1, 3), {.logits = request}).ok());
  biases[0].token = 99;  // Join() has already read it
  ASSERT_TRUE(steps_->Run().ok());
  EXPECT_EQ(runner_->num_requests, 1);
  ASSERT_THAT(runner_->last_biases, SizeIs(1));
  EXPECT_EQ(runner_->last_biases[0].token, 4);
}

// ---- Errors.

TEST_P(StepBuilderTest, RejectsPromptsThatCanNeverBeComputed) {
  EXPECT_EQ(JoinCode({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JoinCode(Prompt(1, 41)), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(steps_->Join(Prompt(1, 41)).status().message()),
              HasSubstr("prompt must fit max_length(): expected at most 40 tokens, got 41"));
  EXPECT_EQ(JoinCode({kVocab}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JoinCode({1}, {.sampling = {.temperature = -1}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JoinCode({1}, {.logits = LogitsRequest{.params = {.num_log_probs = 9}}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(steps_->num_sequences(), 0);
  EXPECT_EQ(steps_->blocks().num_sequences(), 0);
}

TEST_P(StepBuilderTest, RejectsCallsForSlotsWithoutASequence) {
  for (const SlotId slot : {SlotId(-1), SlotId(0), SlotId(3)}) {
    EXPECT_EQ(steps_->Leave(slot).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(steps_->Pause(slot).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(steps_->Append(slot, {1}).code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(steps_->Fork(slot).status().code(), absl::StatusCode::kNotFound);
  }
  const SlotId slot = Join(Prompt(1, 3));
  EXPECT_TRUE(steps_->Leave(slot).ok());
  EXPECT_EQ(steps_->Leave(slot).code(), absl::StatusCode::kNotFound);
}

TEST_P(StepBuilderTest, RejectsMoreSequencesThanSlots) {
  for (int i = 0; i < 3; ++i) Join(Prompt(i, 2));
  EXPECT_EQ(JoinCode(Prompt(1, 3)), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(steps_->Fork(SlotId(0)).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(steps_->Leave(SlotId(1)).ok());
  EXPECT_EQ(Join(Prompt(1, 3)), SlotId(1));
}

TEST_P(StepBuilderTest, RejectsTooManyAndTooFewSteps) {
  EXPECT_EQ(steps_->Await().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(*steps_->Launch());  // no sequence
  EXPECT_THAT(*steps_->Run(), IsEmpty());
  Join(Prompt(1, 3));
  for (int i = 0; i < GetParam(); ++i) EXPECT_TRUE(*steps_->Launch());
  EXPECT_EQ(steps_->Launch().status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(StepBuilderTest, RejectsOptionsAndTurnsThatDoNotFit) {
  EXPECT_EQ(StepBuilder::Create(*runner_, {.max_chunk = -1}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const SlotId slot = Join(Prompt(1, 30));
  EXPECT_EQ(steps_->Append(slot, Prompt(1, 11)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(steps_->Append(slot, {-1}).code(), absl::StatusCode::kInvalidArgument);
  RunTo(slot, 32);
  ExpectText(slot, Prompt(1, 30));
}

// ---- Block shortage and failures.

TEST_P(StepBuilderTest, ContinuesAfterALeaveIfBlocksRunOut) {
  RunnerShape shape = WithSteps(GetParam());
  shape.num_blocks = 9;  // 8 blocks: 32 tokens
  Make(shape, {.prefix_reuse = PrefixReuse::kOff});
  EXPECT_EQ(steps_->max_length(), 32);
  const SlotId a = Join(Prompt(1, 14)), b = Join(Prompt(2, 13));
  EXPECT_EQ(JoinCode(Prompt(3, 4)), absl::StatusCode::kResourceExhausted);
  absl::Status status;
  for (int i = 0; i < 50 && status.ok(); ++i) status = steps_->Run().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(steps_->Run().status().code(), absl::StatusCode::kResourceExhausted);
  ExpectText(a, Prompt(1, 14));
  ASSERT_TRUE(steps_->Leave(b).ok());
  RunTo(a, 30);
  ExpectText(a, Prompt(1, 14));
}

TEST_P(StepBuilderTest, RebuildsARejectedStep) {
  const SlotId gone = Join(Prompt(4, 6)), kept = Join(Prompt(1, 10));
  runner_->refuses = true;
  EXPECT_EQ(steps_->Run().status().message(), "no memory for the step");
  EXPECT_EQ(steps_->Launch().status().message(), "no memory for the step");
  runner_->refuses = false;
  ASSERT_TRUE(steps_->Leave(gone).ok());
  const SlotId other = Join(Prompt(8, 9));
  EXPECT_EQ(other, gone);
  RunTo(kept, 14);
  RunTo(other, 14);
  ExpectText(kept, Prompt(1, 10));
  ExpectText(other, Prompt(8, 9));
  EXPECT_THAT(steps_->failed_slots(), IsEmpty());
}

TEST_P(StepBuilderTest, FailsSequencesWhoseCopiesWereRejected) {
  Make(WithSteps(GetParam()), {.partial_hits = PartialHits::kCopied});
  const SlotId first = Join(Prompt(1, 12));
  RunTo(first, 14);
  Drain();
  std::vector<int32_t> other = Prompt(1, 11);
  other.back() += 1;
  const SlotId second = Join(other);
  runner_->refuses = true;
  EXPECT_FALSE(steps_->Launch().ok());
  runner_->refuses = false;
  EXPECT_THAT(steps_->failed_slots(), ElementsAre(second));
  EXPECT_EQ(steps_->Append(second, {1}).code(), absl::StatusCode::kFailedPrecondition);
  steps_->LeaveFailed();
  RunTo(first, 20);
  ExpectText(first, Prompt(1, 12));
}

TEST_P(StepBuilderTest, NamesTheSequencesOfAFailedStep) {
  const SlotId a = Join(Prompt(1, 3)), b = Join(Prompt(2, 4));
  RunTo(a, 6);
  Drain();
  ASSERT_TRUE(steps_->Pause(b).ok());
  runner_->fails_next_await = true;
  EXPECT_EQ(steps_->Run().status().message(), "the step failed");
  EXPECT_THAT(steps_->failed_slots(), ElementsAre(a));
  Drain();  // later steps of the failed sequence add no tokens
  const SlotId c = Join(Prompt(3, 5));
  steps_->LeaveFailed();
  EXPECT_THAT(steps_->failed_slots(), IsEmpty());
  EXPECT_FALSE(steps_->contains(a));
  ASSERT_TRUE(steps_->Append(b, {}).ok());
  RunTo(c, 12);
  ExpectText(b, Prompt(2, 4));
  ExpectText(c, Prompt(3, 5));
  steps_->blocks().CheckInvariants();
}

TEST_P(StepBuilderTest, FailsASequenceWithoutATokenAndForgetsItsKeys) {
  const SlotId slot = Join(Prompt(1, 8));
  runner_->next_row_is_nan = true;
  const auto step = steps_->Run();
  ASSERT_TRUE(step.ok());
  ASSERT_THAT(*step, SizeIs(1));
  EXPECT_EQ((*step)[0].token, kNanRow);
  EXPECT_TRUE((*step)[0].is_last);
  EXPECT_THAT(steps_->failed_slots(), ElementsAre(slot));
  EXPECT_THAT(steps_->tokens(slot), SizeIs(8));
  Drain();
  ASSERT_TRUE(steps_->Leave(slot).ok());
  const SlotId again = Join(Prompt(1, 8));
  EXPECT_EQ(steps_->num_cached_tokens(again), 0);
}

// ---- Cost.

TEST_P(StepBuilderTest, DecodesWithoutAllocations) {
  for (int i = 0; i < 3; ++i) Join(Prompt(i, 3));
  RunTo(SlotId(2), 10);
  const AllocationCounter allocations;
  for (int i = 0; i < 20; ++i) {
    const auto step = steps_->Run();
    ASSERT_TRUE(step.ok());
    ASSERT_EQ(step->size(), 3);  // a matcher would allocate
  }
  EXPECT_EQ(allocations.count(), 0);
}

// ---- Random traffic.

TEST_P(StepBuilderTest, KeepsAllTextsInRandomTraffic) {
  for (int seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](int least, int most) {
      return std::uniform_int_distribution<int>(least, most)(random);
    };
    RunnerShape shape = WithSteps(GetParam());
    shape.num_blocks = pick(14, 40);
    if (seed % 3 == 0) {
      shape.groups = {{}, {.retention = KvRetention::kSlidingWindow, .span = pick(1, 9)}};
    }
    Make(shape, {.partial_hits = seed % 2 == 0 ? PartialHits::kCopied : PartialHits::kNone,
                 .max_chunk = pick(0, 5)});
    std::vector<std::vector<int32_t>> prompts(shape.max_num_seqs);  // by slot; empty: not checked
    for (int i = 0; i < 150; ++i) {
      const SlotId slot(pick(0, shape.max_num_seqs - 1));
      const int action = pick(0, 9);
      runner_->refuses = pick(0, 19) == 0;
      if (pick(0, 29) == 0) runner_->fails_next_await = true;
      if (action < 3) {
        std::vector<int32_t> prompt = Prompt(pick(0, 1), pick(1, 20));
        if (pick(0, 1) == 0) prompt.back() = pick(0, kVocab - 1);
        const auto joined = steps_->Join(prompt);
        if (joined.ok()) prompts[joined->value()] = prompt;
      } else if (action == 3 && steps_->contains(slot)) {
        ASSERT_TRUE(steps_->Leave(slot).ok());
      } else if (action == 4) {
        const auto fork = steps_->Fork(slot);
        if (fork.ok()) prompts[fork->value()] = prompts[slot.value()];
      } else {
        const auto step = steps_->Run();
        if (!step.ok() && absl::IsResourceExhausted(step.status()) && steps_->contains(slot)) {
          ASSERT_TRUE(steps_->Leave(slot).ok());
        }
        ASSERT_NE(step.status().code(), absl::StatusCode::kInvalidArgument) << step.status();
        if (pick(0, 2) == 0) steps_->LeaveFailed();
      }
      for (int s = 0; s < shape.max_num_seqs; ++s) {
        if (steps_->contains(SlotId(s))) ExpectText(SlotId(s), prompts[s]);
      }
      ASSERT_FALSE(HasFailure());
    }
    runner_->fails_next_await = false;
    for (int s = 0; s < shape.max_num_seqs; ++s) steps_->Leave(SlotId(s)).IgnoreError();
    Drain();
    steps_->blocks().CheckInvariants();
    EXPECT_EQ(steps_->blocks().pool().num_used(), 0);
  }
}

}  // namespace
}  // namespace reprise
