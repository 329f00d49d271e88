#include "reprise/attention/metadata/rank_rows.h"

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckRankRows(const RankRowsArgs& args) {
  const KeyPositions& ranks = args.ranks;
  if (!IsValid(ranks)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "ranks: expected a rank in [0, world) and an interleave of at least 1, got rank ",
        ranks.rank, " of ", ranks.world, ", interleave ", ranks.interleave));
  }
  if (args.block_size < 1 || args.block_size % CycleLen(ranks) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size: expected a multiple of world * interleave (", CycleLen(ranks),
                     "), got ", args.block_size));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_groups", args.num_groups, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("group_stride", args.group_stride, args.num_tokens));
  if (args.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("seq_lens", args.seq_lens));
    REPRISE_RETURN_IF_ERROR(CheckGiven("rank_seq_lens", args.rank_seq_lens));
    if (args.context_lens != nullptr) {
      REPRISE_RETURN_IF_ERROR(CheckGiven("rank_context_lens", args.rank_context_lens));
    }
  }
  if (args.num_tokens == 0 || args.num_groups == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("slot_mapping", args.slot_mapping));
  return CheckGiven("rank_slot_mapping", args.rank_slot_mapping);
}

void RankRowsOnHost(const RankRowsArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) WriteRankRow(args, row);
  for (int group = 0; group < args.num_groups; ++group) {
    for (int token = 0; token < args.num_tokens; ++token) WriteRankSlot(args, group, token);
  }
}

}  // namespace reprise
