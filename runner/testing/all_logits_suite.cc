#include "reprise/runner/testing/all_logits_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/log_softmax.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(AllLogitsSuite);

namespace {

using ::testing::HasSubstr;

constexpr int kVocab = 61;
constexpr int kBlockSize = 16;

using Text = std::vector<int32_t>;

Text RandomText(std::mt19937& random, int length) {
  Text text;
  for (int i = 0; i < length; ++i) text.push_back(static_cast<int32_t>(random() % kVocab));
  return text;
}

absl::Span<const int32_t> Part(const Text& text, size_t first, size_t count) {
  return absl::MakeConstSpan(text).subspan(first, count);
}

// A runner in which each slot has blocks for the longest sequence.
class Runner {
 public:
  Runner(c10::Device device, ModelRunnerOptions options, ToyModelOptions model = {})
      : model_(WithSizes(device, options, model)) {
    options.cache.block_size = kBlockSize;
    auto made = ModelRunner::Create(&model_, options);
    EXPECT_TRUE(made.ok()) << made.status();
    runner_ = *std::move(made);
  }

  // The slot's next sequence enters with the next batch.
  void Join(int slot, int num_log_probs = -1, std::vector<LogitBias> biases = {}) {
    joins_.push_back({.slot = SlotId(slot), .seq_len = 0, .prompt_len = 0});  // not known yet
    biases_ = std::move(biases);  // only the last request has biases
    requests_.push_back(
        {.slot = SlotId(slot),
         .params = {.num_log_probs = num_log_probs, .num_known_log_probs = num_log_probs},
         .biases = biases_});
    const int num_blocks = runner_->shape().max_blocks();
    for (int column = 0; column < num_blocks; ++column) {
      updates_.push_back({.slot = SlotId(slot),
                          .column = column,
                          .block = BlockId(1 + num_blocks * slot + column)});
    }
  }
  void Leave(int slot) { leaves_.push_back(SlotId(slot)); }

  absl::StatusOr<int64_t> Launch(const std::vector<ScheduledRow>& rows) {
    absl::StatusOr<int64_t> ticket = runner_->Launch({.leaves = leaves_,
                                                      .joins = joins_,
                                                      .logits_requests = requests_,
                                                      .updates = updates_,
                                                      .rows = rows});
    if (!ticket.ok()) return ticket;
    leaves_.clear();
    joins_.clear();
    requests_.clear();
    updates_.clear();
    return ticket;
  }
  absl::StatusOr<StepResult> Step(const std::vector<ScheduledRow>& rows) {
    const absl::StatusOr<int64_t> ticket = Launch(rows);
    if (!ticket.ok()) return ticket.status();
    return runner_->Await(*ticket);
  }

  // Returns the logits of the step that was awaited last.
  at::Tensor logits(const StepResult& result) const { return *runner_->logits(result.step); }
  at::Tensor earlier_logits(const StepResult& result) const {
    return *runner_->earlier_logits(result.step);
  }

  const ToyModel& model() const { return model_; }
  ModelRunner* operator->() { return runner_.get(); }

 private:
  static ToyModelOptions WithSizes(c10::Device device, const ModelRunnerOptions& options,
                                   ToyModelOptions model) {
    model.vocab_size = kVocab;
    model.max_position = options.max_seq_len.value_or(model.max_position);
    model.device = device;
    return model;
  }

  ToyModel model_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<SlotId> leaves_;
  std::vector<SlotJoin> joins_;
  std::vector<LogitBias> biases_;
  std::vector<LogitsRequest> requests_;
  std::vector<BlockTableUpdate> updates_;
};

#define ASSERT_STEP(variable, expression)                   \
  const absl::StatusOr<StepResult> variable = (expression); \
  ASSERT_TRUE(variable.ok()) << variable.status()

double Distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  return (a.cpu().to(at::kDouble) - b.cpu().to(at::kDouble)).abs().max().item<double>();
}

at::Tensor LogProbs(const at::Tensor& logits) {
  return logits.cpu().to(at::kDouble).log_softmax(-1);
}

