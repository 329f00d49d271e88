// Rotary embedding of single vectors on the CPU, for caches with unrotated keys.
//
// Angles are computed in float64: at position 10^5 a float32 angle has an error of 0.004 rad.
// Thread safety: not thread-safe; one owner. Cost: one sine and one cosine per pair.

#ifndef REPRISE_ATTENTION_CPU_ROTARY_H_
#define REPRISE_ATTENTION_CPU_ROTARY_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/attention_params.h"

namespace reprise {

class HostRotary {
 public:
  // Caches the frequencies for the last parameters. Allocates only if the number of rotated dims
  // grows.
  void Prepare(const RotaryParams& params, int head_dim);

  // Rotates x [head_dim] by `position`. REQUIRES: Prepare() has been called.
  void Apply(int64_t position, float* x) const;

 private:
  RotaryParams params_;
  int head_dim_ = 0;
  std::vector<double> frequencies_;  // one per pair of dims
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_ROTARY_H_
