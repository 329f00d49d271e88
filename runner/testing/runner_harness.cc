#include "reprise/runner/testing/runner_harness.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gtest/gtest.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/runner_shape.h"

namespace reprise {
namespace {

// Written to a batch's memory after its launch; a test would detect the use of this value.
constexpr int32_t kScrambled = 0x7ead0001;

}  // namespace

absl::StatusOr<std::unique_ptr<RunnerHarness>> RunnerHarness::Create(
    const ModelRunnerOptions& options, const ToyModelOptions& model) {
  auto harness = std::unique_ptr<RunnerHarness>(new RunnerHarness(model, options.max_num_seqs));
  ModelRunnerOptions with_logits = options;
  with_logits.logits.step_logits = StepLogits::kOfEvery;
  REPRISE_ASSIGN_OR_RETURN(harness->runner_, ModelRunner::Create(&harness->model_, with_logits));
  ModelRunner& runner = *harness->runner_;
  REPRISE_ASSIGN_OR_RETURN(BlockManager blocks,
                           BlockManager::Create(BlockOptionsOf(runner.shape())));
  harness->blocks_ = std::make_unique<BlockManager>(std::move(blocks));
  const c10::StreamGuard guard(runner.stream());  // ordered before the steps
  REPRISE_RETURN_IF_ERROR(runner.kv_cache().Fill(std::numeric_limits<float>::quiet_NaN()));
  return harness;
}

RunnerHarness::RunnerHarness(const ToyModelOptions& model, int max_num_seqs)
    : tolerance_(model.dtype == DType::kFloat32 ? 1e-4 : 0.05),
      model_(model),
      sequences_(max_num_seqs) {}

void RunnerHarness::Join(SlotId slot, std::vector<int32_t> prompt) {
  joins_.push_back(JoinOf(slot, {}, prompt.size()));
  sequences_[slot.value()] = {.text = std::move(prompt), .is_new = true};
}

void RunnerHarness::Leave(SlotId slot) {
  const absl::Status freed = blocks_->Free(slot);
  EXPECT_TRUE(freed.ok()) << freed;
  leaves_.push_back(slot);
}

void RunnerHarness::Fork(SlotId from, SlotId to, int32_t last_token) {
  std::vector<int32_t> text = sequences_[from.value()].text;
  text.back() = last_token;
  const int num_cached = static_cast<int>(text.size()) - 1;
  absl::Status forked = blocks_->CommitUnknown(from, num_cached - blocks_->num_committed(from));
  forked.Update(blocks_->Fork(from, to));
  EXPECT_TRUE(forked.ok()) << forked;
  joins_.push_back({.slot = to, .seq_len = num_cached, .prompt_len = num_cached + 1});
  sequences_[to.value()] = {.text = std::move(text), .is_fork = true};
}

absl::Status RunnerHarness::Step(const std::vector<SlotId>& slots) {
  std::vector<ScheduledRow> rows;
  std::vector<std::vector<int32_t>> prompts;
  for (const SlotId slot : slots) {
    Sequence& sequence = sequences_[slot.value()];
    prompts.push_back(sequence.is_new    ? sequence.text
                      : sequence.is_fork ? std::vector<int32_t>{sequence.text.back()}
                                         : std::vector<int32_t>());
    REPRISE_RETURN_IF_ERROR(sequence.is_new
                                ? blocks_->Add(slot, static_cast<int>(sequence.text.size()))
                                : blocks_->Append(slot, 1));
    sequence.is_new = sequence.is_fork = false;
  }
  for (size_t i = 0; i < slots.size(); ++i)
    rows.push_back({.slot = slots[i], .tokens = prompts[i]});
  const absl::Span<const BlockTableUpdate> taken = blocks_->TakeUpdates();
  std::vector<BlockTableUpdate> updates(taken.begin(), taken.end());
  const absl::Span<const BlockCopy> taken_copies = blocks_->TakeCopies();
  std::vector<BlockCopy> copies(taken_copies.begin(), taken_copies.end());

  REPRISE_ASSIGN_OR_RETURN(const int64_t ticket, runner_->Launch({.leaves = leaves_,
                                                                  .joins = joins_,
                                                                  .updates = updates,
                                                                  .copies = copies,
                                                                  .rows = rows}));
  for (BlockTableUpdate& update : updates) {
    update = {.slot = SlotId(kScrambled), .column = kScrambled, .block = BlockId(kScrambled)};
  }
  for (BlockCopy& copy : copies) copy = {kScrambled, kScrambled};
  for (std::vector<int32_t>& prompt : prompts) prompt.assign(prompt.size(), kScrambled);
  for (ScheduledRow& row : rows) row = {.slot = SlotId(kScrambled)};
  leaves_.assign(leaves_.size(), SlotId(kScrambled));
  joins_.assign(joins_.size(), {.slot = SlotId(kScrambled)});
  leaves_.clear();
  joins_.clear();

  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(ticket));
  decision_ = result.decision;
  REPRISE_ASSIGN_OR_RETURN(logits_, runner_->logits(ticket));
  rows_ = slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    sequences_[slots[i].value()].text.push_back(result.tokens[i]);
  }
  return absl::OkStatus();
}

void RunnerHarness::ExpectTokensAndLogits() {
  for (size_t row = 0; row < rows_.size(); ++row) {
    SCOPED_TRACE(testing::Message() << "row " << row << " of " << rows_.size());
    const at::Tensor got = logits()[static_cast<int64_t>(row)].to(at::kFloat);
    EXPECT_EQ(got[sequences_[rows_[row].value()].text.back()].item<float>(),
              got.max().item<float>());
  }
  const double error = MaxLogitsError();
  EXPECT_LT(error, tolerance_);
  EXPECT_FALSE(std::isnan(error));
}

double RunnerHarness::MaxLogitsError() const {
  double largest = 0;
  for (size_t row = 0; row < rows_.size(); ++row) {
    const std::vector<int32_t>& text = sequences_[rows_[row].value()].text;
    const at::Tensor got = logits()[static_cast<int64_t>(row)].to(at::kCPU, at::kFloat);
    const at::Tensor want =
        model_.DenseLogits(absl::MakeConstSpan(text).subspan(0, text.size() - 1)).cpu();
    const double error = (got - want).abs().max().item<double>();
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

}  // namespace reprise
