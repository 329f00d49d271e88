// Reading keys and values back from the cache, in order and dequantised: for prefixes that
// attention needs contiguous (MLA's prefill), for engines that store them elsewhere, for debugging.
//
//   // By slot: k, v [num_tokens, num_kv_heads, head_dim]
//   REPRISE_RETURN_IF_ERROR(ReadKv(cache.layer(3), slots, k, v));
//   // By rows of a block table: row r's keys from k[start_loc[r]] on
//   REPRISE_RETURN_IF_ERROR(ReadKvRows(cache.layer(3), {.block_table = table,
//                                                       .start_loc = start_loc}, k, v));
//
//   k[t, head, dim] = cast(k of the cache at token t's slot * k_scale), and the same for v
//
// computed in float32 and rounded to nearest even; without conversion and scale the bits are
// copied. Tokens that have no place in the cache become 0: slots of -1 or beyond the cache, keys
// whose column is beyond the table or whose block is beyond the cache.
//
//   k, v          [>= num_tokens, num_kv_heads, head_dim], any strides, one dtype: float32,
//                 float16, bfloat16, on the CPU float64 too; elements past num_tokens are not
//                 written. v is undefined for a latent cache, whose v is a part of k. Where the
//                 rope part is a tensor of its own (KvLayer::rope), k has both, in two launches
//   slot_mapping  [num_tokens] int64, contiguous
//   scales        of kv; row_stride (the table row) counts for rows, and must be 0 for slots
//
// All are on one device, and so must the cache be. On the CPU: done when it returns. On CUDA:
// one launch on the current stream, no synchronisation, allocation or host read of device data: it
// may be captured.
//
// Errors: InvalidArgument naming the argument, what was expected and what was got; Unimplemented
// for a dtype or device not listed; Internal if a launch fails.
//
// Thread safety: as reading memory.

#ifndef REPRISE_CACHE_OPS_READ_KV_H_
#define REPRISE_CACHE_OPS_READ_KV_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

absl::Status ReadKv(const KvLayer& kv, const at::Tensor& slot_mapping, const at::Tensor& k,
                    const at::Tensor& v);

// Rows of keys in the order of a block table, as in DESIGN.md's batches.
struct KvRows {
  at::Tensor block_table;  // [num_tables, max_blocks] int32, last stride 1
  at::Tensor start_loc;    // [num_rows + 1] int32: row r is tokens [start_loc[r], start_loc[r+1])
  at::Tensor table_row = {};  // [num_rows] int32; undefined: row r of the table
  at::Tensor key_start = {};  // [num_rows] int32: the row's first key in the table; undefined: 0
};

// Fills k[0, start_loc[num_rows]) and v alike, as far as k reaches.
absl::Status ReadKvRows(const KvLayer& kv, const KvRows& rows, const at::Tensor& k,
                        const at::Tensor& v);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_READ_KV_H_
