// Releases of blocks that wait for one consumer, first in, first out.
//
//   const int64_t ticket = releases.fences().Arm();
//   releases.Push(block, ticket);
//   while (std::optional<BlockId> passed = releases.PopPassed(releases.fences().Poll())) ...
//
// A release under an older ticket than the one before it waits for the younger: order is kept.
//
// Thread safety: none; one owner. Cost: O(1) a release; no allocation while no more releases wait
// than ever before or than were reserved. 4 bytes a release, and 16 a ticket that has some.

#ifndef REPRISE_CACHE_BLOCKS_FENCED_RELEASES_H_
#define REPRISE_CACHE_BLOCKS_FENCED_RELEASES_H_

#include <cstdint>
#include <optional>

#include "reprise/base/ids.h"
#include "reprise/base/ring_queue.h"
#include "reprise/cache/blocks/fence_queue.h"

namespace reprise {

class FencedReleases {
 public:
  FencedReleases(FenceQueue fences, int64_t num_reserved);

  FenceQueue& fences() { return fences_; }
  const FenceQueue& fences() const { return fences_; }

  void Push(BlockId block, int64_t ticket);

  // Removes the oldest release if its ticket is at most `last_passed`.
  std::optional<BlockId> PopPassed(int64_t last_passed);

  int64_t size() const { return blocks_.size(); }

  // The i-th oldest, 0 <= i < size().
  BlockId block(int64_t i) const { return blocks_[i]; }

  // The ticket that the oldest release waits for. REQUIRES: size() > 0.
  int64_t oldest_ticket() const { return batches_.front().ticket; }

  int64_t num_bytes() const { return blocks_.num_bytes() + batches_.num_bytes(); }

 private:
  // Consecutive releases under one ticket.
  struct Batch {
    int64_t ticket = 0;
    int64_t num_blocks = 0;
  };

  FenceQueue fences_;
  RingQueue<BlockId> blocks_;
  RingQueue<Batch> batches_;  // of blocks_, in order; not empty
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_FENCED_RELEASES_H_
