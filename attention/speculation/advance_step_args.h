// Arguments of an advance from one decode step to the next, and the work on one row; shared by the
// host and device forms (attention/speculation/advance_step.h).

#ifndef ATTENTION_SPECULATION_ADVANCE_STEP_ARGS_H_
#define ATTENTION_SPECULATION_ADVANCE_STEP_ARGS_H_

#include <cstdint>

#include "attention/metadata/batch_arrays.h"
#include "attention/metadata/batch_rows.h"
#include "base/host_device.h"
#include "cache/tables/block_table_view.h"

namespace reprise {

struct AdvanceStepArgs {
  // The step that ran. These may be the output arrays.
  const int32_t* seq_lens = nullptr;   // [num_rows] including its tokens; 0: a padded row
  const int32_t* table_row = nullptr;  // [num_rows]
  const int32_t* sampled = nullptr;    // [num_rows] the token chosen from each row's last logits

  BlockTableView table = {};
  int64_t max_context_len = 0;
  int num_rows = 0;
  int num_tokens = 0;       // of the arrays; at least num_rows
  BatchArrays arrays = {};  // of the next step
};

constexpr RowArgs AdvanceRowArgs(const AdvanceStepArgs& args) {
  RowArgs rows;
  rows.table = args.table;
  rows.max_context_len = args.max_context_len;
  rows.num_rows = args.num_rows;
  rows.num_tokens = args.num_tokens;
  rows.max_query_len = 1;
  rows.arrays = args.arrays;
  return PrepareRows(rows);
}

// A row of the next step: the token sampled from it, or an inert row.
template <typename Lanes>
REPRISE_HOST_DEVICE CheckedRow AdvancedRowOf(const Lanes& lanes, const AdvanceStepArgs& args,
                                             const RowArgs& rows, int row_idx) {
  RowRequest request;
  const int32_t seq_len = args.seq_lens[row_idx];
  const int32_t table_row = args.table_row[row_idx];
  const int32_t token_id = args.sampled[row_idx];
  if (seq_len != 0) {
    request = {.is_padded = false, .table_row = table_row, .context_len = seq_len, .query_len = 1};
  }
  CheckedRow row = CheckRow(rows, request);
  if (!row.is_live()) return row;
  if (token_id < 0) {
    row.fault = RowFault::kToken;
  } else if (!HasBlocks(lanes, rows, row)) {
    row.fault = RowFault::kNoBlock;
  }
  return row;
}

}  // namespace reprise

#endif  // ATTENTION_SPECULATION_ADVANCE_STEP_ARGS_H_