// Random chunks of texts in several slots, with all or only the last logits, and decodes between
// them.
TEST_P(AllLogitsSuite, EarlierLogitsMatchShorterTexts) {
  constexpr int kSlots = 4;
  Runner runner(GetParam(),
                {.max_num_seqs = kSlots,
                 .max_num_tokens = 64,
                 .max_seq_len = 64,
                 .logits = {.step_logits = StepLogits::kOfEvery, .max_earlier_logits = 40}});
  std::mt19937 random(21);
  struct Sequence {
    Text text;
    size_t num_computed = 0;
  };
  Sequence sequences[kSlots];
  int64_t num_earlier = 0;
  int num_mixed = 0;
  for (int step = 0; step < 120; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    std::vector<ScheduledRow> rows;
    int num_earlier_of_step = 0;
    for (int slot = 0; slot < kSlots; ++slot) {
      Sequence& sequence = sequences[slot];
      const bool decodes = sequence.num_computed + 1 == sequence.text.size();
      if (sequence.text.empty() || sequence.text.size() > 60 || (decodes && random() % 3 == 0)) {
        if (!sequence.text.empty()) runner.Leave(slot);
        sequence = {.text = RandomText(random, 1 + random() % 40)};
        runner.Join(slot);
      } else if (random() % 4 == 0) {
        continue;
      }
      const size_t num_left = sequence.text.size() - sequence.num_computed;
      const size_t count = std::min<size_t>(num_left, 1 + random() % 15);
      ScheduledRow row = {.slot = SlotId(slot),
                          .tokens = Part(sequence.text, sequence.num_computed, count)};
      if (count < num_left) row.output = RowOutput::kNone;
      row.logits = RowLogits::kAll;
      if (random() % 3 == 0 || num_earlier_of_step + count > 40) row.logits = RowLogits::kLast;
      num_earlier_of_step += row.num_earlier_logits();
      rows.push_back(row);
    }
    std::shuffle(rows.begin(), rows.end(), random);
    ASSERT_STEP(result, runner.Step(rows));

    EXPECT_EQ(result->decision.key.num_earlier_logits, num_earlier_of_step);
    EXPECT_EQ(result->decision.reason == EagerReason::kEarlierLogits, num_earlier_of_step > 0);
    ASSERT_EQ(runner.earlier_logits(*result).defined(), num_earlier_of_step > 0);
    if (num_earlier_of_step > 0) {
      ASSERT_EQ(runner.earlier_logits(*result).size(0), num_earlier_of_step);
    }
    int64_t first = 0;
    bool is_plain = false;
    for (size_t r = 0; r < rows.size(); ++r) {
      Sequence& sequence = sequences[rows[r].slot.value()];
      const int64_t last = static_cast<int64_t>(sequence.num_computed) + rows[r].query_len() - 1;
      const at::Tensor dense = runner.model().AllDenseLogits(sequence.text);
      EXPECT_LT(Distance(runner.logits(*result)[static_cast<int64_t>(r)], dense[last]), 1e-4);
      const int64_t count = rows[r].num_earlier_logits();
      is_plain |= count == 0;
      if (count > 0) {
        EXPECT_LT(Distance(runner.earlier_logits(*result).narrow(0, first, count),
                           dense.narrow(0, last - count, count)),
                  1e-4);
      }
      first += count;
      sequence.num_computed = static_cast<size_t>(last) + 1;
      if (rows[r].output == RowOutput::kToken) sequence.text.push_back(result->tokens[r]);
    }
    num_earlier += num_earlier_of_step;
    num_mixed += is_plain && num_earlier_of_step > 0;
  }
  EXPECT_GT(num_earlier, 300);
  EXPECT_GT(num_mixed, 10);
}

// The model's GEMMs do not depend on the number of rows, so results must be bitwise independent of
// it.
TEST_P(AllLogitsSuite, EarlierLogitsMatchTokenByTokenStepsBitwiseOnACpu) {
  if (!GetParam().is_cpu()) GTEST_SKIP() << "products of a GPU depend on the number of rows";
  const ModelRunnerOptions options = {.max_num_seqs = 3,
                                      .max_num_tokens = 128,
                                      .max_seq_len = 64,
                                      .logits = {.max_earlier_logits = 100},
                                      .device = {.batch_invariance = BatchInvariance::kOn}};
  std::mt19937 random(22);
  const Text text = RandomText(random, 40);
  const Text other = RandomText(random, 23);
  Runner one_by_one(GetParam(), options, {.row_by_row = true});
  one_by_one.Join(1);
  std::vector<at::Tensor> expected;
  for (size_t i = 0; i < text.size(); ++i) {
    ASSERT_STEP(result, one_by_one.Step({{.slot = SlotId(1), .tokens = Part(text, i, 1)}}));
    expected.push_back(one_by_one.logits(*result).clone());
  }
  const at::Tensor all = at::cat(expected);

  Runner at_once(GetParam(), options, {.row_by_row = true});
  at_once.Join(0);
  at_once.Join(2);
  ASSERT_STEP(result,
              at_once.Step({{.slot = SlotId(2), .tokens = other, .logits = RowLogits::kAll},
                            {.slot = SlotId(0), .tokens = text, .logits = RowLogits::kAll}}));
  EXPECT_TRUE(at::equal(at_once.earlier_logits(*result).narrow(0, 22, 39), all.narrow(0, 0, 39)));
  EXPECT_TRUE(at::equal(at_once.logits(*result)[1], all[39]));
}

