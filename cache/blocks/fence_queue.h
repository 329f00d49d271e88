// Numbers the events of one consumer, such as a CUDA stream, with a fixed number of fences.
//
//   REPRISE_ASSIGN_OR_RETURN(FenceQueue events, FenceQueue::Create(std::move(fences)));
//   Launch(stream, ...);
//   const int64_t event = events.Arm();  // after the launch
//   ...
//   if (events.Poll() >= event) ...      // this launch and all launches before it have completed
//
// An event is a point in the consumer's work. Events are numbered in order: if an event has
// completed, all events with smaller numbers have completed. Arm() never blocks. If all fences are
// armed, Arm() arms the newest fence again, for its previous events and the new one. Those events
// are then reported later than possible, but never too early.
//
// Thread safety: not thread-safe; one owner. Ownership: the queue owns the fences, and only the
// queue may arm them. Cost: Arm() arms one fence. Arm() and Poll() query the completed fences and
// one more. No allocation.

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
  // Errors: InvalidArgument if a fence is null, or if there are fewer than two fences. With one
  // fence, a steady flow of new events could keep an event from ever completing.
  static absl::StatusOr<FenceQueue> Create(std::vector<std::unique_ptr<Fence>> fences);

  FenceQueue(FenceQueue&&) = default;
  FenceQueue& operator=(FenceQueue&&) = default;

  // Returns the number of the next event; the first is 1. It completes when the consumer has done
  // all work submitted so far.
  int64_t Arm();

  // Returns the last completed event, or 0. Does not block.
  int64_t Poll();

 private:
  struct ArmedFence {
    std::unique_ptr<Fence> fence;
    int64_t event = 0;  // the last event that completes with the fence
  };

  explicit FenceQueue(std::vector<ArmedFence> fences) : fences_(std::move(fences)) {}

  std::vector<ArmedFence> fences_;  // a ring: num_waiting_ armed fences, first oldest_
  int oldest_ = 0;
  int num_waiting_ = 0;
  int64_t last_armed_ = 0;
  int64_t last_passed_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_FENCE_QUEUE_H_
