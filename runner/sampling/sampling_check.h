// Validates sampling parameters.
//
//   REPRISE_RETURN_IF_ERROR(CheckSampling({.temperature = 0.7f, .top_p = 0.9f}));
//
// Does not depend on LibTorch. Thread safety: pure function. Cost: O(1); allocates only for an
// error.

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_CHECK_H_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_CHECK_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/sampling_params.h"

namespace reprise {

// Errors: InvalidArgument, naming the first field that is out of range: a temperature that is
// negative, NaN or infinite; a negative top_k; a top_p outside (0, 1] or NaN; a min_p outside
// [0, 1] or NaN.
absl::Status CheckSampling(const SamplingParams& params);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_CHECK_H_
