// The arrays that row builders fill. The caller owns the memory, on the host or on the device, with
// room for the padded batch.
//
//   array            live rows and tokens                  padded or inert
//   token_ids        the row's tokens                      0
//   positions        the queries' positions                0
//   slot_mapping     block * block_size + offset           -1
//   query_start_loc  prefix sums of query_len              the prefix sums, continued
//   seq_lens         keys in the cache after the write     0
//   table_row        the sequence's row of the table       0
//   logits_indices   the row's last token                  0
//   context_lens     keys in the cache before the step     0
//   key_start        as requested                          0
//   tail_len         keys of the row's tree (trees only)   0
//   tail_mask        the tree's keys that a query sees     0
//   row_faults       0                                     0 if padded, otherwise the RowFault
//
// token_ids, logits_indices, context_lens, key_start and row_faults may be absent. tail_len and
// tail_mask are only for tree builders. Each KV group has its own slot_mapping, group_stride
// elements after the previous group's slot_mapping. BatchArrays is a value and owns no memory.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_ARRAYS_H_
#define REPRISE_ATTENTION_METADATA_BATCH_ARRAYS_H_

#include <cstdint>

#include "reprise/base/row_fault.h"

namespace reprise {

struct BatchArrays {
  int32_t* token_ids = nullptr;        // [num_tokens]
  int32_t* positions = nullptr;        // [num_tokens]
  int64_t* slot_mapping = nullptr;     // [num_tokens]
  int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  int32_t* seq_lens = nullptr;         // [num_rows]
  int32_t* table_row = nullptr;        // [num_rows]
  int32_t* logits_indices = nullptr;   // [num_rows]
  int32_t* tail_len = nullptr;         // [num_rows]
  uint64_t* tail_mask = nullptr;       // [num_tokens]
  int32_t* row_faults = nullptr;       // [num_rows]
  int32_t* context_lens = nullptr;     // [num_rows]
  int32_t* key_start = nullptr;        // [num_rows]
  int64_t group_stride = 0;            // elements between the slot_mappings of adjacent KV groups

  // The slots of a KV group [num_tokens].
  constexpr int64_t* group_slots(int group) const { return slot_mapping + group * group_stride; }
};

// The entries of the arrays for one live row or token.
struct RowEntry {
  int32_t seq_len = 0;
  int32_t table_row = 0;
  int32_t last_token = 0;  // index of the row's last token
  int32_t tail_len = 0;
  int32_t context_len = 0;
  int32_t key_start = 0;
};
struct TokenEntry {
  int32_t token_id = 0;
  int32_t position = 0;
  int64_t slot = -1;
  uint64_t tail_mask = 0;
};

constexpr void WriteRow(const BatchArrays& arrays, int row, const RowEntry& entry, RowFault fault) {
  arrays.seq_lens[row] = entry.seq_len;
  arrays.table_row[row] = entry.table_row;
  if (arrays.logits_indices) arrays.logits_indices[row] = entry.last_token;
  if (arrays.tail_len) arrays.tail_len[row] = entry.tail_len;
  if (arrays.context_lens) arrays.context_lens[row] = entry.context_len;
  if (arrays.key_start) arrays.key_start[row] = entry.key_start;
  if (arrays.row_faults) arrays.row_faults[row] = static_cast<int32_t>(fault);
}

// Use WriteRow(arrays, row, {}, fault) for an inert row, and WriteToken(arrays, token, {}) for an
// inert token.
constexpr void WriteToken(const BatchArrays& arrays, int64_t token, const TokenEntry& entry) {
  if (arrays.token_ids) arrays.token_ids[token] = entry.token_id;
  arrays.positions[token] = entry.position;
  arrays.slot_mapping[token] = entry.slot;
  if (arrays.tail_mask) arrays.tail_mask[token] = entry.tail_mask;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_ARRAYS_H_
