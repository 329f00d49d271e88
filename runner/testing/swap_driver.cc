#include "reprise/runner/testing/swap_driver.h"

#include <c10/core/StreamGuard.h>

#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/fence.h"
#include "reprise/base/passed_fence.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/runner_shape.h"

namespace reprise {

absl::StatusOr<std::unique_ptr<SwapDriver>> SwapDriver::Create(Model* model,
                                                               const ModelRunnerOptions& options) {
  auto driver = std::unique_ptr<SwapDriver>(new SwapDriver());
  ModelRunnerOptions with_logits = options;
  with_logits.logits.step_logits = StepLogits::kOfEvery;
  REPRISE_ASSIGN_OR_RETURN(driver->runner_, ModelRunner::Create(model, with_logits));
  ModelRunner& runner = *driver->runner_;
  REPRISE_ASSIGN_OR_RETURN(BlockManager blocks,
                           BlockManager::Create(BlockOptionsOf(runner.shape())));
  driver->blocks_ = std::make_unique<BlockManager>(std::move(blocks));
  if (runner.shape().num_swap_blocks > 0) {
    std::vector<std::unique_ptr<Fence>> fences;
    for (int i = 0; i < 2; ++i) fences.push_back(std::make_unique<PassedFence>());
    REPRISE_ASSIGN_OR_RETURN(driver->store_,
                             SwapStore::Create({.num_host_blocks = runner.shape().num_swap_blocks},
                                               driver->blocks_.get(), std::move(fences)));
  }
  const c10::StreamGuard guard(runner.stream());
  REPRISE_RETURN_IF_ERROR(runner.kv_cache().Fill(std::numeric_limits<float>::quiet_NaN()));
  return driver;
}

void SwapDriver::Join(int id, SlotId slot, SwapSequence sequence) {
  sequences_[id] = {.slot = slot,
                    .text = std::move(sequence.text),
                    .encoder_text = std::move(sequence.encoder_text)};
}

void SwapDriver::Leave(int id) {
  const absl::Status freed = blocks_->Free(sequences_.at(id).slot);
  EXPECT_TRUE(freed.ok()) << freed;
  leaves_.push_back(sequences_.at(id).slot);
  sequences_.erase(id);
}

void SwapDriver::Out(int id) {
  if (!store_) return;
  const SlotId slot = sequences_.at(id).slot;
  EXPECT_TRUE(swap_ins_.empty()) << "moves out come first";
  const absl::Status planned = store_->PlanOut(slot, SequenceId(id));
  ASSERT_TRUE(planned.ok()) << planned;
  for (const BlockCopy& copy : store_->copies_out()) {
    swap_outs_.push_back(copy);
    went_out_[copy.src] = true;
  }
  store_->Launched();
  leaves_.push_back(slot);
}

void SwapDriver::Back(int id, SlotId slot) {
  if (!store_) return;
  const absl::Status planned = store_->PlanIn(SequenceId(id), slot);
  ASSERT_TRUE(planned.ok()) << planned;
  swap_ins_.insert(swap_ins_.end(), store_->copies_in().begin(), store_->copies_in().end());
  store_->Launched();
  Sequence& sequence = sequences_.at(id);
  sequence.slot = slot;
  sequence.entry = Entry::kReturned;
}

absl::StatusOr<ScheduledRow> SwapDriver::RowOf(Sequence& sequence) {
  const SlotId slot = sequence.slot;
  ScheduledRow row = {.slot = slot};
  const int num_encoder_tokens = static_cast<int>(sequence.encoder_text.size());
  if (sequence.entry == Entry::kNew) {
    REPRISE_RETURN_IF_ERROR(
        blocks_->Add(slot, {.tokens = sequence.text, .num_encoder_tokens = num_encoder_tokens})
            .status());
    joins_.push_back(JoinOf(slot, {}, sequence.text.size()));
    joins_.back().num_encoder_tokens = num_encoder_tokens;
    if (num_encoder_tokens > 0) {
      encodes_.push_back({.slot = slot, .tokens = sequence.encoder_text});
    }
    row.tokens = sequence.text;
  } else {
    REPRISE_RETURN_IF_ERROR(blocks_->Append(slot, 1));
  }
  if (sequence.entry == Entry::kReturned) {
    joins_.push_back({.slot = slot,
                      .seq_len = sequence.num_launched,
                      .prompt_len = static_cast<int32_t>(sequence.text.size()),
                      .num_encoder_tokens = num_encoder_tokens,
                      .encoder_is_cached = blocks_->has_encoder(slot)});
    row.tokens = absl::MakeConstSpan(sequence.text).last(1);
  }
  sequence.entry = Entry::kNone;
  sequence.num_launched += row.query_len();
  return row;
}

absl::Status SwapDriver::Launch(const std::vector<int>& ids) {
  std::vector<ScheduledRow> rows;
  InFlight launched;
  launched.ids = ids;
  for (const int id : ids) {
    REPRISE_ASSIGN_OR_RETURN(rows.emplace_back(), RowOf(sequences_.at(id)));
    launched.num_tokens.push_back(rows.back().query_len());
  }
  const absl::Span<const BlockTableUpdate> updates = blocks_->TakeUpdates();
  for (const BlockTableUpdate& update : updates) {
    num_reused_ += went_out_.erase(update.block.value());
  }
  REPRISE_ASSIGN_OR_RETURN(launched.ticket, runner_->Launch({.leaves = leaves_,
                                                             .joins = joins_,
                                                             .updates = updates,
                                                             .swap_outs = swap_outs_,
                                                             .swap_ins = swap_ins_,
                                                             .encodes = encodes_,
                                                             .rows = rows}));
  in_flight_.push_back(std::move(launched));
  leaves_.clear();
  joins_.clear();
  swap_outs_.clear();
  swap_ins_.clear();
  encodes_.clear();
  return absl::OkStatus();
}

absl::Status SwapDriver::AwaitOldest() {
  const InFlight awaited = std::move(in_flight_.front());
  in_flight_.pop_front();
  REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(awaited.ticket));
  {
    const c10::StreamGuard guard(runner_->stream());
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, runner_->logits(awaited.ticket));
    logits_ = logits.to(at::kCPU).clone();
  }
  for (size_t i = 0; i < awaited.ids.size(); ++i) {
    const auto found = sequences_.find(awaited.ids[i]);
    if (found == sequences_.end()) continue;  // the sequence has left
    Sequence& sequence = found->second;
    const int num_committed = blocks_->num_committed(sequence.slot);
    REPRISE_RETURN_IF_ERROR(blocks_->Commit(
        sequence.slot,
        absl::MakeConstSpan(sequence.text).subspan(num_committed, awaited.num_tokens[i])));
    if (num_committed == 0 && !sequence.encoder_text.empty()) {
      REPRISE_RETURN_IF_ERROR(blocks_->CommitEncoder(sequence.slot));
    }
    sequence.text.push_back(result.tokens[i]);
  }
  return absl::OkStatus();
}

absl::Status SwapDriver::Step(const std::vector<int>& ids) {
  REPRISE_RETURN_IF_ERROR(Launch(ids));
  return AwaitOldest();
}

}  // namespace reprise
