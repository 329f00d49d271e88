#include "reprise/attention/speculation/draft_rows.h"

#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/attention/speculation/tree_check.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckLevel(const DraftRowsArgs& args) {
  const DraftLevel& level = args.level;
  REPRISE_RETURN_IF_ERROR(CheckBetween("level.num_levels", level.num_levels, 1, args.max_drafts));
  REPRISE_RETURN_IF_ERROR(CheckGiven({{"step.parents", args.step.parents.nodes},
                                      {"tail_len", args.tail_len},
                                      {"tail_mask", args.tail_mask}}));
  REPRISE_RETURN_IF_ERROR(
      CheckParentStride(args.step.parents, args.max_drafts + 1, args.rows.num_rows));
  if (args.pass == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckBetween("level.first", level.first, 1, args.max_drafts));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("level.first_before", level.first_before, 0, level.first - 1));
  return CheckBetween("level.end", level.end, level.first + 1, 1 + int64_t{args.max_drafts});
}

absl::Status CheckSizes(const DraftRowsArgs& args) {
  const RowArgs& rows = args.rows;
  REPRISE_RETURN_IF_ERROR(CheckTable(rows.table));
  REPRISE_RETURN_IF_ERROR(CheckBetween("rows.num_groups", rows.num_groups, 1, kMaxKvGroups));
  REPRISE_RETURN_IF_ERROR(CheckBetween("max_drafts", args.max_drafts, 1, kMaxTreeNodes - 1));
  REPRISE_RETURN_IF_ERROR(CheckBetween("pass", args.pass, 0, NumPasses(args)));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("rows.num_rows", rows.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("rows.num_tokens", rows.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("step.num_tokens", args.step.num_tokens, 0));
  if (IsTree(args)) REPRISE_RETURN_IF_ERROR(CheckLevel(args));
  if (args.pass == NumPasses(args)) return absl::OkStatus();  // the last pass has no rows
  const int width = IsTree(args) && args.pass > 0 ? args.level.end - args.level.first : 1;
  return CheckAtLeast("num_logits", args.num_logits, int64_t{rows.num_rows} * width);
}

}  // namespace

PagedBatch DraftRowsBatch(const DraftRowsArgs& args) {
  const RowArgs rows = DraftPassRowArgs(args);
  PagedBatch batch =
      ArraysBatch(rows.arrays, rows.table, rows.num_rows, rows.num_tokens, rows.max_query_len);
  if (!IsTree(args) || args.pass == 0) return batch;
  batch.query_positions = rows.arrays.positions;
  batch.tail_len = args.tail_len;
  batch.tail_mask = args.tail_mask;
  return batch;
}

absl::Status CheckDraftRows(const DraftRowsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckSizes(args));
  const RowArgs& rows = args.rows;
  if (rows.num_rows == 0) return absl::OkStatus();
  if (args.pass > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("chosen", args.chosen));
  REPRISE_RETURN_IF_ERROR(CheckOutputArrays(rows.arrays, rows.num_rows, rows.num_tokens));
  return CheckGiven({{"drafted_len", args.drafted_len},
                     {"history", args.history.tokens},
                     {"step.token_ids", args.step.token_ids},
                     {"step.query_start_loc", args.step.query_start_loc},
                     {"step.context_lens", args.step.context_lens},
                     {"step.slot_of_row", args.step.slot_of_row},
                     {"step.num_proposed", args.step.num_proposed},
                     {"sample_slot", args.sample_slot},
                     {"sample_offset", args.sample_offset}});
}

void DraftRowsOnHost(const DraftRowsArgs& args) {
  const int num_rows = args.rows.num_rows;
  if (num_rows == 0) return;
  for (int r = 0; args.pass > 0 && r < num_rows; ++r) KeepDraftPass(SerialLanes(), args, r);
  if (args.pass == NumPasses(args)) return;
  const RowArgs rows = DraftPassRowArgs(args);
  int64_t start = 0;
  for (int r = 0; r < num_rows; ++r) {
    WriteDraftPassRow(SerialLanes(), args, rows, r, start);
    start += DraftPassRowOf(args, rows, r).query_len;
  }
  const int64_t end = start < rows.num_tokens ? start : rows.num_tokens;
  for (int64_t token = end; token < rows.num_tokens; ++token) WriteInertToken(rows, token);
  WriteDraftPassEnd(args, end);
}

}  // namespace reprise
