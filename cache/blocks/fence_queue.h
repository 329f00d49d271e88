// Tickets for points in the work of one consumer, over a fixed number of fences.
//
//   REPRISE_ASSIGN_OR_RETURN(FenceQueue queue, FenceQueue::Create(std::move(fences)));
//   Launch(stream, ...);
//   const int64_t ticket = queue.Arm();  // after the launch
//   ...
//   if (queue.Poll() >= ticket) ...      // the launch is done, and all before it
//
// A consumer passes its points in order, so if a ticket has passed, all smaller ones have. Arm()
// never blocks: when every fence still waits, it arms the newest again, for its tickets and the new
// one; those tickets then pass later than they could, never too early.
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
  // Errors: InvalidArgument if a fence is null or there are fewer than two: with one, a ticket
  // might never pass under a steady flow of new ones.
  static absl::StatusOr<FenceQueue> Create(std::vector<std::unique_ptr<Fence>> fences);

  FenceQueue(FenceQueue&&) = default;
  FenceQueue& operator=(FenceQueue&&) = default;

  // The next ticket, 1 for the first: it passes when the consumer has done everything submitted so
  // far.
  int64_t Arm();

  // The largest ticket that has passed, 0 before the first. Does not block.
  int64_t Poll();

 private:
  struct ArmedFence {
    std::unique_ptr<Fence> fence;
    int64_t ticket = 0;  // the largest that passes with it
  };

  explicit FenceQueue(std::vector<ArmedFence> fences) : fences_(std::move(fences)) {}

  std::vector<ArmedFence> fences_;  // a ring: num_waiting_ of them wait, from oldest_ on
  int oldest_ = 0;
  int num_waiting_ = 0;
  int64_t last_armed_ = 0;
  int64_t last_passed_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCKS_FENCE_QUEUE_H_
