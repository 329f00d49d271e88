#include "attention/draft_steps.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "attention/builder_sizes.h"
#include "attention/row_lanes.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

PagedBatch BatchOf(const DraftRows& rows, const BatchArrays& arrays, int width) {
  return {.query_start_loc = arrays.query_start_loc,
          .seq_lens = arrays.seq_lens,
          .table_row = arrays.table_row,
          .block_table = rows.table.entries,
          .block_table_stride = rows.table.row_stride,
          .num_rows = rows.num_rows,
          .num_tokens = rows.num_rows * width,
          .max_query_len = width,
          .max_seq_len = static_cast<int>(TableCapacity(rows.table)),
          .num_tables = rows.table.num_tables,
          .max_blocks = rows.table.max_blocks};
}

absl::Status CheckRows(const DraftRows& rows) {
  REPRISE_RETURN_IF_ERROR(CheckTableSizes(rows.table));
  REPRISE_RETURN_IF_ERROR(CheckSize("num_rows", rows.num_rows, 0));
  return CheckSize("max_context_len", rows.max_context_len, 1);
}

std::string DescribeRow(const DraftRows& rows, int row) {
  const int32_t slot = rows.slots[row];
  if (!HasTableRow(rows.table, slot)) {
    return absl::StrCat("table row ", slot, " of ", rows.table.num_tables);
  }
  return absl::StrCat("table row ", slot, ", seq_len ", rows.seq_len[slot], ", limit ",
                      ContextLimit(rows));
}

}  // namespace

PagedBatch DraftChainBatchOf(const DraftChainArgs& args, int step) {
  return BatchOf(args.rows, StepArraysAt(args.arrays, step, args.rows.num_rows, 1), 1);
}

PagedBatch DraftLevelBatchOf(const DraftLevelArgs& args) {
  PagedBatch batch = BatchOf(args.rows, args.arrays, args.width);
  batch.query_positions = args.arrays.positions;
  batch.tail_len = args.arrays.tail_len;
  batch.tail_mask = args.arrays.tail_mask;
  return batch;
}

absl::Status CheckDraftChainSizes(const DraftChainArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckRows(args.rows));
  return CheckSize("num_steps", args.num_steps, 0);
}

absl::Status CheckDraftLevelSizes(const DraftLevelArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckRows(args.rows));
  REPRISE_RETURN_IF_ERROR(CheckSize("width", args.width, 1, kMaxTreeNodes));
  REPRISE_RETURN_IF_ERROR(CheckSize("step", args.step, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckSize("(step + 1) * width", (int64_t{args.step} + 1) * args.width, 1, kMaxTreeNodes));
  for (const void* array : {static_cast<const void*>(args.arrays.tail_len),
                            static_cast<const void*>(args.arrays.tail_mask),
                            static_cast<const void*>(args.node_masks)}) {
    if (array == nullptr) {
      return absl::InvalidArgumentError(
          "arrays.tail_len, arrays.tail_mask and node_masks: expected arrays, got none");
    }
  }
  return absl::OkStatus();
}

void DraftChainOnHost(const DraftChainArgs& args) {
  for (int step = 0; step < args.num_steps; ++step) {
    if (args.rows.num_rows == 0) {
      *StepArraysAt(args.arrays, step, 0, 1).query_start_loc = 0;
    }
    for (int row = 0; row < args.rows.num_rows; ++row) WriteDraftChainRow(args, step, row);
  }
}

void DraftLevelOnHost(const DraftLevelArgs& args) {
  if (args.rows.num_rows == 0) args.arrays.query_start_loc[0] = 0;
  for (int row = 0; row < args.rows.num_rows; ++row) WriteDraftLevelRow(HostLanes(), args, row);
}

absl::Status BuildDraftChain(const DraftChainArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckDraftChainSizes(args));
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
  REPRISE_RETURN_IF_ERROR(CheckDraftLevelSizes(args));
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
  return DraftLevelBatchOf(args);
}

}  // namespace reprise
