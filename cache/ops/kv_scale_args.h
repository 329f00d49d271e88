// Arguments for computing KV scales as plain values, and the device launcher. Callers use
// ComputeKvScales() (kv_scale.h).

#ifndef REPRISE_CACHE_OPS_KV_SCALE_ARGS_H_
#define REPRISE_CACHE_OPS_KV_SCALE_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/check.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/kv_tokens.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct KvScaleArgs {
  ConstKvTokens values = {};
  DType dtype = DType::kFloat32;
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float* scales = nullptr;  // [num_scales]
  int num_scales = 0;       // num_kv_heads, or 1
  float range = 1.0f;
};

// Errors: InvalidArgument naming the field. Does not read arrays.
inline absl::Status CheckKvScale(const KvScaleArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_kv_heads", args.num_kv_heads, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim", args.head_dim, 0));
  REPRISE_RETURN_IF_ERROR(CheckPositive("range", args.range));
  if (args.num_scales != 1) {
    REPRISE_RETURN_IF_ERROR(CheckEqual("scales", args.num_scales, args.num_kv_heads));
  }
  if (args.num_scales > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("scales", args.scales));
  if (args.num_tokens == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("slot_mapping", args.slot_mapping));
  if (args.num_kv_heads == 0 || args.head_dim == 0) return absl::OkStatus();
  return CheckGiven("values", args.values.data);
}

// Enqueues the work on `stream`. All pointers are device pointers. May be captured. Errors: as
// CheckKvScale(); Unimplemented for a dtype other than float32, float16 and bfloat16; Internal if
// CUDA fails.
absl::Status LaunchKvScale(const KvScaleArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_SCALE_ARGS_H_
