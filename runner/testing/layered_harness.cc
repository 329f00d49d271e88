#include "reprise/runner/testing/layered_harness.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/runner_shape.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<LayeredHarness>> LayeredHarness::Create(
    const ModelRunnerOptions& options, const LayeredModelOptions& model) {
  auto harness = std::unique_ptr<LayeredHarness>(new LayeredHarness(model, options.max_num_seqs));
  ModelRunnerOptions with_logits = options;
  with_logits.logits.step_logits = StepLogits::kOfEvery;
  REPRISE_ASSIGN_OR_RETURN(harness->runner_, ModelRunner::Create(&harness->model_, with_logits));
  ModelRunner& runner = *harness->runner_;
  REPRISE_ASSIGN_OR_RETURN(BlockManager blocks,
                           BlockManager::Create(BlockOptionsOf(runner.shape())));
  harness->blocks_ = std::make_unique<BlockManager>(std::move(blocks));
  harness->was_held_.resize(runner.shape().num_blocks);
  REPRISE_RETURN_IF_ERROR(runner.kv_cache().Fill(std::numeric_limits<float>::quiet_NaN()));
  return harness;
}

LayeredHarness::LayeredHarness(const LayeredModelOptions& model, int max_num_seqs)
    : model_(model), sequences_(max_num_seqs) {}

void LayeredHarness::Join(SlotId slot, LayeredSequence sequence) {
  sequence.num_prompt_tokens = static_cast<int>(sequence.text.size());
  sequences_[slot.value()] = std::move(sequence);
}

void LayeredHarness::Leave(SlotId slot) {
  const absl::Status freed = blocks_->Free(slot);
  EXPECT_TRUE(freed.ok()) << freed;
  leaves_.push_back(slot);
}

bool LayeredHarness::decodes(SlotId slot) const {
  const LayeredSequence& sequence = sequences_[slot.value()];
  return static_cast<int>(sequence.text.size()) - sequence.num_computed == 1;
}

int LayeredHarness::num_blocks(SlotId slot, int group) const {
  const auto row = blocks_->blocks(slot, group);
  return static_cast<int>(
      std::count_if(row.begin(), row.end(), [](BlockId block) { return block.value() != 0; }));
}

absl::Status LayeredHarness::MakeRoom(SlotId slot, int num_tokens) {
  LayeredSequence& sequence = sequences_[slot.value()];
  if (!sequence.is_new) return blocks_->Append(slot, num_tokens);
  sequence.is_new = false;
  const int num_encoder_tokens = static_cast<int>(sequence.encoder_text.size());
  REPRISE_RETURN_IF_ERROR(
      blocks_
          ->Add(slot, {.tokens = absl::MakeConstSpan(sequence.text).subspan(0, num_tokens),
                       .num_encoder_tokens = num_encoder_tokens})
          .status());
  joins_.push_back(JoinOf(slot, {}, sequence.text.size()));
  joins_.back().num_encoder_tokens = num_encoder_tokens;
  if (num_encoder_tokens > 0) {
    encodes_.push_back({.slot = slot, .tokens = sequence.encoder_text});
  }
  return absl::OkStatus();
}

absl::Status LayeredHarness::Step(const std::vector<SlotId>& slots, int max_chunk) {
  std::vector<ScheduledRow> rows;
  rows_.clear();
  for (const SlotId slot : slots) {
    LayeredSequence& sequence = sequences_[slot.value()];
    const int num_left = static_cast<int>(sequence.text.size()) - sequence.num_computed;
    const int num_tokens = std::min(num_left, max_chunk);
    REPRISE_RETURN_IF_ERROR(MakeRoom(slot, num_tokens));
    ScheduledRow row = {.slot = slot};
    // The runner takes sampled tokens from the device.
    if (sequence.num_computed < sequence.num_prompt_tokens) {
      row.tokens = absl::MakeConstSpan(sequence.text).subspan(sequence.num_computed, num_tokens);
    }
    if (num_tokens < num_left) row.output = RowOutput::kNone;
    rows.push_back(row);
  }
  PoisonFreeBlocks();
  const absl::Span<const BlockTableUpdate> updates = blocks_->TakeUpdates();
  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Step({.leaves = leaves_,
                                                                   .joins = joins_,
                                                                   .updates = updates,
                                                                   .encodes = encodes_,
                                                                   .rows = rows}));
  REPRISE_ASSIGN_OR_RETURN(logits_, runner_->logits(result.step));
  leaves_.clear();
  joins_.clear();
  encodes_.clear();
  decision_ = result.decision;
  for (size_t i = 0; i < slots.size(); ++i) {
    LayeredSequence& sequence = sequences_[slots[i].value()];
    const int num_tokens = rows[i].query_len();
    REPRISE_RETURN_IF_ERROR(blocks_->Commit(
        slots[i], absl::MakeConstSpan(sequence.text).subspan(sequence.num_computed, num_tokens)));
    sequence.num_computed += num_tokens;
    const bool sampled = rows[i].output == RowOutput::kToken;
    rows_.push_back(
        {.slot = slots[i],
         .sampled = sampled,
         .text = {sequence.text.begin(), sequence.text.begin() + sequence.num_computed}});
    if (sampled) sequence.text.push_back(result.tokens[i]);
  }
  return absl::OkStatus();
}

void LayeredHarness::PoisonFreeBlocks() {
  std::vector<bool> held(was_held_.size());
  for (int slot = 0; slot < static_cast<int>(sequences_.size()); ++slot) {
    if (!blocks_->contains(SlotId(slot))) continue;
    for (int group = 0; group < blocks_->num_groups(); ++group) {
      for (const BlockId block : blocks_->blocks(SlotId(slot), group)) held[block.value()] = true;
    }
  }
  const KvCache& cache = runner_->kv_cache();
  // Runs on the stream of the steps, because a later step may write the block again.
  const c10::StreamGuard guard(runner_->stream());
  for (int block = 1; block < static_cast<int>(held.size()); ++block) {
    if (held[block] || !was_held_[block]) continue;
    for (int layer = 0; layer < cache.num_layers(); ++layer) {
      for (const at::Tensor& tensor : cache.tensors(layer)) {
        tensor[block].fill_(std::numeric_limits<float>::quiet_NaN());
      }
    }
  }
  was_held_ = held;
}

void LayeredHarness::ExpectTokensAndLogits() {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const RowResult& row = rows_[i];
    SCOPED_TRACE(testing::Message()
                 << "row " << i << " of " << rows_.size() << ", " << row.text.size() << " tokens");
    const LayeredSequence& sequence = sequences_[row.slot.value()];
    const at::Tensor got = logits_[static_cast<int64_t>(i)].to(at::kCPU).to(at::kDouble);
    if (row.sampled) {
      EXPECT_EQ(got.argmax().item<int64_t>(), sequence.text[row.text.size()]);
    }
    const at::Tensor want = model_.DenseLogits(row.text, sequence.encoder_text)[-1];
    const double error = (got - want).abs().max().item<double>();
    EXPECT_LT(error, 2e-4);  // tolerance for float32 through a few layers with values near 1
    EXPECT_FALSE(std::isnan(error));
  }
}

}  // namespace reprise
