// Block releases that wait for events, in first-in, first-out order.
//
// A copy on another stream keeps a reference to each block that it reads or writes. The reference
// is released when an event after the copy has completed:
//
//   Launch(stream, copies);
//   releases.Push(block, events.Arm());   // a FenceQueue over the stream
//   ...
//   releases.ReleasePassed(events.Poll(), [&](BlockId block) { pool.Release(block); });
//
// Releases keep their order: if the event of a release is older than the event of the release
// before it, the release waits for the newer event.
//
// Thread safety: not thread-safe; one owner. Cost: O(1) per release. Push() may allocate.

#ifndef REPRISE_CACHE_BLOCKS_DEFERRED_RELEASES_H_
#define REPRISE_CACHE_BLOCKS_DEFERRED_RELEASES_H_

#include <cstdint>
#include <deque>

#include "absl/functional/function_ref.h"
#include "reprise/base/ids.h"

namespace reprise {

class DeferredReleases {
 public:
  // Adds a release of `block`. A block may occur several times.
  void Push(BlockId block, int64_t event) { releases_.push_back({.block = block, .event = event}); }

  // Removes the oldest releases, up to the first one whose event is newer than `last_passed`. Calls
  // `release` for the block of each, in order.
  void ReleasePassed(int64_t last_passed, absl::FunctionRef<void(BlockId)> release);

  int64_t size() const { return static_cast<int64_t>(releases_.size()); }

  // The block of the i-th oldest release, 0 <= i < size().
  BlockId block(int64_t i) const { return releases_[i].block; }

 private:
  struct Release {
    BlockId block;
    int64_t event = 0;
  };

  std::deque<Release> releases_;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_DEFERRED_RELEASES_H_
