// The common input of the attention kernels: rows of queries, and for each row a range of keys that
// is addressed through a block table.
//
// Decode, prefill, chunked-local virtual rows, speculative trees, cross attention, shared prefixes
// and context-parallel ranks are all PagedBatches; kernels do not distinguish them. The builders
// (attention/metadata/batch_builder.h and its siblings) make them; PagedAttention() and its
// reference read them.
//
//   // Two sequences of 5 and 3 cached tokens, block_size 4, each with one new token:
//   //   query_start_loc {0, 1, 2}   seq_lens {6, 4}   block_table {{7, 2}, {5, -}}
//   PagedBatch batch{.num_rows = 2, .num_tokens = 2, .max_query_len = 1, .max_seq_len = 6, ...};
//
// Visibility. Query i of row r (0 <= i < query_len, token t = query_start_loc[r] + i) has position
//
//   p(i) = query_positions[t]                  if that array is given; otherwise
//   p(i) = key_start + seq_len - query_len + i
//
// Local key l of the row (0 <= l < seq_len) is token key_start + l of its table row. Its position
// is
//
//   P(l) = key_start + l                       in an ordinary batch;
//   P(l) = (g / interleave * world + rank) * interleave + g % interleave,  g = key_start + l
//                                              under context parallelism (D4 of vLLM's DCP: the
//                                              rank holds every world-th run of `interleave`
//                                              tokens);
//   P(l) = key_start + seq_len - tail_len + n  for the n-th (from 0) key of the tail that the query
//                                              sees.
//
// The query sees key l if all of these hold:
//   1. In a row with a tail (tail_len > 0), causal or not: l < seq_len - tail_len, or bit
//      (l - (seq_len - tail_len)) of tail_mask[t] is set. Bits at or above tail_len are ignored.
//      In a row with a custom mask (custom_mask_offset[r] >= 0), causal or not: bit
//      i * seq_len + l of the row's mask is set, where bit b is bit b % 8 of byte
//      custom_mask[custom_mask_offset[r] + b / 8].
//   2. In a row with neither, if causal: P(l) <= p(i).
//   3. The layer's window, for each side that is set:
//      p(i) - window_left <= P(l) <= p(i) + window_right.
//   4. The layer's sparse pattern, if there is one.
// attention/visibility.h implements these rules.
//
// A query that sees no key gets out = 0 and lse = -inf, with or without sinks. So do all tokens of
// a padded row (seq_len 0), for any content of its q, masks and positions. Tokens at or after
// query_start_loc[num_rows] are inert: if the caller's tensors have rows for them, out is set to 0
// and lse to -inf.
//
// Under context parallelism, query_positions is required if positions matter (causal, window,
// ALiBi, rotary, sparse), because the default p(i) counts the keys of one rank only.
//
// All pointers are on the host or all on the device, like the queries. These block-table entries
// are never read: entries before key_start / block_size; entries at or after ceil((key_start +
// seq_len) / block_size); and entries entirely left of the window of every query of the row. Every
// entry that may be read must name a block of the cache. No other block is read. Unused KV may hold
// NaN.
//
// A PagedBatch is a value without storage. Thread safety: const data.

#ifndef REPRISE_ATTENTION_PAGED_BATCH_H_
#define REPRISE_ATTENTION_PAGED_BATCH_H_

#include <cstdint>

namespace reprise {

// Positions of this rank's keys within the sequence (context parallelism). Host values, constant
// under capture.
struct KeyPositions {
  int rank = 0;
  int world = 1;
  int interleave = 1;  // consecutive tokens per rank
};

struct PagedBatch {
  // [num_rows + 1] non-decreasing, from 0.
  const int32_t* query_start_loc = nullptr;
  // [num_rows] keys visible to the row's last query, counted from key_start.
  const int32_t* seq_lens = nullptr;
  // [num_rows] row of block_table; absent: r for row r.
  const int32_t* table_row = nullptr;
  // [num_rows] the row's first key within its table row; absent: 0.
  const int32_t* key_start = nullptr;
  // [num_tables, max_blocks] one block per block_size keys. The stride is in elements.
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  // [num_tokens]; absent: see p(i) above.
  const int32_t* query_positions = nullptr;
  // [num_rows] 0..min(64, seq_len), any value in padded rows; absent: 0.
  const int32_t* tail_len = nullptr;
  // [num_tokens]; required with tail_len.
  const uint64_t* tail_mask = nullptr;
  // Packed bits with any pattern: see above. A row's mask has query_len * seq_len bits and begins
  // at a byte boundary. Excludes tail_len, and world > 1. A batch with masks ignores
  // common_prefix_len.
  const uint8_t* custom_mask = nullptr;         // [custom_mask_bytes]; absent: no row has one
  const int64_t* custom_mask_offset = nullptr;  // [num_rows] bytes, -1: none; any in padded rows;
                                                // required with custom_mask
  // A hint: all rows that have queries and keys share their first common_prefix_len local keys
  // (same key_start, same blocks), which may be read once for all rows. At most the smallest
  // seq_len of those rows. The hint does not change the result.
  const int32_t* common_prefix_len = nullptr;  // [1]; absent: 0

  KeyPositions key_positions = {};  // world > 1 excludes tail_len
  bool causal = true;

  // Host upper bounds; under capture, the captured sizes. Live data may use less.
  int num_rows = 0;
  int num_tokens = 0;     // rows of q
  int max_query_len = 0;  // >= every row's query_len
  int max_seq_len = 0;    // >= every seq_len
  int num_tables = 0;
  int max_blocks = 0;  // width of block_table
  int64_t custom_mask_bytes = 0;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_PAGED_BATCH_H_
