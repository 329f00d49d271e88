// Sees the tensors of a forward pass that Step::Watch() names, in the order of the pass.
//
// Thread safety: none; one owner.

#ifndef RUNNER_STEP_WATCH_H_
#define RUNNER_STEP_WATCH_H_

#include <ATen/core/Tensor.h>

#include <string_view>

#include "absl/status/status.h"

namespace reprise {

class StepWatch {
 public:
  virtual ~StepWatch() = default;

  // A forward pass begins.
  virtual void Begin() = 0;
  // Called with the step's stream current; it may be captured.
  virtual void See(std::string_view name, const at::Tensor& tensor) = 0;
  // The pass has ended. Errors: what the watch found; the step then fails with it.
  virtual absl::Status End() = 0;
};

}  // namespace reprise

#endif  // RUNNER_STEP_WATCH_H_
