// Matrix products on the CPU, through LibTorch: MKL for float32, oneDNN for bfloat16.
//
// Used through MakeLinearContext (runner/ops/linear.h). Stateless.

#ifndef RUNNER_OPS_HOST_LINEAR_CONTEXT_H_
#define RUNNER_OPS_HOST_LINEAR_CONTEXT_H_

#include <memory>

#include "runner/ops/linear_context.h"

namespace reprise {

std::unique_ptr<LinearContext> MakeHostLinearContext();

}  // namespace reprise

#endif  // RUNNER_OPS_HOST_LINEAR_CONTEXT_H_
