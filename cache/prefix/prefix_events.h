// The keys that were added to and removed from a prefix index, for a router that sends requests to
// the process that has their prefix.
//
//   const PrefixEvents taken = index.TakeEvents();
//   for (const PrefixEvent& event : taken.events) router.Apply(event);
//   if (taken.num_lost > 0) router.Replace(index.Snapshot());
//
// The queue has a fixed size. If it is full, later events are only counted until the next Take().
// The returned events therefore have no gaps, and num_lost events followed them.
//
// Thread safety: not thread-safe; one owner. Cost: O(1). Allocates 96 bytes per event in the
// constructor, and nothing later.

#ifndef REPRISE_CACHE_PREFIX_PREFIX_EVENTS_H_
#define REPRISE_CACHE_PREFIX_PREFIX_EVENTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/prefix/prefix_hash.h"

namespace reprise {

struct PrefixEvent {
  enum class Kind : int8_t {
    kStored,   // the first block with this key was added
    kRemoved,  // the last block with this key was removed
    kCleared,  // all keys were removed; the other fields are undefined
  };

  Kind kind = Kind::kStored;
  BlockId block = {};
  int group = 0;
  int num_tokens = 0;  // tokens in the block
  PrefixHash hash = {};
  PrefixHash parent = {};  // kStored only: the hash of the previous block, or the root

  friend bool operator==(const PrefixEvent&, const PrefixEvent&) = default;
};

struct PrefixEvents {
  absl::Span<const PrefixEvent> events = {};  // oldest first
  int64_t num_lost = 0;                       // number of events lost after `events`
};

class PrefixEventQueue {
 public:
  // Stores at most `capacity` >= 0 events. 0: events are neither stored nor counted as lost.
  explicit PrefixEventQueue(int64_t capacity);

  void Push(const PrefixEvent& event);

  // Returns all events since the last call. Valid until the next call.
  PrefixEvents Take();

  int64_t num_bytes() const { return 2 * capacity_ * static_cast<int64_t>(sizeof(PrefixEvent)); }

 private:
  int64_t capacity_;
  std::vector<PrefixEvent> pending_;
  std::vector<PrefixEvent> taken_;
  int64_t num_lost_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_PREFIX_PREFIX_EVENTS_H_
