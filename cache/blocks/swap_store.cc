#include "reprise/cache/blocks/swap_store.h"

#include <glog/logging.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/group_retention.h"

namespace reprise {
namespace {

// Calls `visit` for the blocks of the sequence's committed tokens and of its encoder input, if that
// has been written, group by group.
void ForEachBlockWithContent(const BlockManager& manager, SlotId slot, const SavedSequence& saved,
                             absl::FunctionRef<void(BlockId)> visit) {
  const int block_size = manager.options().block_size;
  for (int group = 0; group < manager.num_groups(); ++group) {
    const int num_tokens = HoldsOwnTokens(manager.groups()[group]) ? saved.num_tokens
                           : saved.has_encoder                     ? saved.num_encoder_tokens
                                                                   : 0;
    const absl::Span<const BlockId> row = manager.blocks(slot, group);
    const int end = CeilDiv(num_tokens, block_size);
    for (int column = saved.first_columns[group]; column < end; ++column) visit(row[column]);
  }
}

absl::Status NotStored(SequenceId id) {
  return absl::NotFoundError(absl::StrCat("sequence ", id.value(), " is not in the swap store"));
}

}  // namespace

std::ostream& operator<<(std::ostream& out, SwapState state) {
  switch (state) {
    case SwapState::kPlanned:
      return out << "planned";
    case SwapState::kSwappingOut:
      return out << "swapping out";
    case SwapState::kStored:
      return out << "stored";
    case SwapState::kSwappingIn:
      return out << "swapping in";
  }
  return out << "SwapState(" << static_cast<int>(state) << ")";
}

absl::StatusOr<SwapStore> SwapStore::Create(const SwapStoreOptions& options, BlockManager* manager,
                                            std::vector<std::unique_ptr<Fence>> fences) {
  if (manager == nullptr) return absl::InvalidArgumentError("manager must be given: got null");
  REPRISE_ASSIGN_OR_RETURN(BlockPool host_pool,
                           BlockPool::Create({.num_blocks = options.num_host_blocks}));
  REPRISE_ASSIGN_OR_RETURN(FenceQueue events, FenceQueue::Create(std::move(fences)));
  return SwapStore(manager, std::move(host_pool), std::move(events));
}

SwapStore::SwapStore(BlockManager* manager, BlockPool host_pool, FenceQueue events)
    : manager_(manager), host_pool_(std::move(host_pool)), events_(std::move(events)) {}

absl::Status SwapStore::PlanOut(SlotId slot, SequenceId id) {
  REPRISE_RETURN_IF_ERROR(manager_->CheckFilled(slot));
  if (stored_.contains(id)) {
    return absl::AlreadyExistsError(
        absl::StrCat("sequence ", id.value(), " is in the swap store already"));
  }
  for (const SequenceId planned : planned_out_) {
    if (stored_.at(planned).planned_from != slot) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("slot ", slot.value(), " is already planned to be swapped out, as sequence ",
                     planned.value()));
  }
  if (manager_->has_copies()) {
    return absl::FailedPreconditionError(
        "copies of the manager must be launched before a swap: expected no pending copies");
  }
  if (!planned_in_.empty()) {
    return absl::FailedPreconditionError(
        "swap-outs must be planned before swap-ins: expected a plan without swap-ins");
  }
  Stored stored;
  stored.saved = manager_->Save(slot);
  stored.planned_from = slot;
  std::vector<BlockId> device_blocks;
  ForEachBlockWithContent(*manager_, slot, stored.saved,
                          [&](BlockId block) { device_blocks.push_back(block); });
  std::vector<BlockId> host_blocks(device_blocks.size());
  Poll();
  REPRISE_RETURN_IF_ERROR(host_pool_.Allocate(absl::MakeSpan(host_blocks)));
  for (size_t i = 0; i < host_blocks.size(); ++i) {
    manager_->Hold(device_blocks[i]);
    copies_out_.push_back({.src = device_blocks[i].value(), .dst = host_blocks[i].value()});
    stored.blocks.emplace_back(host_blocks[i].value());
  }
  planned_out_.push_back(id);
  stored_.emplace(id, std::move(stored));
  return absl::OkStatus();
}

absl::Status SwapStore::CheckNotPlanned(SequenceId id, const Stored& stored) const {
  if (stored.planned_from.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sequence ", id.value(), " has not left slot ", stored.planned_from->value(),
                     ": its copies have not been launched"));
  }
  if (stored.planned_to.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("sequence ", id.value(),
                                                      " is planned to be swapped in to slot ",
                                                      stored.planned_to->value(), " already"));
  }
  return absl::OkStatus();
}

absl::Status SwapStore::PlanIn(SequenceId id, SlotId slot) {
  const auto found = stored_.find(id);
  if (found == stored_.end()) return NotStored(id);
  Stored& stored = found->second;
  REPRISE_RETURN_IF_ERROR(CheckNotPlanned(id, stored));
  Poll();
  REPRISE_RETURN_IF_ERROR(manager_->Restore(slot, stored.saved));
  auto host_block = stored.blocks.begin();
  ForEachBlockWithContent(*manager_, slot, stored.saved, [&](BlockId block) {
    copies_in_.push_back({.src = (host_block++)->value(), .dst = block.value()});
  });
  CHECK(host_block == stored.blocks.end()) << "sequence " << id << " came back shorter";
  stored.planned_to = slot;
  planned_in_.push_back(id);
  return absl::OkStatus();
}

