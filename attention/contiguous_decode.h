// Decodes a single sequence over contiguous K and V, without a block table.
//
//   // K, V of one sequence as [num_kv_heads, capacity, head_dim] (HND), with 100 valid keys;
//   // bounds: device int32 {0, 1, 0, 100}
//   RaggedBatch batch = ContiguousDecode(bounds.const_data_ptr<int32_t>(), {.capacity = 4096});
//   REPRISE_RETURN_IF_ERROR(
//       RaggedAttention(layer, batch, work, q, {TokensOfHnd(k), TokensOfHnd(v)}, {out}));
//
// The number of keys is device data, so a captured call adapts to a growing sequence. Plan the tile
// schedule with max_rows 1, max_seq_len = capacity, and these options' max_query_len for both
// max_query_len and max_tokens.
//
// Pure functions. The results are views of the arguments, without copies. Thread safety: const
// data.

#ifndef REPRISE_ATTENTION_CONTIGUOUS_DECODE_H_
#define REPRISE_ATTENTION_CONTIGUOUS_DECODE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "reprise/attention/ragged_batch.h"

namespace reprise {

struct ContiguousDecodeOptions {
  int capacity = 0;       // capacity of K and V, in keys
  int max_query_len = 1;  // maximum number of queries per call; the last one is at the last key
};

// `bounds` is [4] on the device of the queries: 0, the number of queries, 0, the number of keys.
inline RaggedBatch ContiguousDecode(const int32_t* bounds, const ContiguousDecodeOptions& options) {
  return {.query_start_loc = bounds,
          .key_start_loc = bounds + 2,
          .num_rows = 1,
          .num_tokens = options.max_query_len,
          .num_keys = options.capacity,
          .max_query_len = options.max_query_len,
          .max_seq_len = options.capacity};
}

// Views [num_kv_heads, num_keys, head_dim] as [num_keys, num_kv_heads, head_dim], the form that
// RaggedAttention() expects. NHD tensors already have this form.
inline at::Tensor TokensOfHnd(const at::Tensor& heads) { return heads.transpose(0, 1); }

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CONTIGUOUS_DECODE_H_
