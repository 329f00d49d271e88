#include "reprise/cache/blocks/length_limits.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "reprise/cache/group_retention.h"

namespace reprise {

LengthLimits LengthLimitsOf(const BlockManager& blocks, int max_seq_len, int num_uncommitted,
                            int num_encoder_tokens) {
  const int of_pool = blocks.max_tokens(num_uncommitted, num_encoder_tokens);
  return {.max_tokens = std::min(max_seq_len, of_pool),
          .is_pool_the_limit = of_pool < max_seq_len,
          .has_windows = absl::c_any_of(blocks.groups(), LosesBlocks)};
}

}  // namespace reprise
