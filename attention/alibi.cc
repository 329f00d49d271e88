#include "attention/alibi.h"

#include <bit>
#include <cmath>

namespace reprise {
namespace {

// Of head `head` among `num_heads`, a power of two.
float Slope(int head, int num_heads) {
  return static_cast<float>(std::exp2(-8.0 * (head + 1) / num_heads));
}

}  // namespace

std::vector<float> AlibiSlopes(int num_q_heads) {
  std::vector<float> slopes;
  const int below = static_cast<int>(std::bit_floor(static_cast<unsigned>(num_q_heads)));
  for (int head = 0; head < below; ++head) slopes.push_back(Slope(head, below));
  for (int head = 0; head < num_q_heads - below; ++head) {
    slopes.push_back(Slope(2 * head, 2 * below));
  }
  return slopes;
}

}  // namespace reprise
