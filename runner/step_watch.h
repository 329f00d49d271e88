// Receives the tensors of a forward pass that Step::Watch() names, in the order of the pass.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_STEP_WATCH_H_
#define REPRISE_RUNNER_STEP_WATCH_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace reprise {

// The meaning of a watched tensor's first dimension. It determines which rows are padding.
enum class WatchedRows : int8_t {
  kTokens,  // one per token of the step: [num_tokens, ...]
  kLogits,  // one per entry of logits_indices: [num_logits, ...]
  kAll,     // all elements of a tensor of any shape
};

class StepWatch {
 public:
  virtual ~StepWatch() = default;

  // Called at the start of a forward pass.
  virtual void Begin() = 0;
  // Called with the step's stream current. May be called during capture.
  virtual void See(std::string_view name, const at::Tensor& tensor, WatchedRows rows) = 0;
  // Called at the end of the pass. Returns an error found by the watch; the step then fails with
  // it.
  virtual absl::Status End() = 0;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_WATCH_H_
