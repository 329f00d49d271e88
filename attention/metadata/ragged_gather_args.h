// Arguments of RaggedGather, and the functions that write one row. Shared by the host and device
// forms (attention/metadata/ragged_gather.h).

#ifndef REPRISE_ATTENTION_METADATA_RAGGED_GATHER_ARGS_H_
#define REPRISE_ATTENTION_METADATA_RAGGED_GATHER_ARGS_H_

#include <cstdint>

#include "reprise/base/row_fault.h"

namespace reprise {

enum class RaggedKind : int8_t { kEncoder, kProfile, kProfileZeros };

struct RaggedGatherArgs {
  const int32_t* lens = nullptr;  // [num_rows] tokens of each row; 0: padded row
  RaggedKind kind = RaggedKind::kEncoder;

  // The shape of the result, constant under capture.
  int num_rows = 0;
  int num_tokens = 0;
  int max_len = 0;

  // The caller's memory. slot_mapping, row_faults and num_faults may be absent.
  int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  int32_t* key_start_loc = nullptr;    // [num_rows + 1]
  int32_t* positions = nullptr;        // [num_tokens] position in the row; 0 if inert
  int64_t* slot_mapping = nullptr;     // [num_tokens] all -1
  int32_t* row_faults = nullptr;       // [num_rows] RowFault
  int32_t* num_faults = nullptr;       // [1] rows with a fault
};

struct RaggedRow {
  int32_t len = 0;
  RowFault fault = RowFault::kNone;
};

// Returns row r after a check of its length.
constexpr RaggedRow RaggedRowOf(const RaggedGatherArgs& args, int r) {
  const int32_t len = args.lens[r];
  if (len < 0 || len > args.max_len) return {0, RowFault::kLength};
  return {len, RowFault::kNone};
}

// Writes the start of row r. r == num_rows writes the end of the batch.
constexpr void WriteRaggedStart(const RaggedGatherArgs& args, int r, int32_t first_token) {
  args.query_start_loc[r] = first_token;
  args.key_start_loc[r] = args.kind == RaggedKind::kProfileZeros ? 0 : first_token;
}

constexpr void WriteRaggedRow(const RaggedGatherArgs& args, int r, int32_t first_token,
                              RowFault fault) {
  WriteRaggedStart(args, r, first_token);
  if (args.row_faults) args.row_faults[r] = static_cast<int32_t>(fault);
}

constexpr void WriteRaggedToken(const RaggedGatherArgs& args, int token, int32_t position) {
  args.positions[token] = position;
  if (args.slot_mapping) args.slot_mapping[token] = -1;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_RAGGED_GATHER_ARGS_H_
