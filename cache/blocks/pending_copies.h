// Block copies to make before the next step, in a form that can run in any order.
//
//   PendingCopies copies;
//   const BlockId origin = copies.Origin(block);
//   pool.Share(origin);                       // kept until the copy is taken
//   copies.Add(origin, fresh);
//   for (const BlockCopy& copy : copies.pending()) ...
//
// Destinations are distinct, and none is a source: a copy of a pending destination is made from its
// origin. Drop() removes a destination that is no longer needed.
//
// Thread safety: none; one owner. Cost: linear in the pending copies, which are few: one for each
// fork or hit within a block since the last step. Allocates only for a list longer than all before.

#ifndef REPRISE_CACHE_BLOCKS_PENDING_COPIES_H_
#define REPRISE_CACHE_BLOCKS_PENDING_COPIES_H_

#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"

namespace reprise {

class PendingCopies {
 public:
  bool empty() const { return pending_.empty(); }
  absl::Span<const BlockCopy> pending() const { return pending_; }

  // Where the content of `block` is now: the source of the pending copy to it, or itself.
  BlockId Origin(BlockId block) const;

  // REQUIRES: Origin(source) == source, and `destination` is neither source nor destination of a
  // pending copy.
  void Add(BlockId source, BlockId destination);

  // Drops the copy to `destination`, if any, and returns its source.
  std::optional<BlockId> Drop(BlockId destination);

  // The number of copies with this source.
  int NumFrom(BlockId source) const;

  // Removes and returns all of them. Valid until the next call.
  absl::Span<const BlockCopy> Take();

 private:
  std::vector<BlockCopy> pending_;
  std::vector<BlockCopy> taken_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_PENDING_COPIES_H_