// Returns log P(text[i] | text[0 .. i - 1]) for each i >= 1, computed in steps of the given chunks,
// with two steps in flight.
std::vector<float> PromptLogProbs(Runner& runner, const Text& text,
                                  const std::vector<int>& chunks) {
  std::vector<float> log_probs;
  const auto take = [&](int64_t ticket) {
    const absl::StatusOr<StepResult> result = runner->Await(ticket);
    ASSERT_TRUE(result.ok()) << result.status();
    for (const float log_prob : result->earlier_log_probs.token_log_probs) {
      log_probs.push_back(log_prob);
    }
    if (log_probs.size() + 1 == text.size()) return;  // the last token has no known successor
    log_probs.push_back(result->log_probs.token_log_probs[0]);
  };
  runner.Join(0, /*num_log_probs=*/2);
  std::vector<int64_t> in_flight;
  size_t first = 0;
  for (const int count : chunks) {
    ScheduledRow row = {.slot = SlotId(0),
                        .tokens = Part(text, first, count),
                        .output = RowOutput::kNone,
                        .logits = RowLogits::kAll};
    first += count;
    if (first < text.size()) row.next_token = text[first];
    const absl::StatusOr<int64_t> ticket = runner.Launch({row});
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return {};
    in_flight.push_back(*ticket);
    if (in_flight.size() == 2) {
      take(in_flight.front());
      in_flight.erase(in_flight.begin());
    }
  }
  for (const int64_t ticket : in_flight) take(ticket);
  return log_probs;
}

TEST_P(AllLogitsSuite, ChunkedPromptLogProbsMatchOnePass) {
  std::mt19937 random(23);
  constexpr int kLength = 2000;
  const Text text = RandomText(random, kLength);
  ModelRunnerOptions options = {.max_num_seqs = 2,
                                .max_num_tokens = kLength,
                                .max_seq_len = kLength,
                                .max_steps_in_flight = 2,
                                .logits = {.max_log_probs = 2, .max_earlier_logits = kLength}};
  Runner whole(GetParam(), options);
  const std::vector<float> at_once = PromptLogProbs(whole, text, {kLength});
  options.max_num_tokens = options.logits.max_earlier_logits = 300;
  Runner chunked(GetParam(), options);
  std::vector<int> chunks;
  for (int left = kLength; left > 0; left -= chunks.back()) {
    chunks.push_back(std::min<int>(left, 1 + random() % 300));
  }
  const std::vector<float> in_chunks = PromptLogProbs(chunked, text, chunks);

  const at::Tensor expected = LogProbs(whole.model().AllDenseLogits(text));
  ASSERT_EQ(at_once.size(), kLength - 1);
  ASSERT_EQ(in_chunks.size(), kLength - 1);
  const auto log_probs = expected.accessor<double, 2>();
  double from_one_pass = 0;
  double from_dense = 0;
  for (int i = 0; i + 1 < kLength; ++i) {
    ASSERT_FALSE(std::isnan(in_chunks[i])) << i;
    from_one_pass = std::max<double>(from_one_pass, std::abs(in_chunks[i] - at_once[i]));
    from_dense = std::max<double>(from_dense, std::abs(at_once[i] - log_probs[i][text[i + 1]]));
  }
  EXPECT_LT(from_one_pass, 1e-4);
  EXPECT_LT(from_dense, 1e-4);
}

