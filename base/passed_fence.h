// A fence that is always complete. Use it for synchronous consumers, and for resources whose uses
// are ordered by one stream, so that the host need not wait.
//
// Thread safety: thread-safe.

#ifndef REPRISE_BASE_PASSED_FENCE_H_
#define REPRISE_BASE_PASSED_FENCE_H_

#include "absl/status/status.h"
#include "reprise/base/fence.h"

namespace reprise {

class PassedFence : public Fence {
 public:
  void Arm() override {}
  bool Passed() override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }
};

}  // namespace reprise

#endif  // REPRISE_BASE_PASSED_FENCE_H_
