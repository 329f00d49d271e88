#include "reprise/runner/speculation/draft_rows.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {
namespace {

absl::Status CheckLevel(const DraftRowsArgs& args) {
  const DraftLevel& level = args.level;
  REPRISE_RETURN_IF_ERROR(CheckBetween("level.num_levels", level.num_levels, 1, args.max_drafts));
  REPRISE_RETURN_IF_ERROR(CheckGiven({{"level.ranks", level.ranks},
                                      {"arrays.tail_mask", args.arrays.tail_mask},
                                      {"draft.tail_len", args.draft.tail_len},
                                      {"draft.tail_mask", args.draft.tail_mask}}));
  if (args.pass == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckBetween("level.first", level.first, 1, args.max_drafts));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("level.first_before", level.first_before, 0, level.first - 1));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("level.end", level.end, level.first + 1, 1 + int64_t{args.max_drafts}));
  if (args.pass == level.num_levels) return absl::OkStatus();  // no rows
  const int64_t num_logits = int64_t{args.num_rows} * (level.end - level.first);
  return CheckAtMost("num_rows x nodes of the level", num_logits,
                     int64_t{args.draft.max_rows} + args.draft.max_earlier_logits);
}

absl::Status CheckSizes(const DraftRowsArgs& args) {
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("max_drafts", args.max_drafts, 1, IsTree(args) ? kMaxTreeDrafts : kMaxDrafts));
  REPRISE_RETURN_IF_ERROR(CheckBetween("pass", args.pass, 0, NumPasses(args)));
  if (IsTree(args)) REPRISE_RETURN_IF_ERROR(CheckLevel(args));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", args.num_rows, args.arrays.max_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", args.num_rows, args.draft.max_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_tokens", args.num_tokens, args.draft.max_tokens));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", args.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckBetween("slots.num_groups", args.slots.num_groups, 1, kMaxKvGroups));
  return CheckEqual("draft.num_position_dims", args.draft.num_position_dims, 1);
}

}  // namespace

absl::Status CheckDraftRows(const DraftRowsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckSizes(args));
  if (args.num_rows == 0) return absl::OkStatus();
  if (args.pass > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("chosen", args.chosen));
  return CheckGiven({{"slots.block_table", args.slots.block_table},
                     {"slots.drafted_len", args.slots.drafted_len},
                     {"slots.history", args.slots.history.tokens},
                     {"arrays.token_ids", args.arrays.token_ids},
                     {"arrays.query_start_loc", args.arrays.query_start_loc},
                     {"arrays.context_lens", args.arrays.context_lens},
                     {"arrays.table_row", args.arrays.table_row},
                     {"arrays.num_proposed", args.arrays.num_proposed},
                     {"draft.token_ids", args.draft.token_ids},
                     {"draft.positions", args.draft.positions},
                     {"draft.slot_mapping", args.draft.slot_mapping},
                     {"draft.query_start_loc", args.draft.query_start_loc},
                     {"draft.seq_lens", args.draft.seq_lens},
                     {"draft.context_lens", args.draft.context_lens},
                     {"draft.encoder_lens", args.draft.encoder_lens},
                     {"draft.table_row", args.draft.table_row},
                     {"draft.logits_indices", args.draft.logits_indices},
                     {"draft.sample_slot", args.draft.sample_slot},
                     {"draft.sample_offset", args.draft.sample_offset},
                     {"draft.common_prefix_len", args.draft.common_prefix_len}});
}

void DraftRowsOnHost(const DraftRowsArgs& args) {
  if (args.num_rows == 0) return;
  const RowArgs rows = DraftPassRowArgs(args);
  for (int r = 0; args.pass > 0 && r < args.num_rows; ++r) {
    KeepDraftPass(SerialLanes(), args, r);
  }
  if (args.pass == NumPasses(args)) return;
  int64_t start = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    WriteDraftPassRow(SerialLanes(), args, rows, r, start);
    start += DraftPassRowOf(args, rows, r).query_len;
  }
  const int64_t end = start < args.num_tokens ? start : args.num_tokens;
  args.draft.query_start_loc[args.num_rows] = static_cast<int32_t>(end);
  for (int64_t token = end; token < args.num_tokens; ++token) WriteInertToken(rows, token);
  *args.draft.common_prefix_len = 0;
}

}  // namespace reprise
