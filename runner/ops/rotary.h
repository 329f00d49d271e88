// Rotary position embedding of q and k, optionally with the write of k and v to the cache in the
// same launch: in most models, all work between a layer's projection and its attention.
//
//   RotaryWriteKv(q, k, v, positions, table, kv_layer, slot_mapping);
//
// Models call Step::Write() with a RotaryWrite, which calls this.
//
// With `norm`, the heads of q and k are normalised before the rotation, as by NormaliseHeads()
// (runner/ops/head_norm.h) up to float32 rounding. Qwen 3's prologue is then one launch too, also
// with an fp8 cache.
//
// Dims are paired as in Llama (GPT-NeoX): dims d and d + half of a head are rotated together,
//
//   out[d] = x[d] * cos - x[d + half] * sin            half = rotary_dim / 2
//   out[d + half] = x[d + half] * cos + x[d] * sin
//
// in float32, rounded once. Dims >= rotary_dim keep their values. cos and sin come from
// MakeRotaryTable() (runner/ops/rotary_table.h); the table's width is rotary_dim.
//
// q [num_tokens, num_q_heads, head_dim_qk], k [num_tokens, num_kv_heads, head_dim_qk] and v
// [num_tokens, num_kv_heads, head_dim_v] are float32, float16 or bfloat16, of one dtype and device.
// They may be strided, for example as views of a fused projection; the last stride is 1. positions
// [num_tokens] int32. The calls do not allocate or synchronise, so they may be captured.
//
// Thread safety: safe for concurrent calls, unless one call writes a tensor that another call uses.
// Cost: one launch, which reads q, k and v once and writes each result once. On a GPU, a norm needs
// a second launch unless CanNormaliseWhileRotating() (runner/ops/rotary_args.h) is true. Errors:
// InvalidArgument, naming the argument. On the CPU, a position outside the table or a slot beyond
// the cache is an OutOfRange error, before anything is written. On a GPU, the position is clamped
// to the table, and nothing is written to the slot.

#ifndef REPRISE_RUNNER_OPS_ROTARY_H_
#define REPRISE_RUNNER_OPS_ROTARY_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "absl/status/status.h"
#include "reprise/cache/storage/kv_layer.h"
#include "reprise/runner/ops/head_norm.h"

namespace reprise {

// Rotates q and k in place.
absl::Status Rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                    const at::Tensor& table, const std::optional<HeadNormOptions>& norm = {});

// Rotates q in place. Writes rotated k, and v, of the first slot_mapping.size(0) tokens to the
// cache. v does not change. Without `norm`, k does not change either; with `norm`, the contents of
// k are unspecified afterwards. slot_mapping [<= num_tokens] int64: block * block_size + offset;
// negative: not written. `kv` has k's num_kv_heads, head_dim_qk and head_dim_v, rope_dim 0, any
// layout and any dtype (float64 on the CPU only), and is on q's device. Its scales are per tensor
// or per head.
absl::Status RotaryWriteKv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& positions, const at::Tensor& table, const KvLayer& kv,
                           const at::Tensor& slot_mapping,
                           const std::optional<HeadNormOptions>& norm = {});

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ROTARY_H_
