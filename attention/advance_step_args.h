// What an advance from one decode step to the next works on, and what becomes of one row: shared by
// the host's and the device's form (attention/advance_step.h).

#ifndef ATTENTION_ADVANCE_STEP_ARGS_H_
#define ATTENTION_ADVANCE_STEP_ARGS_H_

#include <cstdint>

#include "attention/batch_arrays.h"
#include "attention/host_device.h"
#include "attention/paged_table.h"

namespace reprise {

struct AdvanceStepArgs {
  // The step that ran. May be the very arrays that are written.
  const int32_t* seq_lens = nullptr;   // [num_rows] its tokens included; 0: a padded row
  const int32_t* table_row = nullptr;  // [num_rows]
  const int32_t* sampled = nullptr;    // [num_rows] the token chosen from each row's last logits

  PagedTable table = {};
  int64_t max_context_len = 0;
  int num_rows = 0;
  int num_tokens = 0;       // of the arrays; at least num_rows
  BatchArrays arrays = {};  // of the next step
};

constexpr int64_t ContextLimit(const AdvanceStepArgs& args) {
  const int64_t room = TableCapacity(args.table);
  return room < args.max_context_len ? room : args.max_context_len;
}

// A row of the next step: one token, or none.
struct AdvancedRow {
  int32_t token_id = 0;
  int32_t position = 0;
  int32_t table_row = 0;
  int64_t slot = -1;  // -1: no token
  RowFault fault = RowFault::kNone;
};

REPRISE_HOST_DEVICE constexpr AdvancedRow AdvancedRowOf(const AdvanceStepArgs& args, int row) {
  AdvancedRow next;
  const int64_t seq_len = args.seq_lens[row];
  const int32_t table_row = args.table_row[row];
  const int32_t token_id = args.sampled[row];
  if (seq_len == 0) return next;
  if (!HasTableRow(args.table, table_row)) {
    next.fault = RowFault::kTableRow;
  } else if (seq_len < 0 || seq_len >= ContextLimit(args)) {
    next.fault = RowFault::kLength;
  } else if (token_id < 0) {
    next.fault = RowFault::kToken;
  } else {
    const int64_t slot = TableSlot(args.table, table_row, seq_len);
    if (slot < 0) {
      next.fault = RowFault::kNoBlock;
    } else {
      next = {token_id, static_cast<int32_t>(seq_len), table_row, slot, RowFault::kNone};
    }
  }
  return next;
}

// Writes a row whose token, if it has one, is number `token`: as many rows before it have one.
REPRISE_HOST_DEVICE constexpr void WriteAdvancedRow(const AdvanceStepArgs& args, int row, int token,
                                                    const AdvancedRow& next) {
  RowEntry entry;
  if (next.slot >= 0) {
    entry = {next.position + 1, next.table_row, token, 0};
    WriteToken(args.arrays, token, {next.token_id, next.position, next.slot, 0});
  }
  args.arrays.query_start_loc[row] = token;
  WriteRow(args.arrays, row, entry, next.fault);
}

}  // namespace reprise

#endif  // ATTENTION_ADVANCE_STEP_ARGS_H_
