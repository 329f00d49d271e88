#include "expert_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace {

float Dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

void Assign(const ExpertArgs& args) {
  std::fill_n(args.counts, args.num_experts, 0);
  const int64_t num_pairs = int64_t{args.num_tokens} * args.num_chosen;
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    const int64_t token = pair / args.num_chosen, expert = args.experts[pair];
    const bool is_live = token < *args.num_live_tokens;
    const bool fits = is_live && args.counts[expert] < args.capacity;
    args.places[pair] = fits ? args.counts[expert]++ : -1;
    if (fits) args.tokens[expert * args.capacity + args.places[pair]] = static_cast<int>(token);
  }
}

void Compute(const ExpertArgs& args) {
  std::vector<float> gated(args.inner);
  for (int64_t expert = 0; expert < args.num_experts; ++expert) {
    const float* gate = args.gate_up + expert * 2 * args.inner * args.hidden;
    const float* up = gate + int64_t{args.inner} * args.hidden;
    const float* down = args.down + expert * args.hidden * args.inner;
    for (int64_t place = 0; place < args.counts[expert]; ++place) {
      const int64_t row = expert * args.capacity + place;
      const float* x = args.x + int64_t{args.tokens[row]} * args.hidden;
      for (int64_t i = 0; i < args.inner; ++i) {
        const float g = Dot(gate + i * args.hidden, x, args.hidden);
        gated[i] = g / (1 + std::exp(-g)) * Dot(up + i * args.hidden, x, args.hidden);
      }
      for (int64_t h = 0; h < args.hidden; ++h) {
        args.outputs[row * args.hidden + h] = Dot(down + h * args.inner, gated.data(), args.inner);
      }
    }
  }
}

void Combine(const ExpertArgs& args) {
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    float* out = args.out + token * args.hidden;
    std::fill_n(out, args.hidden, 0.0f);
    for (int64_t pair = token * args.num_chosen; pair < (token + 1) * args.num_chosen; ++pair) {
      if (args.places[pair] < 0) continue;
      const float* from =
          args.outputs + (args.experts[pair] * args.capacity + args.places[pair]) * args.hidden;
      for (int h = 0; h < args.hidden; ++h) out[h] += args.weights[pair] * from[h];
    }
  }
}

}  // namespace

void ExpertsOnHost(const ExpertArgs& args) {
  Assign(args);
  Compute(args);
  Combine(args);
}
