// Reads keys and values back from the cache, in order and dequantised: for prefixes that attention
// needs contiguous (MLA prefill), for engines that store them elsewhere, and for debugging.
//
//   // By slot: k, v [num_tokens, num_kv_heads, head_dim]
//   REPRISE_RETURN_IF_ERROR(ReadKv(cache.layer(3), slots, k, v));
//   // By rows of a block table: the keys of row r begin at k[start_loc[r]]
//   REPRISE_RETURN_IF_ERROR(ReadKvRows(cache.layer(3), {.block_table = table,
//                                                       .start_loc = start_loc}, k, v));
//
//   k[t, head, dim] = cast(k of the cache at token t's slot * k_scale), and the same for v
//
// The result is computed in float32 (float64 for a float64 cache) and rounded to nearest even;
// without conversion and scale, the bits are copied. Tokens without a valid address become 0: slots
// of -1 or outside the cache, keys whose table row or column is outside the table or whose block is
// outside the cache.
//
//   k, v          [>= num_tokens, num_kv_heads, head_dim], any strides, one dtype: float32,
//                 float16, bfloat16, and on the CPU float64. Elements past num_tokens are not
//                 written. v is undefined for a latent cache, whose v is a part of k. If the rope
//                 part is a separate tensor (KvLayer::rope), k receives both, in two launches
//   slot_mapping  [num_tokens] int64, contiguous
//   scales        the scales of kv; row_stride (per table row) must be 0 when reading by slot
//
// All tensors and the cache must be on one device. On the CPU, the read has completed when the call
// returns. On CUDA, it is one launch on the current stream, without synchronisation, allocation or
// host reads of device data, and may be captured.
//
// Errors: InvalidArgument, naming the argument, the expected and the given value; Unimplemented for
// any other dtype or device; Internal if a launch fails.
//
// Thread safety: as for memory reads.

#ifndef REPRISE_CACHE_OPS_READ_KV_H_
#define REPRISE_CACHE_OPS_READ_KV_H_

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

absl::Status ReadKv(const KvLayer& kv, const at::Tensor& slot_mapping, const at::Tensor& k,
                    const at::Tensor& v);

// Rows of keys in block table order, as in the batches of DESIGN.md.
struct KvRows {
  at::Tensor block_table;  // [num_tables, max_blocks] int32, last stride 1
  at::Tensor start_loc;    // [num_rows + 1] int32: row r is tokens [start_loc[r], start_loc[r+1])
  at::Tensor table_row = {};  // [num_rows] int32; undefined: row r of the table
  at::Tensor key_start = {};  // [num_rows] int32: the row's first key in the table; undefined: 0
};

// Fills k[0, start_loc[num_rows]) and the same range of v, up to the end of the shorter tensor.
absl::Status ReadKvRows(const KvLayer& kv, const KvRows& rows, const at::Tensor& k,
                        const at::Tensor& v);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_READ_KV_H_
