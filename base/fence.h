// A point in the work of a consumer, such as a CUDA stream, that the host can ask about or wait
// for.
//
// The owner of a resource that the consumer still reads (a staging slot, a freed block) arms a
// fence after the last use has been submitted, and reuses the resource only when the fence has
// passed:
//
//   Launch(stream, slot.data());  // reads the slot some time later
//   fence.Arm();
//   ...
//   REPRISE_RETURN_IF_ERROR(fence.Wait());   // now the slot may be overwritten
//
// The CUDA form records an event on a stream. FakeFence (base/testing/fake_fence.h) passes when a test
// calls Pass().
//
// Thread safety: one owner. The consumer's progress may happen on any thread.

#ifndef REPRISE_BASE_FENCE_H_
#define REPRISE_BASE_FENCE_H_

#include "absl/status/status.h"

namespace reprise {

class Fence {
 public:
  virtual ~Fence() = default;

  // Places the fence after everything submitted to the consumer so far; an earlier arming is
  // forgotten.
  virtual void Arm() = 0;

  // True if the consumer has passed the fence, or if it was never armed. Does not block. A consumer
  // that has failed reads nothing more, so its fences pass: what it read may be overwritten.
  virtual bool Passed() = 0;

  // Blocks until Passed(). Errors: those of the consumer, such as Internal if a device failed. Then
  // what it should have written is not there, and must not be read.
  virtual absl::Status Wait() = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_FENCE_H_
