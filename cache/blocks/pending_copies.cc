#include "reprise/cache/blocks/pending_copies.h"

#include <glog/logging.h>

#include "absl/algorithm/container.h"

namespace reprise {

BlockId PendingCopies::Origin(BlockId block) const {
  for (const BlockCopy& copy : pending_) {
    if (copy.dst == block.value()) return BlockId(copy.src);
  }
  return block;
}

void PendingCopies::Add(BlockId source, BlockId destination) {
  DCHECK_EQ(Origin(source), source) << "the source of a copy is the destination of a pending copy";
  DCHECK_EQ(Origin(destination), destination) << "the block is the destination of two copies";
  DCHECK_EQ(NumFrom(destination), 0) << "block " << destination << " is still to be read";
  pending_.push_back({.src = source.value(), .dst = destination.value()});
}

std::optional<BlockId> PendingCopies::Drop(BlockId destination) {
  const auto dropped = absl::c_find_if(
      pending_, [&](const BlockCopy& copy) { return copy.dst == destination.value(); });
  if (dropped == pending_.end()) return std::nullopt;
  const BlockId source(dropped->src);
  pending_.erase(dropped);
  return source;
}

int PendingCopies::NumFrom(BlockId source) const {
  return static_cast<int>(absl::c_count_if(
      pending_, [&](const BlockCopy& copy) { return copy.src == source.value(); }));
}

absl::Span<const BlockCopy> PendingCopies::Take() {
  taken_.swap(pending_);
  pending_.clear();
  return taken_;
}

}  // namespace reprise