TEST_P(AllLogitsSuite, NoStageAppliesToEarlierLogitsAndTheirTopIsReported) {
  Runner runner(GetParam(), {.max_num_seqs = 3,
                             .max_num_tokens = 64,
                             .max_seq_len = 64,
                             .max_steps_in_flight = 2,
                             .logits = {.max_biases = 1,
                                        .max_log_probs = 4,
                                        .step_logits = StepLogits::kOfEvery,
                                        .max_earlier_logits = 60}});
  std::mt19937 random(24);
  const Text text = RandomText(random, 9);
  const Text other = RandomText(random, 4);
  const Text unasked = RandomText(random, 5);
  runner.Join(0);
  runner.Join(2, /*num_log_probs=*/4);
  runner.Join(1, /*num_log_probs=*/3, {{.token = 30, .bias = 1e4f}});
  ASSERT_STEP(result,
              runner.Step({{.slot = SlotId(0), .tokens = unasked, .logits = RowLogits::kAll},
                           {.slot = SlotId(1), .tokens = text, .logits = RowLogits::kAll},
                           {.slot = SlotId(2), .tokens = other}}));
  EXPECT_EQ(result->tokens[1], 30);  // due to the bias
  const at::Tensor dense = runner.model().AllDenseLogits(text);
  ASSERT_EQ(runner.earlier_logits(*result).size(0), 4 + 8);
  EXPECT_LT(Distance(runner.earlier_logits(*result).narrow(0, 4, 8), dense.narrow(0, 0, 8)), 1e-4);
  // The last logits of sampling rows are raw, too.
  EXPECT_NEAR(result->log_probs.token_log_probs[1],
              LogProbs(runner.logits(*result)[1])[30].item<double>(), 1e-5);
  EXPECT_NEAR(result->log_probs.token_log_probs[2],
              LogProbs(runner.logits(*result)[2])[result->tokens[2]].item<double>(), 1e-5);

  const RowLogProbsView& earlier = result->earlier_log_probs;
  ASSERT_EQ(earlier.token_log_probs.size(), 12);
  for (int i = 0; i < 8; ++i) {
    SCOPED_TRACE(testing::Message() << "token " << i);
    const at::Tensor log_probs = LogProbs(runner.earlier_logits(*result)[4 + i]);
    const double of_next = log_probs[text[i + 1]].item<double>();
    EXPECT_NEAR(earlier.token_log_probs[4 + i], of_next, 1e-5);
    EXPECT_EQ(earlier.token_ranks[4 + i], 1 + (log_probs > of_next).sum().item<int64_t>());
    EXPECT_EQ(earlier.top_tokens_of(4 + i)[0], log_probs.argmax().item<int64_t>());
    for (int k = 0; k < 3; ++k) {
      EXPECT_NEAR(earlier.top_log_probs_of(4 + i)[k],
                  log_probs[earlier.top_tokens_of(4 + i)[k]].item<double>(), 1e-5);
    }
  }
}

TEST_P(AllLogitsSuite, GraphScoresForcedTokens) {
  Runner runner(GetParam(), {.max_num_seqs = 2,
                             .max_num_tokens = 32,
                             .max_seq_len = 64,
                             .logits = {.max_log_probs = 0, .step_logits = StepLogits::kOfEvery}});
  std::mt19937 random(25);
  const Text text = RandomText(random, 12);
  const Text prompt = RandomText(random, 3);
  runner.Join(0, /*num_log_probs=*/0);
  runner.Join(1, /*num_log_probs=*/0);
  ASSERT_STEP(first, runner.Step({{.slot = SlotId(0), .tokens = prompt}}));
  // In one step, slot 1 has a forced token and slot 0 decodes.
  for (size_t i = 0; i + 1 < text.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "token " << i);
    ASSERT_STEP(result, runner.Step({{.slot = SlotId(0)},
                                     {.slot = SlotId(1),
                                      .tokens = Part(text, i, 1),
                                      .output = RowOutput::kNone,
                                      .next_token = text[i + 1]}}));
    EXPECT_EQ(result->decision.kind, GraphDecision::Kind::kReplay);
    EXPECT_EQ(result->tokens[1], kNotSampled);
    for (const auto& [row, token] : {std::pair(0, result->tokens[0]), {1, text[i + 1]}}) {
      EXPECT_NEAR(result->log_probs.token_log_probs[row],
                  LogProbs(runner.logits(*result)[row])[token].item<double>(), 1e-5);
    }
    EXPECT_TRUE(result->earlier_log_probs.token_log_probs.empty());
  }
}

