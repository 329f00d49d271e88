#include "reprise/cache/blocks/fenced_releases.h"

#include <utility>

namespace reprise {

FencedReleases::FencedReleases(FenceQueue fences, int64_t num_reserved)
    : fences_(std::move(fences)), blocks_(num_reserved), batches_(16) {}

void FencedReleases::Push(BlockId block, int64_t ticket) {
  blocks_.push_back(block);
  if (batches_.empty() || batches_.back().ticket < ticket) {
    batches_.push_back({.ticket = ticket, .num_blocks = 0});
  }
  ++batches_.back().num_blocks;
}

std::optional<BlockId> FencedReleases::PopPassed(int64_t last_passed) {
  if (batches_.empty() || batches_.front().ticket > last_passed) return std::nullopt;
  if (--batches_.front().num_blocks == 0) batches_.pop_front();
  const BlockId block = blocks_.front();
  blocks_.pop_front();
  return block;
}

}  // namespace reprise
