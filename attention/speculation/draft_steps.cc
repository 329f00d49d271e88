#include "reprise/attention/speculation/draft_steps.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/lanes.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

PagedBatch StepBatch(const DraftRows& rows, const BatchArrays& arrays, int width) {
  return ArraysBatch(arrays, rows.table, rows.num_rows, rows.num_rows * width, width);
}

absl::Status CheckRows(const DraftRows& rows) {
  REPRISE_RETURN_IF_ERROR(CheckTable(rows.table));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", rows.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_context_len", rows.max_context_len, 1));
  if (rows.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("slots", rows.slots));
  if (rows.table.num_tables == 0) return absl::OkStatus();
  return CheckGiven("seq_len", rows.seq_len);
}

std::string DescribeRow(const DraftRows& rows, int row) {
  const int32_t slot = rows.slots[row];
  if (!HasTableRow(rows.table, slot)) {
    return absl::StrCat("table row ", slot, " of ", rows.table.num_tables);
  }
  return absl::StrCat("table row ", slot, ", seq_len ", rows.seq_len[slot], ", limit ",
                      ContextLimit(rows.table, rows.max_context_len));
}

}  // namespace

PagedBatch DraftChainBatch(const DraftChainArgs& args, int step) {
  return StepBatch(args.rows, StepArraysAt(args.arrays, step, args.rows.num_rows, 1), 1);
}

PagedBatch DraftLevelBatch(const DraftLevelArgs& args) {
  PagedBatch batch = StepBatch(args.rows, args.arrays, args.width);
  batch.query_positions = args.arrays.positions;
  batch.tail_len = args.arrays.tail_len;
  batch.tail_mask = args.arrays.tail_mask;
  return batch;
}

absl::Status CheckDraftChain(const DraftChainArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckRows(args.rows));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_steps", args.num_steps, 0, kMaxDraftSteps));
  if (args.num_steps == 0) return absl::OkStatus();
  return CheckOutputArrays(args.arrays, args.rows.num_rows, args.rows.num_rows);
}

absl::Status CheckDraftLevel(const DraftLevelArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckRows(args.rows));
  REPRISE_RETURN_IF_ERROR(CheckBetween("width", args.width, 1, kMaxTreeNodes));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("step", args.step, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("(step + 1) * width", (int64_t{args.step} + 1) * args.width, 1, kMaxTreeNodes));
  const int64_t num_tokens = int64_t{args.rows.num_rows} * args.width;
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_rows * width", num_tokens, 0, INT32_MAX));
  if (args.rows.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven({{"arrays.tail_len", args.arrays.tail_len},
                                        {"arrays.tail_mask", args.arrays.tail_mask},
                                        {"node_masks", args.node_masks}}));
  }
  if (args.parents != nullptr) {
    REPRISE_RETURN_IF_ERROR(
        CheckRowStride("parent_stride", args.parent_stride, args.width, args.rows.num_rows));
  }
  return CheckOutputArrays(args.arrays, args.rows.num_rows, static_cast<int>(num_tokens));
}

void DraftChainOnHost(const DraftChainArgs& args) {
  const RowArgs rows = DraftRowArgs(args.rows, /*width=*/1);
  for (int step = 0; step < args.num_steps; ++step) {
    if (rows.num_rows == 0) *StepArraysAt(args.arrays, step, 0, 1).query_start_loc = 0;
    for (int row = 0; row < rows.num_rows; ++row) WriteDraftChainRow(args, rows, step, row);
  }
}

void DraftLevelOnHost(const DraftLevelArgs& args) {
  const RowArgs rows = DraftRowArgs(args.rows, args.width);
  if (rows.num_rows == 0) args.arrays.query_start_loc[0] = 0;
  for (int row = 0; row < rows.num_rows; ++row) WriteDraftLevelRow(SerialLanes(), args, rows, row);
}

absl::Status BuildDraftChain(const DraftChainArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckDraftChain(args));
  const int num_checked = args.num_steps == 0 ? 0 : args.rows.num_rows;
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.arrays.row_faults, num_checked));
  DraftChainOnHost(args);
  for (int step = 0; step < args.num_steps; ++step) {
    const BatchArrays arrays = StepArraysAt(args.arrays, step, args.rows.num_rows, 1);
    REPRISE_RETURN_IF_ERROR(FirstFault(arrays.row_faults, args.rows.num_rows, [&](int row) {
      return absl::StrCat(DescribeRow(args.rows, row), ", step ", step);
    }));
  }
  return absl::OkStatus();
}

absl::StatusOr<PagedBatch> BuildDraftLevel(const DraftLevelArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckDraftLevel(args));
  REPRISE_RETURN_IF_ERROR(CheckRowFaults(args.arrays.row_faults, args.rows.num_rows));
  DraftLevelOnHost(args);
  REPRISE_RETURN_IF_ERROR(FirstFault(args.arrays.row_faults, args.rows.num_rows, [&](int row) {
    std::string text = absl::StrCat(DescribeRow(args.rows, row), ", step ", args.step);
    if (args.parents) {
      absl::StrAppend(
          &text, ", parents ",
          absl::StrJoin(absl::MakeConstSpan(args.parents + row * args.parent_stride, args.width),
                        " "));
    }
    return text;
  }));
  return DraftLevelBatch(args);
}

}  // namespace reprise
