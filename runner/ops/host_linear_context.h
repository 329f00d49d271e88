// Matrix products on the CPU, through LibTorch: MKL for float32, oneDNN for bfloat16.
//
// Used through MakeLinearContext (runner/ops/linear.h). Stateless but for its mode.

#ifndef RUNNER_OPS_HOST_LINEAR_CONTEXT_H_
#define RUNNER_OPS_HOST_LINEAR_CONTEXT_H_

#include <memory>

#include "runner/ops/linear_context.h"

namespace reprise {

// kOneByOne: a row gives the same bits whatever else is in the batch.
enum class HostRows { kTogether, kOneByOne };

std::unique_ptr<LinearContext> MakeHostLinearContext(HostRows rows);

}  // namespace reprise

#endif  // RUNNER_OPS_HOST_LINEAR_CONTEXT_H_
