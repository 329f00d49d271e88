// Decode of single sequences over contiguous K and V, without a block table.
//
//   // K, V of one sequence as [num_kv_heads, capacity, head_dim] (HND), 100 keys of which are
//   // there; bounds: device int32 {0, 1, 0, 100}
//   RaggedBatch batch = ContiguousDecode(bounds.const_data_ptr<int32_t>(), {.capacity = 4096});
//   REPRISE_RETURN_IF_ERROR(RaggedAttention(layer, batch, work, q, TokensOfHnd(k), TokensOfHnd(v),
//                                           out, nullptr));
//
// The number of keys is data on the device, so a captured call follows a growing sequence. The work
// map is planned with max_rows 1, max_tokens = max_query_len, max_seq_len = capacity.
//
// Pure functions without copies: the results view their arguments. Thread safety: const data.

#ifndef ATTENTION_CONTIGUOUS_DECODE_H_
#define ATTENTION_CONTIGUOUS_DECODE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attention/ragged_batch.h"

namespace reprise {

struct ContiguousDecodeOptions {
  int capacity = 0;       // keys that K and V have room for
  int max_query_len = 1;  // queries of a call, the last of which sees all keys
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

// [num_kv_heads, num_keys, head_dim] as RaggedAttention() takes it: [num_keys, num_kv_heads,
// head_dim]. NHD is that already.
inline at::Tensor TokensOfHnd(const at::Tensor& heads) { return heads.transpose(0, 1); }

}  // namespace reprise

#endif  // ATTENTION_CONTIGUOUS_DECODE_H_
