// BlockManagerModel: steps as a device would run them, and checks of the tokens' addresses.

#include <glog/logging.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "reprise/cache/group_retention.h"
#include "reprise/cache/testing/block_manager_model.h"
#include "reprise/cache/testing/model_values.h"

namespace reprise {

// ---- Steps.

void BlockManagerModel::LaunchStep() {
  call_ = "a step";
  FinishSwapsIn();
  const absl::Span<const BlockCopy> taken = manager_->TakeCopies();
  std::vector<BlockCopy> copies(taken.begin(), taken.end());
  if (choices_->OneIn(2)) absl::c_reverse(copies);  // any order
  for (const BlockCopy& copy : copies) {
    std::copy_n(&memory_[int64_t{copy.src} * block_size_], block_size_,
                &memory_[int64_t{copy.dst} * block_size_]);
  }
  counts_["copies"] += static_cast<int64_t>(copies.size());

  for (const SlotId slot : left_) {
    for (BlockTable& table : device_tables_) {
      const absl::Span<BlockId> row = table.mutable_row(slot);
      std::fill(row.begin(), row.end(), kNullBlock);
    }
  }
  left_.clear();
  std::vector<std::vector<BlockTableUpdate>> updates(device_tables_.size());
  for (const BlockTableUpdate& update : manager_->TakeUpdates()) {
    updates[update.group].push_back(update);
  }
  for (size_t group = 0; group < updates.size(); ++group) {
    if (choices_->OneIn(2)) absl::c_reverse(updates[group]);
    CHECK(device_tables_[group].Apply(updates[group]).ok());
  }

  for (auto& [slot, sequence] : live_) {
    CheckDeviceRows(slot);
    if (sequence.is_swapping_out || sequence.is_swapping_in || choices_->OneIn(5)) continue;
    WriteTokens(slot, sequence);
    if (choices_->OneIn(2)) WriteEncoder(slot, sequence);
  }
}

void BlockManagerModel::CheckDeviceRows(SlotId slot) const {
  for (int group = 0; group < manager_->num_groups(); ++group) {
    const absl::Span<const BlockId> row = manager_->blocks(slot, group);
    const absl::Span<const BlockId> device_row = device_tables_[group].row(slot);
    for (size_t column = 0; column < row.size(); ++column) {
      CHECK_EQ(device_row[column], row[column])
          << Where() << "slot " << slot << ", group " << group << ", column " << column;
    }
  }
}

void BlockManagerModel::WriteTokens(SlotId slot, Sequence& sequence) {
  const int num_room =
      std::min(sequence.num_tokens() + options_.manager.num_lookahead_tokens, num_row_tokens_);
  for (int group = 0; group < manager_->num_groups(); ++group) {
    if (!HoldsOwnTokens(manager_->groups()[group])) continue;
    const absl::Span<const BlockId> row = device_tables_[group].row(slot);
    for (int i = sequence.num_written; i < num_room; ++i) {
      const BlockId block = row[i / block_size_];
      CHECK(block != kNullBlock) << Where() << "no block for token " << i << " of slot " << slot;
      const bool is_draft = i >= sequence.num_tokens();
      memory_[int64_t{block.value()} * block_size_ + i % block_size_] =
          is_draft ? Mix(99, num_calls_) : Cell(sequence.values[i], group);
    }
  }
  sequence.num_written = sequence.num_tokens();
}

void BlockManagerModel::WriteEncoder(SlotId slot, Sequence& sequence) {
  if (sequence.encoder_is_written || sequence.origin.num_encoder_tokens == 0) return;
  for (int group = 0; group < manager_->num_groups(); ++group) {
    if (HoldsOwnTokens(manager_->groups()[group])) continue;
    const absl::Span<const BlockId> row = device_tables_[group].row(slot);
    for (int i = 0; i < sequence.origin.num_encoder_tokens; ++i) {
      memory_[int64_t{row[i / block_size_].value()} * block_size_ + i % block_size_] =
          Cell(Mix(RootOf(sequence.origin), i), group);
    }
  }
  sequence.encoder_is_written = true;
}

// ---- Checks.

void BlockManagerModel::Check() {
  manager_->CheckInvariants();
  store_->CheckInvariants();
  CHECK_EQ(manager_->num_sequences(), static_cast<int>(live_.size())) << Where();
  CHECK_EQ(store_->num_sequences(), static_cast<int>(stored_.size()) +
                                        absl::c_count_if(live_,
                                                         [](const auto& entry) {
                                                           return entry.second.is_swapping_out ||
                                                                  entry.second.is_swapping_in;
                                                         }))
      << Where();
  for (const auto& [slot, sequence] : live_) {
    CHECK(manager_->contains(slot)) << Where();
    CHECK_EQ(manager_->num_tokens(slot), sequence.num_tokens()) << Where();
    CHECK_EQ(manager_->num_committed(slot), sequence.num_committed) << Where();
    CHECK_LE(manager_->min_tokens(slot), sequence.num_committed) << Where();
    CHECK_EQ(manager_->num_encoder_tokens(slot), sequence.origin.num_encoder_tokens) << Where();
  }
  // Content with a pending copy is not yet in its destination.
  if (!manager_->has_copies() && num_swaps_in_ == 0) CheckContent();
}

void BlockManagerModel::CheckContent() {
  ++counts_["content checked"];
  const auto check = [&](SlotId slot, int group, int position, uint64_t value) {
    const BlockId block = manager_->blocks(slot, group)[position / block_size_];
    CHECK(block != kNullBlock) << Where() << "slot " << slot << ", group " << group << ", token "
                               << position << " has no block";
    CHECK_EQ(memory_[int64_t{block.value()} * block_size_ + position % block_size_],
             Cell(value, group))
        << Where() << "slot " << slot << ", group " << group << ", token " << position << ", block "
        << block;
  };
  for (const auto& [slot, sequence] : live_) {
    if (sequence.is_swapping_in) continue;
    for (int group = 0; group < manager_->num_groups(); ++group) {
      if (!HoldsOwnTokens(manager_->groups()[group])) {
        if (!sequence.encoder_is_written) continue;
        for (int i = 0; i < sequence.origin.num_encoder_tokens; ++i) {
          check(slot, group, i, Mix(RootOf(sequence.origin), i));
        }
        continue;
      }
      // All tokens that are needed now, or that would be needed after the shortest possible
      // truncation.
      const int64_t needed = std::min<int64_t>(
          FirstNeededPosition(manager_->groups()[group], manager_->min_tokens(slot)),
          sequence.num_written);
      CHECK_LE(int64_t{manager_->first_column(slot, group)} * block_size_, needed) << Where();
      for (int i = static_cast<int>(needed); i < sequence.num_written; ++i) {
        check(slot, group, i, sequence.values[i]);
      }
    }
  }
}

}  // namespace reprise
