// Converts a caller's cache tensors to a KvLayer.
//
// A layer's cache is always passed as two tensors, k_cache and v_cache, with any strides. A cache
// with K and V in one tensor is passed as two views:
//
//   layout      k_cache                                        v_cache
//   "NHD"       [num_blocks, block_size, heads, head_dim_qk]   [.., head_dim_v]
//   "HND"       [num_blocks, heads, block_size, head_dim_qk]   [.., head_dim_v]
//   "K-packed"  [num_blocks, heads, head_dim_qk / x, block_size, x], any x;
//               v_cache [num_blocks, heads, head_dim_v, block_size]
//
// A cache may have no blocks.
//
//   packed [num_blocks, 2, ...]      kv[:, 0], kv[:, 1]
//   K and V in the last dimension    kv[..., :head_dim_qk], kv[..., head_dim_qk:]
//   MLA latent [n, block_size, 576]  kv.unsqueeze(2), kv.unsqueeze(2)[..., :512]
//   MLA in two tensors               ckv.unsqueeze(2) twice, and rope_cache kpe.unsqueeze(2):
//                                    [num_blocks, block_size, heads, rope_dim] in the layout's
//                                    order, with a separate dtype and scale
//
// kv_dtype names the element type of uint8 storage: "fp8", "fp8_e4m3" or "fp8_e5m2".
//
// A scale is float32. It has one element, [num_kv_heads] or [num_tables, num_kv_heads], with any
// strides (including expanded tensors), on the cache's device. A scale with one element may also be
// on the CPU; the host then reads it.
//
// Keys and values outside a cache may also be uint8 (Fp8Of).
//
// Errors: InvalidArgument that names the argument. Thread safety: pure functions.

#ifndef REPRISE_ATTENTION_TORCH_OPS_KV_TENSORS_H_
#define REPRISE_ATTENTION_TORCH_OPS_KV_TENSORS_H_

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

struct KvTensors {
  at::Tensor k_cache;
  at::Tensor v_cache;
  std::string layout = "NHD";
  std::optional<std::string> kv_dtype = {};
  std::optional<at::Tensor> k_scale = {};
  std::optional<at::Tensor> v_scale = {};
  // For keys whose last dims are in a separate tensor (KvLayer::rope).
  std::optional<at::Tensor> rope_cache = {};
  std::optional<at::Tensor> rope_cache_scale = {};
};

// Returns a layer that points into the tensors.
absl::StatusOr<KvLayer> KvLayerOf(const KvTensors& tensors);

// Returns keys or values. If they are uint8 and kv_dtype names an fp8 type, views the bytes as that
// type.
at::Tensor Fp8Of(const at::Tensor& tensor, const std::optional<std::string>& kv_dtype);

// Returns the scale, or 1 if it is absent. `argument` is the name of the scale.
absl::StatusOr<Scale> ScaleOf(const char* argument, const std::optional<at::Tensor>& scale,
                              int num_kv_heads, at::Device device);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_KV_TENSORS_H_
