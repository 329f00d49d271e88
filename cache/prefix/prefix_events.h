// The keys that were added to a prefix index and removed from it, for a router that sends requests
// to the process that has their prefix.
//
//   const PrefixEvents taken = index.TakeEvents();
//   for (const PrefixEvent& event : taken.events) router.Apply(event);
//   if (taken.num_lost > 0) router.Replace(index.Snapshot());
//
// The queue has a fixed size. When it is full, later events are only counted until the queue is
// taken: so the events that the caller gets have no gaps, and num_lost more followed them.
//
// Thread safety: none; one owner. Cost: O(1); allocates 96 bytes an event in the constructor, and
// nothing after it.

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
    kRemoved,  // the last one is gone
    kCleared,  // all keys are gone; the other fields have no meaning
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
  int64_t num_lost = 0;                       // events after those
};

class PrefixEventQueue {
 public:
  // Holds at most `capacity` >= 0 events. 0: events are neither kept nor counted as lost.
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

#endif  // REPRISE_CACHE_PREFIX_PREFIX_EVENTS_H_
