// Rotary embedding of single vectors on the CPU, for caches that hold unrotated keys.
//
// Angles are computed in float64: at position 10^5 a float32 angle is off by 0.004 rad. Thread
// safety: none; one owner. Cost: one sine and one cosine per pair.

#ifndef REPRISE_ATTENTION_CPU_ROTARY_H_
#define REPRISE_ATTENTION_CPU_ROTARY_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/attention_params.h"

namespace reprise {

class HostRotary {
 public:
  // Caches the frequencies of the last parameters; allocates only when head_dim grows.
  void Prepare(const RotaryParams& params, int head_dim);

  // Turns x [head_dim] to `position`. REQUIRES: Prepare() was called.
  void Apply(int64_t position, float* x) const;

 private:
  RotaryParams params_;
  int head_dim_ = 0;
  std::vector<double> frequencies_;  // one per pair
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_ROTARY_H_
