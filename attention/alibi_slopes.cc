#include "reprise/attention/alibi_slopes.h"

#include <glog/logging.h>

#include <bit>
#include <cmath>

namespace reprise {

std::vector<float> AlibiSlopes(int num_heads) {
  CHECK_GE(num_heads, 1);
  const auto power = static_cast<int>(std::bit_floor(static_cast<unsigned>(num_heads)));
  std::vector<float> slopes;
  slopes.reserve(num_heads);
  for (int head = 0; head < power; ++head) {
    slopes.push_back(static_cast<float>(std::exp2(-8.0 * (head + 1) / power)));
  }
  for (int head = 0; head < num_heads - power; ++head) {
    slopes.push_back(static_cast<float>(std::exp2(-4.0 * (2 * head + 1) / power)));
  }
  return slopes;
}

}  // namespace reprise
