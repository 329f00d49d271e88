#include "reprise/attention/speculation/tree_tokens.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/attention/speculation/tree_check.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/kv_group.h"

namespace reprise {

absl::Status CheckTreeTokens(const TreeTokensArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_nodes", args.max_nodes, 1, kMaxTreeNodes));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_groups", args.num_groups, 1, kMaxKvGroups));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("parents", args.parents.nodes));
  REPRISE_RETURN_IF_ERROR(CheckParentStride(args.parents, args.max_nodes, args.num_rows));
  REPRISE_RETURN_IF_ERROR(CheckOutputArrays(args.arrays, args.num_rows, args.num_tokens));
  REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.tail_len", args.arrays.tail_len));
  if (args.num_tokens > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("arrays.tail_mask", args.arrays.tail_mask));
  }
  if (args.sample_offset != nullptr) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("first_verified", args.first_verified));
    REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_logits", args.num_logits, args.num_rows));
  }
  if (args.model_positions.positions == nullptr) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("model_positions.stride", args.model_positions.stride, args.num_tokens));
  return CheckGiven("model_positions.delta", args.model_positions.delta);
}

void TreeTokensOnHost(const TreeTokensArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) WriteTreeTokens(SerialLanes(), args, row);
}

}  // namespace reprise
