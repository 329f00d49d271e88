// A point in the work of a consumer, such as a CUDA stream, that the host can query or wait for.
//
// Used by the owner of a resource that the consumer still reads, such as a staging slot or a freed
// block. The owner arms a fence after it has submitted the last use, and reuses the resource only
// after the fence has completed:
//
//   Launch(stream, slot.data());  // reads the slot some time later
//   fence.Arm();
//   ...
//   REPRISE_RETURN_IF_ERROR(fence.Wait());   // now the slot may be overwritten
//
// The CUDA implementation records an event on a stream. FakeFence (base/testing/fake_fence.h)
// completes when a test calls Pass().
//
// Thread safety: not thread-safe; one owner. The consumer may advance on any thread.

#ifndef REPRISE_BASE_FENCE_H_
#define REPRISE_BASE_FENCE_H_

#include "absl/status/status.h"

namespace reprise {

class Fence {
 public:
  virtual ~Fence() = default;

  // Places the fence after all work submitted to the consumer so far. Replaces an earlier arming.
  virtual void Arm() = 0;

  // Returns true if the fence has completed or was never armed. Does not block. The fences of a
  // failed consumer complete: the consumer reads nothing more, so its input may be overwritten.
  virtual bool Passed() = 0;

  // Blocks until Passed() is true.
  // Errors: an error of the consumer, such as Internal if a device failed. The consumer's results
  // are then missing and must not be read.
  virtual absl::Status Wait() = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_FENCE_H_
