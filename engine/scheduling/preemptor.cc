#include "reprise/engine/scheduling/preemptor.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "glog/logging.h"
#include "reprise/base/fence.h"
#include "reprise/base/passed_fence.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/group_retention.h"

namespace reprise {
namespace {

// Swaps run on the stream of the steps, and so does every later use of their blocks.
std::vector<std::unique_ptr<Fence>> FencesOfOneStream() {
  std::vector<std::unique_ptr<Fence>> fences;
  for (int i = 0; i < 2; ++i) fences.push_back(std::make_unique<PassedFence>());
  return fences;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Preemptor>> Preemptor::Create(const RunnerShape& shape,
                                                             const SchedulerPolicy& policy,
                                                             BlockManager* blocks,
                                                             const CacheLimits* limits,
                                                             SequenceTable* table) {
  auto preemptor = std::unique_ptr<Preemptor>(new Preemptor(shape, policy, blocks, limits, table));
  if (shape.num_swap_blocks > 0 && policy.preemption != PreemptionMode::kRecompute) {
    REPRISE_ASSIGN_OR_RETURN(
        preemptor->swap_store_,
        SwapStore::Create({.num_host_blocks = shape.num_swap_blocks}, blocks, FencesOfOneStream()));
  }
  return preemptor;
}

Preemptor::Preemptor(const RunnerShape& shape, const SchedulerPolicy& policy, BlockManager* blocks,
                     const CacheLimits* limits, SequenceTable* table)
    : blocks_(blocks),
      limits_(limits),
      table_(table),
      bytes_per_block_(shape.bytes_per_block),
      mode_(policy.preemption),
      costs_(*policy.preemption_costs) {}

bool Preemptor::MakeRoom(SequenceState& sequence, int num_tokens, int num_in_flight,
                         BatchInProgress& batch) {
  const int num_lacking = num_tokens - blocks_->num_tokens(*sequence.slot);
  if (num_lacking <= 0) return true;
  while (!blocks_->Append(*sequence.slot, num_lacking).ok()) {
    if (table_->num_running() == 1) {
      // The only running sequence has the whole pool. The pool holds CacheLimits::max_tokens()
      // tokens once the batches in flight are committed, because the windows then release blocks.
      CHECK(limits_->has_windows() && num_in_flight > 0) << num_tokens << " tokens of one sequence";
      batch.NoteLackOfBlocks();
      return false;
    }
    const bool itself = table_->running().back() == &sequence;
    PreemptLast(batch);
    if (itself) return false;
  }
  return true;
}

void Preemptor::PreemptLast(BatchInProgress& batch) {
  SequenceState& last = *table_->running().back();
  const SlotId slot = *last.slot;
  if (!SwapOut(last, batch)) {
    const absl::Status freed = blocks_->Free(slot);
    CHECK(freed.ok()) << freed;
  }
  table_->Vacate(last);
  batch.LeaveNow(slot);
  table_->Wait(last);
  ++num_preemptions_;
}

bool Preemptor::SwapOut(SequenceState& sequence, BatchInProgress& batch) {
  if (!swap_store_.has_value() || batch.has_swap_ins() || blocks_->has_copies()) return false;
  const SlotId slot = *sequence.slot;
  const int num_committed = blocks_->num_committed(slot);
  if (num_committed == 0) return false;
  const bool has_encoder = blocks_->has_encoder(slot);
  const int num_encoder_tokens = blocks_->num_encoder_tokens(slot);
  const int64_t num_blocks =
      blocks_->NumBlocksFor(num_committed, num_committed, has_encoder ? num_encoder_tokens : 0);
  if (num_blocks > swap_store_->host_pool().num_allocatable()) return false;
  if (mode_ == PreemptionMode::kAuto &&
      !SwapOutPays(costs_, {.num_recomputed = sequence.num_known - NumTokensUsedByOthers(slot) +
                                              int64_t{has_encoder ? num_encoder_tokens : 0},
                            .num_left = sequence.num_known - num_committed,
                            .swap_bytes = num_blocks * bytes_per_block_})) {
    return false;
  }
  const SequenceId id(next_stored_id_++);
  if (!swap_store_->PlanOut(slot, id).ok()) return false;
  const absl::Span<const BlockCopy> moved = swap_store_->copies_out();
  batch.SwapOut(moved);
  swap_statistics_.num_blocks_out += static_cast<int64_t>(moved.size());
  ++swap_statistics_.num_swap_outs;
  swap_store_->Launched();
  sequence.stored_as = id;
  return true;
}

int Preemptor::NumTokensUsedByOthers(SlotId slot) const {
  if (!blocks_->prefix_cache().is_on()) return 0;
  const BlockPool& pool = blocks_->pool();
  const int block_size = blocks_->options().block_size;
  const int num_full_blocks = blocks_->num_committed(slot) / block_size;
  int num_shared = num_full_blocks;
  for (int group = 0; group < blocks_->num_groups(); ++group) {
    if (!HoldsOwnTokens(blocks_->groups()[group])) continue;
    const absl::Span<const BlockId> row = blocks_->blocks(slot, group);
    int column = blocks_->first_column(slot, group);
    while (column < num_shared && pool.ref_count(row[column]) > 1) ++column;
    num_shared = std::min(num_shared, column);
  }
  return num_shared * block_size;
}

bool Preemptor::ReturnsBySwap(const SequenceState& sequence, int num_found) const {
  const int num_stored = swap_store_->num_tokens(*sequence.stored_as);
  if (mode_ == PreemptionMode::kSwap) return num_found < num_stored;
  const int64_t num_blocks = static_cast<int64_t>(swap_store_->blocks(*sequence.stored_as).size());
  return SwapInPays(costs_, {.num_recomputed = sequence.num_known - num_found,
                             .num_left = sequence.num_known - num_stored,
                             .swap_bytes = num_blocks * bytes_per_block_});
}

absl::StatusOr<PromptHits> Preemptor::SwapIn(SequenceState& sequence, SlotId slot, int max_chunk,
                                             BatchInProgress& batch) {
  const SequenceId id = *sequence.stored_as;
  const int num_stored = swap_store_->num_tokens(id);
  const int num_left = sequence.num_known - num_stored;
  const int num_encoder_tokens = sequence.num_encoder_tokens();
  const int num_new = limits_->has_windows() ? limits_->FittingChunk(num_stored, num_encoder_tokens,
                                                                     std::min(num_left, max_chunk))
                                             : num_left;
  const int64_t num_needed =
      blocks_->NumBlocksFor(num_stored + num_new, num_stored, num_encoder_tokens);
  // Checked first, because making the plan evicts cached blocks even if the plan fails.
  if (num_needed > blocks_->pool().num_allocatable()) {
    return absl::ResourceExhaustedError("too few free blocks for a sequence to return");
  }
  REPRISE_RETURN_IF_ERROR(swap_store_->PlanIn(id, slot));
  if (const absl::Status room = blocks_->Append(slot, num_new); !room.ok()) {
    swap_store_->Abandon();
    return room;
  }
  const absl::Span<const BlockCopy> moved = swap_store_->copies_in();
  batch.SwapIn(moved);
  swap_statistics_.num_blocks_in += static_cast<int64_t>(moved.size());
  ++swap_statistics_.num_swap_ins;
  swap_store_->Launched();
  sequence.stored_as.reset();
  return PromptHits{.num_tokens = num_stored, .has_encoder = blocks_->has_encoder(slot)};
}

void Preemptor::Drop(SequenceState& sequence) {
  if (!sequence.stored_as.has_value()) return;
  const absl::Status dropped = swap_store_->Drop(*sequence.stored_as);
  CHECK(dropped.ok()) << dropped;
  sequence.stored_as.reset();
}

void Preemptor::CheckInvariants() const {
  int num_stored = 0;
  for (const auto& [id, request] : table_->requests()) {
    for (const SequenceState& sequence : request->sequences) {
      if (!sequence.stored_as.has_value()) continue;
      ++num_stored;
      CHECK(!sequence.slot.has_value() && !sequence.finished) << "2: request " << id;
    }
  }
  if (!swap_store_.has_value()) {
    CHECK_EQ(num_stored, 0) << "2";
    return;
  }
  swap_store_->CheckInvariants();
  CHECK_EQ(num_stored, swap_store_->num_sequences()) << "2";
  CHECK(swap_store_->copies_out().empty() && swap_store_->copies_in().empty()) << "1";
}

}  // namespace reprise
