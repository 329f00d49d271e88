// The events of one consumer, such as a CUDA stream, over a fixed number of fences.
//
//   REPRISE_ASSIGN_OR_RETURN(FenceQueue events, FenceQueue::Create(std::move(fences)));
//   Launch(stream, ...);
//   const int64_t event = events.Arm();  // after the launch
//   ...
//   if (events.Poll() >= event) ...      // the launch is done, and all before it
//
// An event is a point in the consumer's work. Events are numbered, and the consumer passes them in
// order: if an event has passed, all events with smaller numbers have. Arm() never blocks. If every
// fence still waits, Arm() arms the newest fence again, for the events of that fence and the new
// one. Those events then pass later than they could, never too early.
//
// Thread safety: none; one owner. Ownership: the queue owns the fences; only the queue may arm
// them. Cost: Arm() arms one fence, Poll() queries those that have passed and one more; no
// allocation.

#ifndef REPRISE_CACHE_BLOCKS_FENCE_QUEUE_H_
#define REPRISE_CACHE_BLOCKS_FENCE_QUEUE_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/base/fence.h"

namespace reprise {

class FenceQueue {
 public:
  // Errors: InvalidArgument if a fence is null or there are fewer than two: with one, an event
  // might never pass under a steady flow of new ones.
  static absl::StatusOr<FenceQueue> Create(std::vector<std::unique_ptr<Fence>> fences);

  FenceQueue(FenceQueue&&) = default;
  FenceQueue& operator=(FenceQueue&&) = default;

  // The next event, 1 for the first. It passes when the consumer has done everything submitted so
  // far.
  int64_t Arm();

  // The last event that has passed, 0 before the first. Does not block.
  int64_t Poll();

 private:
  struct ArmedFence {
    std::unique_ptr<Fence> fence;
    int64_t event = 0;  // the last that passes with it
  };

  explicit FenceQueue(std::vector<ArmedFence> fences) : fences_(std::move(fences)) {}

  std::vector<ArmedFence> fences_;  // a ring: num_waiting_ fences wait, first oldest_
  int oldest_ = 0;
  int num_waiting_ = 0;
  int64_t last_armed_ = 0;
  int64_t last_passed_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_FENCE_QUEUE_H_
