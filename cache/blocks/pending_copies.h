// Block copies to run before the next step. They can run in any order.
//
//   PendingCopies copies;
//   const BlockId origin = copies.Origin(block);
//   pool.Share(origin);                       // kept until the copy is taken
//   copies.Add(origin, fresh);
//   for (const BlockCopy& copy : copies.pending()) ...
//
// Destinations are distinct, and no destination is a source: a copy from a pending destination
// reads from its origin instead. Drop() removes the copy to a destination that is no longer needed.
//
// Thread safety: not thread-safe; one owner. Cost: linear in the number of pending copies, which is
// small: at most a few per fork, partial hit or truncation since the last step. Allocates only for
// a list longer than all previous ones.

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

  // Returns the block that currently holds the content of `block`: the source of the pending copy
  // to `block`, or `block` itself.
  BlockId Origin(BlockId block) const;

  // Adds a copy. REQUIRES: Origin(source) == source, and `destination` is neither the source nor
  // the destination of a pending copy.
  void Add(BlockId source, BlockId destination);

  // Removes the copy to `destination`, if any, and returns its source.
  std::optional<BlockId> Drop(BlockId destination);

  // Returns the number of pending copies with this source.
  int NumFrom(BlockId source) const;

  // Removes and returns all copies. The result is valid until the next call.
  absl::Span<const BlockCopy> Take();

 private:
  std::vector<BlockCopy> pending_;
  std::vector<BlockCopy> taken_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_PENDING_COPIES_H_