void SwapStore::Launched() {
  if (is_plan_empty()) return;
  const int64_t event = events_.Arm();
  for (const SequenceId id : planned_out_) {
    Stored& stored = stored_.at(id);
    const absl::Status freed = manager_->Free(*stored.planned_from);
    CHECK(freed.ok()) << "a planned sequence has left its slot: " << freed;
    stored.planned_from.reset();
    stored.written = event;
  }
  // Releases the last column first: children before parents.
  for (auto copy = copies_out_.rbegin(); copy != copies_out_.rend(); ++copy) {
    device_releases_.Push(BlockId(copy->src), event);
  }
  for (const SequenceId id : planned_in_) {
    const Stored& stored = stored_.at(id);
    manager_->ConfirmRestored(*stored.planned_to);
    ReleaseAfter(event, stored);
    stored_.erase(id);
  }
  EndPlan();
}

void SwapStore::Abandon() {
  if (is_plan_empty()) return;
  const int64_t event = events_.Arm();
  for (const BlockCopy& copy : copies_out_) manager_->Drop(BlockId(copy.src));
  for (const SequenceId id : planned_out_) {
    ReleaseAfter(event, stored_.at(id));
    stored_.erase(id);
  }
  for (const BlockCopy& copy : copies_in_) {
    manager_->Hold(BlockId(copy.dst));
    device_releases_.Push(BlockId(copy.dst), event);
  }
  for (const SequenceId id : planned_in_) {
    Stored& stored = stored_.at(id);
    manager_->AbandonRestored(*stored.planned_to);
    stored.planned_to.reset();
  }
  EndPlan();
}

void SwapStore::ReleaseAfter(int64_t event, const Stored& stored) {
  for (const HostBlockId block : stored.blocks) host_releases_.Push(BlockId(block.value()), event);
}

void SwapStore::EndPlan() {
  planned_out_.clear();
  planned_in_.clear();
  copies_out_.clear();
  copies_in_.clear();
  Poll();
}

absl::Status SwapStore::Drop(SequenceId id) {
  const auto found = stored_.find(id);
  if (found == stored_.end()) return NotStored(id);
  REPRISE_RETURN_IF_ERROR(CheckNotPlanned(id, found->second));
  ReleaseAfter(found->second.written, found->second);
  stored_.erase(found);
  Poll();
  return absl::OkStatus();
}

void SwapStore::Poll() {
  const int64_t last_passed = events_.Poll();
  device_releases_.ReleasePassed(last_passed, [&](BlockId block) { manager_->Drop(block); });
  host_releases_.ReleasePassed(last_passed, [&](BlockId block) { host_pool_.Release(block); });
}

std::optional<SwapState> SwapStore::state(SequenceId id) {
  const auto found = stored_.find(id);
  if (found == stored_.end()) return std::nullopt;
  if (found->second.planned_from.has_value()) return SwapState::kPlanned;
  if (found->second.planned_to.has_value()) return SwapState::kSwappingIn;
  return events_.Poll() >= found->second.written ? SwapState::kStored : SwapState::kSwappingOut;
}

int SwapStore::num_tokens(SequenceId id) const { return stored_.at(id).saved.num_tokens; }

absl::Span<const HostBlockId> SwapStore::blocks(SequenceId id) const {
  return stored_.at(id).blocks;
}

void SwapStore::CheckInvariants() const {
  host_pool_.CheckInvariants();
  std::vector<int> num_owners(host_pool_.num_blocks(), 0);
  int num_planned_out = 0;
  int num_planned_in = 0;
  for (const auto& [id, stored] : stored_) {
    for (const HostBlockId block : stored.blocks) ++num_owners[block.value()];
    if (stored.planned_to.has_value()) {
      ++num_planned_in;
      CHECK(manager_->is_swapping_in(*stored.planned_to)) << "invariant 3, sequence " << id;
    }
    if (!stored.planned_from.has_value()) continue;
    ++num_planned_out;
    CHECK(manager_->contains(*stored.planned_from)) << "invariant 3, sequence " << id;
    CHECK_EQ(manager_->num_committed(*stored.planned_from), stored.saved.num_tokens)
        << "invariant 3, sequence " << id;
  }
  CHECK_EQ(num_planned_out, static_cast<int>(planned_out_.size())) << "invariant 3";
  CHECK_EQ(num_planned_in, static_cast<int>(planned_in_.size())) << "invariant 3";
  for (int64_t i = 0; i < host_releases_.size(); ++i) ++num_owners[host_releases_.block(i).value()];
  for (int block = 0; block < host_pool_.num_blocks(); ++block) {
    CHECK_LE(num_owners[block], 1) << "invariant 2, host block " << block;
    CHECK_EQ(host_pool_.ref_count(BlockId(block)), num_owners[block])
        << "invariant 2, host block " << block;
  }
  absl::flat_hash_map<BlockId, int> num_holds;
  for (const BlockCopy& copy : copies_out_) ++num_holds[BlockId(copy.src)];
  for (int64_t i = 0; i < device_releases_.size(); ++i) ++num_holds[device_releases_.block(i)];
  for (const auto& [block, num_expected] : num_holds) {
    CHECK_GE(manager_->num_holds(block), num_expected) << "invariant 4, block " << block;
  }
}

}  // namespace reprise
