// Attention over contiguous keys without a cache: encoder self-attention, the profile run,
// unabsorbed MLA prefill.
//
// Like a PagedBatch (attention/paged_batch.h; the same visibility rules apply, with key_start 0),
// except that the keys of row r are the rows [key_start_loc[r], key_start_loc[r + 1]) of contiguous
// k and v [num_keys, num_kv_heads, head_dim]:
//
//   // Two encoder inputs of 3 and 2 tokens:
//   RaggedBatch batch{.query_start_loc = loc, .key_start_loc = loc, .causal = false, ...};
//   // loc = {0, 3, 5}
//
// The seq_len of a row is key_start_loc[r + 1] - key_start_loc[r]. Scales per table row become
// scales per row. A value without storage.

#ifndef REPRISE_ATTENTION_RAGGED_BATCH_H_
#define REPRISE_ATTENTION_RAGGED_BATCH_H_

#include <cstdint>

namespace reprise {

struct RaggedBatch {
  const int32_t* query_start_loc = nullptr;     // [num_rows + 1] non-decreasing, from 0
  const int32_t* key_start_loc = nullptr;       // [num_rows + 1] non-decreasing, from 0
  const int32_t* query_positions = nullptr;     // [num_tokens]; absent: seq_len - query_len + i
  const uint8_t* custom_mask = nullptr;         // [custom_mask_bytes], as in a PagedBatch
  const int64_t* custom_mask_offset = nullptr;  // [num_rows]
  bool causal = true;

  // Host upper bounds, constant under capture.
  int num_rows = 0;
  int num_tokens = 0;
  int num_keys = 0;
  int max_query_len = 0;
  int max_seq_len = 0;
  int64_t custom_mask_bytes = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_RAGGED_BATCH_H_
