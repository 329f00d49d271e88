// Checks the invariants of SequenceBlocks, for tests.

#include <glog/logging.h>

#include <algorithm>
#include <vector>

#include "reprise/base/divisor.h"
#include "reprise/cache/blocks/sequence_blocks.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

void SequenceBlocks::CheckInvariants() const {
  cache_.CheckInvariants();
  tables_.CheckInvariants();
  std::vector<int> num_references(options_.num_blocks, 0);
  int num_live = 0;
  for (int i = 0; i < options_.num_slots; ++i) {
    const SlotId slot(i);
    const Sequence& checked = sequences_[i];
    num_live += checked.is_live;
    CHECK(!checked.is_tail_planned) << "a planned tail was not cleared, slot " << i;
    CHECK(0 <= checked.num_committed && checked.num_committed <= checked.num_tokens)
        << "invariant 5, slot " << i;
    if (checked.is_live) {
      CHECK_EQ(checked.num_tokens_with_columns, TokensWithColumns(NumColumns(checked.num_tokens)))
          << "invariant 2, slot " << i;
    }
    if (checked.is_swapping_in) CheckSwappingIn(slot);
    for (int group = 0; group < num_groups(); ++group) {
      CheckRow(slot, group);
      const int first = tables_.first(slot, group);
      for (const BlockId block : tables_.blocks(slot, group).subspan(first)) {
        ++num_references[block.value()];
      }
    }
  }
  CHECK_EQ(num_live, num_sequences_) << "invariant 2";
  // Counts only table entries here. Holds and copies are added below.
  for (int i = 0; i < options_.num_slots; ++i) CheckLookAhead(SlotId(i), num_references);
  for (const auto& [block, num_holds] : holds_) {
    CHECK_GT(num_holds, 0) << "invariant 3, block " << block;
    num_references[block.value()] += num_holds;
  }
  for (const BlockCopy& copy : copies_.pending()) {
    CHECK_GT(num_references[copy.dst], 0) << "invariant 3, a copy to unused block " << copy.dst;
    ++num_references[copy.src];
  }
  for (int block = 1; block < options_.num_blocks; ++block) {
    CHECK_EQ(pool().ref_count(BlockId(block)), num_references[block])
        << "invariant 3, block " << block;
  }
}

void SequenceBlocks::CheckRow(SlotId slot, int group) const {
  const Sequence& checked = (*this)[slot];
  const KvGroupSpec& spec = options_.groups[group];
  const int first = tables_.first(slot, group);
  const int end = tables_.end(slot, group);
  if (!checked.is_live) {
    CHECK_EQ(end, 0) << "invariant 2, empty slot " << slot << ", group " << group;
    return;
  }
  if (!HoldsOwnTokens(spec)) {
    CHECK_EQ(end, CeilDiv(checked.num_encoder_tokens, options_.block_size))
        << "invariant 2, slot " << slot << ", group " << group;
    return;
  }
  CHECK_EQ(end, std::max(NumColumns(checked.num_tokens), first))
      << "invariant 2, slot " << slot << ", group " << group;
  const int needed =
      std::min(FirstNeededBlock(spec, checked.num_committed, options_.block_size), end);
  CHECK_LE(first, needed) << "invariant 2, slot " << slot << ", group " << group;
}

void SequenceBlocks::CheckLookAhead(SlotId slot, absl::Span<const int> num_references) const {
  const Sequence& checked = (*this)[slot];
  if (options_.num_lookahead_tokens == 0 || !checked.is_live) return;
  for (int group = 0; group < num_groups(); ++group) {
    if (!HoldsOwnTokens(options_.groups[group])) continue;
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    const int first = checked.num_tokens / options_.block_size;
    for (int column = first; column < static_cast<int>(row.size()); ++column) {
      CHECK_EQ(num_references[row[column].value()], 1)
          << "invariant 4, slot " << slot << ", column " << column;
      CHECK(!pool().has_content(row[column]))
          << "invariant 4, slot " << slot << ", column " << column;
    }
  }
}

void SequenceBlocks::CheckSwappingIn(SlotId slot) const {
  CHECK((*this)[slot].is_live) << "invariant 6, slot " << slot;
  for (int group = 0; group < num_groups(); ++group) {
    const absl::Span<const BlockId> row = tables_.blocks(slot, group);
    for (const BlockId block : row.subspan(tables_.first(slot, group))) {
      CHECK_EQ(pool().ref_count(block), 1) << "invariant 6, slot " << slot << ", block " << block;
      CHECK(!pool().has_content(block)) << "invariant 6, slot " << slot << ", block " << block;
    }
  }
}

}  // namespace reprise
