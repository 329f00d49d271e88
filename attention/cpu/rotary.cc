#include "reprise/attention/cpu/rotary.h"

#include <cmath>

namespace reprise {

void HostRotary::Prepare(const RotaryParams& params, int head_dim) {
  const bool unchanged = head_dim == head_dim_ && params.rope_scale == params_.rope_scale &&
                         params.rope_theta == params_.rope_theta &&
                         params.rotary_dim == params_.rotary_dim;
  if (unchanged) return;
  params_ = params;
  head_dim_ = head_dim;
  const int rotary_dim = params.rotary_dim == 0 ? head_dim : params.rotary_dim;
  frequencies_.resize(rotary_dim / 2);
  for (size_t d = 0; d < frequencies_.size(); ++d) {
    frequencies_[d] =
        std::pow(double{params.rope_theta}, -2.0 * static_cast<double>(d) / rotary_dim) /
        params.rope_scale;
  }
}

void HostRotary::Apply(int64_t position, float* x) const {
  const size_t half = frequencies_.size();
  for (size_t d = 0; d < half; ++d) {
    const double angle = static_cast<double>(position) * frequencies_[d];
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    const float first = x[d];
    const float second = x[d + half];
    x[d] = first * cosine - second * sine;
    x[d + half] = second * cosine + first * sine;
  }
}

}  // namespace reprise
