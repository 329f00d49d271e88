#include "reprise/runner/sampling/sampling_check.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status CheckSampling(const SamplingParams& params) {
  // Each condition is false for NaN.
  if (!(params.temperature >= 0.0f && params.temperature <= std::numeric_limits<float>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature must be at least 0 and finite: got ", params.temperature));
  }
  if (params.top_k < 0) {
    return absl::InvalidArgumentError(absl::StrCat("top_k must be at least 0: got ", params.top_k));
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return absl::InvalidArgumentError(absl::StrCat("top_p must be in (0, 1]: got ", params.top_p));
  }
  if (!(params.min_p >= 0.0f && params.min_p <= 1.0f)) {
    return absl::InvalidArgumentError(absl::StrCat("min_p must be in [0, 1]: got ", params.min_p));
  }
  return absl::OkStatus();
}

}  // namespace reprise
