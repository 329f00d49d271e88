// Scales of a quantised cache, from tensors or computed from the data.
//
//   // A device scalar, one value per head, or expanded to [num_seqs, num_kv_heads].
//   REPRISE_ASSIGN_OR_RETURN(Scale k_scale, ScaleFromTensor("k_scale", tensor, num_kv_heads));
//   cache.SetScales(layer, k_scale, v_scale);
//
//   // Calibration on the device: later work on the stream uses the new scales.
//   REPRISE_RETURN_IF_ERROR(ComputeKvScales(k, slot_mapping, k_scales, {.cache_dtype = dtype}));

#ifndef REPRISE_CACHE_OPS_KV_SCALE_H_
#define REPRISE_CACHE_OPS_KV_SCALE_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Returns a Scale that reads `tensor` when kernels run: float32 of shape [] or [1] (one scale),
// [num_kv_heads], or [num_table_rows, num_kv_heads]. Any strides are allowed, including 0
// (expanded). The tensor must outlive its use. Errors: InvalidArgument naming `argument`.
absl::StatusOr<Scale> ScaleFromTensor(std::string_view argument, const at::Tensor& tensor,
                                      int num_kv_heads);

struct KvScaleOptions {
  DType cache_dtype = DType::kFp8E4M3;
  // The magnitude in the cache to which the largest value is mapped. nullopt: the largest finite
  // value of cache_dtype, or 1 if cache_dtype is not fp8. A smaller range leaves headroom for
  // larger values later.
  std::optional<float> range = {};
};

// Computes scales[h] = max |values[t, h, d]| / range over all tokens t with a slot and all d, or
// one scale for all heads if `scales` has one element. Non-finite values are ignored. If all other
// values of a scale are 0, the scale is 1.
//
//   values        [>= num_tokens, num_kv_heads, head_dim], float32, float16 or bfloat16
//   slot_mapping  [num_tokens] int64, contiguous: tokens with a negative slot are ignored
//   scales        [1] or [num_kv_heads] float32, contiguous; overwritten
//
// All tensors are on one device. On CUDA, the work is enqueued on the current stream, without
// synchronisation or allocation, and may be captured. Cost: reads the values once. Errors:
// InvalidArgument naming the argument; Unimplemented for any other dtype or device.
absl::Status ComputeKvScales(const at::Tensor& values, const at::Tensor& slot_mapping,
                             const at::Tensor& scales, const KvScaleOptions& options);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_SCALE_H_
