#include "reprise/runner/speculation/tree_tokens.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckTreeTokens(const TreeTokensArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", args.num_rows, args.arrays.max_rows));
  if (args.num_rows == 0) return absl::OkStatus();
  if (args.arrays.num_position_dims > 1) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"slots.position_delta", args.slots.position_delta},
                                        {"arrays.model_positions", args.arrays.model_positions},
                                        {"arrays.table_row", args.arrays.table_row}}));
  }
  return CheckGiven({{"arrays.query_start_loc", args.arrays.query_start_loc},
                     {"arrays.context_lens", args.arrays.context_lens},
                     {"arrays.first_verified", args.arrays.first_verified},
                     {"arrays.sample_offset", args.arrays.sample_offset},
                     {"arrays.positions", args.arrays.positions},
                     {"arrays.parents", args.arrays.parents},
                     {"arrays.tail_len", args.arrays.tail_len},
                     {"arrays.tail_mask", args.arrays.tail_mask}});
}

void TreeTokensOnHost(const TreeTokensArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) WriteTreeTokens(SerialLanes(), args, r);
}

}  // namespace reprise
