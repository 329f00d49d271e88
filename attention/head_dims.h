// The head dims that attention supports. For programs that choose how to run a model before they
// load it (compare vLLM's get_supported_head_sizes()).
//
//   SupportsHeadDims(AttentionDevice::kCuda, DType::kBFloat16, {.qk = 128, .v = 128});   // true
//   SupportsHeadDims(AttentionDevice::kCuda, DType::kBFloat16, {.qk = 576, .v = 512});   // false:
//   // these sizes need .v_in_k, as in absorbed MLA
//   SupportedHeadDims(AttentionDevice::kCuda, DType::kBFloat16);
//   // "head dims to 512, or to 576 and 512 where V is the first columns of K"
//
// Every size from 1 to the limit is supported. On CUDA the limits follow from the kernels' tiles
// (attention/cuda/tiles.h), whatever the card. The largest tiles need more shared memory than the
// smaller cards of compute capability 8.x have; there, attention rejects some of these head dims
// (docs/kernels.md). The CPU has no limit.
//
// Thread safety: pure functions.

#ifndef REPRISE_ATTENTION_HEAD_DIMS_H_
#define REPRISE_ATTENTION_HEAD_DIMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/base/dtype.h"

namespace reprise {

enum class AttentionDevice : int8_t { kCpu, kCuda };

struct HeadDims {
  int qk = 0;
  int v = 0;
  bool v_in_k = false;  // V is the first columns of K (attention/layer_spec.h)

  friend bool operator==(const HeadDims&, const HeadDims&) = default;
};

// Whether attention with q of `q_dtype` (float32, 16-bit or fp8) supports these dims.
bool SupportsHeadDims(AttentionDevice device, DType q_dtype, const HeadDims& dims);

// The limits: dims are supported if one entry is at least as large in both. An entry with v_in_k
// applies only to dims with v_in_k. Empty on the CPU, which has no limit, and for unsupported
// dtypes.
std::vector<HeadDims> LargestHeadDims(AttentionDevice device, DType q_dtype);

// The limits as text, for messages: "head dims to 512, or to 576 and 512 where V is the first
// columns of K", "any head dims", "no head dims".
std::string SupportedHeadDims(AttentionDevice device, DType q_dtype);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_HEAD_DIMS_H_
