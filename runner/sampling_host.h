// Sampling on the CPU (runner/sampling.h).

#ifndef RUNNER_SAMPLING_HOST_H_
#define RUNNER_SAMPLING_HOST_H_

#include "runner/sampling_args.h"

namespace reprise {

void SampleOnHost(const SamplingArgs& args);

}  // namespace reprise

#endif  // RUNNER_SAMPLING_HOST_H_
