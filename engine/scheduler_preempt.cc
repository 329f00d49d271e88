// The Scheduler's part where blocks run out: who gives up its blocks, by which means, and how it
// returns.
//
// A swap is part of the batch that is being made, and the runner moves blocks out first, then in,
// then copies, then runs rows. So as soon as a move is in the batch, the blocks that it frees may
// be used again by what comes later in this order:
//
//   a block of the cache that went out    by moves in, copies and rows of the same batch
//   a host block that was read            by moves out of the next batch, not of the same one
//
// and content that is still to be moved in or copied in this batch cannot go out in it.

#include <algorithm>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "cache/group_retention.h"
#include "engine/scheduler.h"
#include "engine/scheduler_sequence.h"
#include "glog/logging.h"

namespace reprise {

void Scheduler::PreemptLast() {
  Sequence& last = *running_.back();
  if (SwapOut(last)) {
    VacateSlot(last);
  } else {
    LeaveSlot(last);
  }
  // The slot leaves in the batch that is being made: it may be joined again there.
  leaves_.push_back(next_leaves_.back());
  next_leaves_.pop_back();
  // The same goes for what a sequence that has just joined asked for.
  std::erase_if(logits_requests_,
                [&](const LogitsRequest& request) { return request.slot == leaves_.back(); });
  InsertWaiting(last);
  ++num_preemptions_;
}

bool Scheduler::SwapOut(Sequence& sequence) {
  if (!swap_store_.has_value() || !swap_ins_.empty() || blocks_.has_copies()) return false;
  const SlotId slot = *sequence.slot;
  const int num_committed = blocks_.num_committed(slot);
  if (num_committed == 0) return false;
  const bool has_encoder = blocks_.has_encoder(slot);
  const int num_encoder_tokens = blocks_.num_encoder_tokens(slot);
  const int64_t num_blocks =
      blocks_.NumBlocksFor(num_committed, num_committed, has_encoder ? num_encoder_tokens : 0);
  if (num_blocks > swap_store_->host_pool().num_allocatable()) return false;
  if (options_.preemption == PreemptionMode::kAuto &&
      !SwapOutPays(options_.preemption_costs,
                   {.num_recomputed = sequence.num_known - NumTokensUsedByOthers(slot) +
                                      int64_t{has_encoder ? num_encoder_tokens : 0},
                    .num_left = sequence.num_known - num_committed,
                    .swap_bytes = num_blocks * options_.bytes_per_block})) {
    return false;
  }
  const SequenceId id(next_stored_id_++);
  if (!swap_store_->PlanOut(slot, id).ok()) return false;
  const absl::Span<const BlockCopy> moved = swap_store_->copies_out();
  swap_outs_.insert(swap_outs_.end(), moved.begin(), moved.end());
  swap_statistics_.num_blocks_out += static_cast<int64_t>(moved.size());
  ++swap_statistics_.num_swap_outs;
  swap_store_->Launched();
  swap_store_->Poll();
  sequence.stored_as = id;
  return true;
}

int Scheduler::NumTokensUsedByOthers(SlotId slot) const {
  if (!blocks_.prefix_cache().is_on()) return 0;
  const BlockPool& pool = blocks_.pool();
  const int num_full_blocks = blocks_.num_committed(slot) / options_.block_size;
  int num_shared = num_full_blocks;
  for (int group = 0; group < blocks_.num_groups(); ++group) {
    if (!HoldsOwnTokens(blocks_.groups()[group])) continue;
    const absl::Span<const BlockId> row = blocks_.blocks(slot, group);
    int column = blocks_.first_column(slot, group);
    while (column < num_shared && pool.ref_count(row[column]) > 1) ++column;
    num_shared = std::min(num_shared, column);
  }
  return num_shared * options_.block_size;
}

absl::StatusOr<PromptHits> Scheduler::TakeSlotAgain(Sequence& sequence, SlotId slot) {
  const absl::StatusOr<PromptHits> found = AsPrompt(
      sequence, [&](const SequencePrompt& prompt) { return blocks_.Lookup(slot, prompt); });
  CHECK(found.ok()) << found.status();
  const int num_stored = swap_store_->num_tokens(*sequence.stored_as);
  const int64_t num_blocks = static_cast<int64_t>(swap_store_->blocks(*sequence.stored_as).size());
  const bool swaps = options_.preemption == PreemptionMode::kSwap
                         ? found->num_tokens < num_stored
                         : SwapInPays(options_.preemption_costs,
                                      {.num_recomputed = sequence.num_known - found->num_tokens,
                                       .num_left = sequence.num_known - num_stored,
                                       .swap_bytes = num_blocks * options_.bytes_per_block});
  if (swaps) return SwapIn(sequence, slot);
  const absl::StatusOr<PromptHits> hits = AddToCache(sequence, slot);
  if (hits.ok()) DropStored(sequence);
  return hits;
}

absl::StatusOr<PromptHits> Scheduler::SwapIn(Sequence& sequence, SlotId slot) {
  const SequenceId id = *sequence.stored_as;
  const int num_stored = swap_store_->num_tokens(id);
  const int num_left = sequence.num_known - num_stored;
  const int num_new = has_windows_ ? std::min(num_left, ChunkBudget()) : num_left;
  const int64_t num_needed = blocks_.NumBlocksFor(
      num_stored + num_new, num_stored, static_cast<int>(sequence.request().encoder_tokens.size()));
  // Before cached blocks are given up for a plan that cannot be carried out.
  if (num_needed > blocks_.pool().num_allocatable()) {
    return absl::ResourceExhaustedError("too few free blocks for a sequence to return");
  }
  REPRISE_RETURN_IF_ERROR(swap_store_->PlanIn(id, slot));
  if (const absl::Status room = blocks_.Append(slot, num_new); !room.ok()) {
    swap_store_->Abandon();
    swap_store_->Poll();
    return room;
  }
  const absl::Span<const BlockCopy> moved = swap_store_->copies_in();
  swap_ins_.insert(swap_ins_.end(), moved.begin(), moved.end());
  swap_statistics_.num_blocks_in += static_cast<int64_t>(moved.size());
  ++swap_statistics_.num_swap_ins;
  swap_store_->Launched();
  swap_store_->Poll();
  sequence.stored_as.reset();
  sequence.num_drafted = std::min(sequence.num_drafted, num_stored);
  if (drafted_blocks_.has_value()) {
    drafted_blocks_->Set(blocks_.blocks(slot, drafted_group_), {.end = num_stored},
                         sequence.num_drafted);
  }
  return PromptHits{.num_tokens = num_stored, .has_encoder = blocks_.has_encoder(slot)};
}

void Scheduler::DropStored(Sequence& sequence) {
  if (!sequence.stored_as.has_value()) return;
  const absl::Status dropped = swap_store_->Drop(*sequence.stored_as);
  CHECK(dropped.ok()) << dropped;
  swap_store_->Poll();
  sequence.stored_as.reset();
}

void Scheduler::CheckSwapInvariants() const {
  int num_stored = 0;
  for (const auto& [id, added] : requests_) {
    for (const Sequence& sequence : added->sequences) {
      if (!sequence.stored_as.has_value()) continue;
      ++num_stored;
      CHECK(!sequence.slot.has_value() && !sequence.finished) << "5: request " << id;
    }
  }
  if (!swap_store_.has_value()) {
    CHECK_EQ(num_stored, 0) << "5";
    return;
  }
  swap_store_->CheckInvariants();
  CHECK_EQ(num_stored, swap_store_->num_sequences()) << "5";
  CHECK(swap_store_->copies_out().empty() && swap_store_->copies_in().empty()) << "5";
}

}  // namespace reprise
