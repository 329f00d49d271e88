// The CPU's form of rotary embedding (runner/ops/rotary.h).

#ifndef RUNNER_OPS_ROTARY_HOST_H_
#define RUNNER_OPS_ROTARY_HOST_H_

#include "runner/ops/rotary_args.h"

namespace reprise {

// REQUIRES: positions and slots are in range.
void RotaryOnHost(const RotaryArgs& args);

}  // namespace reprise

#endif  // RUNNER_OPS_ROTARY_HOST_H_