TEST_P(AllLogitsSuite, StepsWithoutEarlierLogitsMatchARunnerWithoutThem) {
  ModelRunnerOptions options = {
      .max_num_seqs = 4,
      .max_num_tokens = 64,
      .max_seq_len = 64,
      .logits = {.max_log_probs = 1, .step_logits = StepLogits::kOfEvery}};
  Runner without(GetParam(), options);
  options.logits.max_earlier_logits = 64;
  Runner with(GetParam(), options);
  std::mt19937 random(26);
  std::vector<Text> prompts;
  std::vector<ScheduledRow> rows;
  for (int slot = 0; slot < 3; ++slot) prompts.push_back(RandomText(random, 4 + slot));
  for (int slot = 0; slot < 3; ++slot) {
    without.Join(slot, /*num_log_probs=*/1);
    with.Join(slot, /*num_log_probs=*/1);
    rows.push_back({.slot = SlotId(slot), .tokens = prompts[slot]});
  }
  ASSERT_STEP(plain, without.Step(rows));
  for (ScheduledRow& row : rows) row.logits = RowLogits::kAll;
  ASSERT_STEP(all, with.Step(rows));
  EXPECT_EQ(all->tokens, plain->tokens);
  for (int step = 0; step < 12; ++step) {
    rows.clear();
    for (int slot = 0; slot < 1 + step % 3; ++slot) rows.push_back({.slot = SlotId(slot)});
    ASSERT_STEP(expected, without.Step(rows));
    ASSERT_STEP(result, with.Step(rows));
    EXPECT_EQ(result->tokens, expected->tokens);
    EXPECT_EQ(result->decision, expected->decision);
    EXPECT_EQ(result->decision.kind, GraphDecision::Kind::kReplay);
    EXPECT_FALSE(with.earlier_logits(*result).defined());
    EXPECT_TRUE(result->earlier_log_probs.token_log_probs.empty());
    EXPECT_EQ(result->log_probs.token_log_probs.size(), rows.size());
    EXPECT_LT(Distance(with.logits(*result), without.logits(*expected)), 1e-4);
  }
}

TEST_P(AllLogitsSuite, EarlierLogitsFollowStepLogits) {
  std::mt19937 random(27);
  const Text text = RandomText(random, 9);
  for (const int max_steps_in_flight : {1, 2}) {
    Runner runner(GetParam(), {.max_num_seqs = 2,
                               .max_num_tokens = 32,
                               .max_seq_len = 64,
                               .max_steps_in_flight = max_steps_in_flight,
                               .logits = {.max_earlier_logits = 31}});
    runner.Join(0);
    ASSERT_STEP(result,
                runner.Step({{.slot = SlotId(0), .tokens = text, .logits = RowLogits::kAll}}));
    const bool are_kept = max_steps_in_flight == 1;
    EXPECT_EQ(runner->logits(result->step).ok(), are_kept);
    EXPECT_EQ(runner->earlier_logits(result->step).ok(), are_kept);
    EXPECT_TRUE(result->earlier_log_probs.token_log_probs.empty());  // not enabled
    if (!are_kept) continue;
    EXPECT_LT(Distance(runner.earlier_logits(*result),
                       runner.model().AllDenseLogits(text).narrow(0, 0, 8)),
              1e-4);
  }
}

TEST_P(AllLogitsSuite, RejectsRequestsBeyondTheOptionsAndChangesNothing) {
  std::mt19937 random(28);
  const Text text = RandomText(random, 9);
  for (const int max_earlier_logits : {0, 7}) {
    Runner runner(GetParam(), {.max_num_seqs = 2,
                               .max_num_tokens = 32,
                               .max_seq_len = 64,
                               .logits = {.max_earlier_logits = max_earlier_logits}});
    ScheduledRow row = {.slot = SlotId(0), .tokens = text, .logits = RowLogits::kAll};
    const auto refusal = [&] {
      const absl::Status status = runner.Step({row}).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      return std::string(status.message());
    };
    runner.Join(0);
    EXPECT_THAT(refusal(), HasSubstr("max_earlier_logits: expected at most " +
                                     std::to_string(max_earlier_logits) + ", got 8 or more"));
    row.logits = RowLogits::kLast;
    row.next_token = 3;
    EXPECT_THAT(refusal(), HasSubstr("next_token of slot 0 is for rows with RowOutput::kNone"));
    row.output = RowOutput::kNone;
    row.next_token = kVocab;
    EXPECT_THAT(refusal(), HasSubstr("next_token of slot 0 must be -1 or in [0, 61), got 61"));
    // Slot 0 is still free.
    row = {.slot = SlotId(0), .tokens = text};
    ASSERT_STEP(result, runner.Step({row}));
    EXPECT_EQ(result->tokens.size(), 1);
  }
}

}  // namespace
}  // namespace reprise
