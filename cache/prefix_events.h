// What became findable in a prefix index and what ceased to be, for a router that sends requests to
// where their prefix is.
//
//   const PrefixEvents taken = index.TakeEvents();
//   for (const PrefixEvent& event : taken.events) router.Apply(event);
//   if (taken.num_lost > 0) router.Replace(index.Snapshot());
//
// The queue has a fixed size. When it is full, what happens next is counted instead of kept, until
// the queue is taken: so the events that one gets are without gaps, and num_lost follow them.
//
// Thread safety: none; one owner. Cost: O(1), no allocation after the constructor, which
// takes 96 bytes an event.

#ifndef CACHE_PREFIX_EVENTS_H_
#define CACHE_PREFIX_EVENTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "cache/prefix_hash.h"

namespace reprise {

struct PrefixEvent {
  enum class Kind : int8_t {
    kStored,   // the first block with this key was added
    kRemoved,  // the last one is gone
    kCleared,  // everything is gone; the other fields mean nothing
  };

  Kind kind = Kind::kStored;
  BlockId block = {};
  int group = 0;
  int num_tokens = 0;  // of the block
  PrefixHash hash = {};
  PrefixHash parent = {};  // of kStored: the hash of the block before, or the root

  friend bool operator==(const PrefixEvent&, const PrefixEvent&) = default;
};

struct PrefixEvents {
  absl::Span<const PrefixEvent> events = {};  // oldest first
  int64_t num_lost = 0;                       // that happened after those
};

class PrefixEventQueue {
 public:
  // Of at most `capacity` >= 0 events. 0: nothing is kept and nothing counts as lost.
  explicit PrefixEventQueue(int64_t capacity);

  void Push(const PrefixEvent& event);

  // All events since the last call. Valid until the next call.
  PrefixEvents Take();

  int64_t num_bytes() const { return 2 * capacity_ * static_cast<int64_t>(sizeof(PrefixEvent)); }

 private:
  int64_t capacity_;
  std::vector<PrefixEvent> pending_;
  std::vector<PrefixEvent> taken_;
  int64_t num_lost_ = 0;
};

}  // namespace reprise

#endif  // CACHE_PREFIX_EVENTS_H_
