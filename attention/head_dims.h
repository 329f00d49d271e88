// Which head dims attention serves: a query for programs that choose how to run a model before they
// load it (vLLM's get_supported_head_sizes()).
//
//   SupportsHeadDims(AttentionDevice::kCuda, DType::kBFloat16, {.qk = 128, .v = 128});   // true
//   SupportsHeadDims(AttentionDevice::kCuda, DType::kBFloat16, {.qk = 576, .v = 512});   // false:
//   // so large only with .v_in_k, as absorbed MLA has it
//   SupportedHeadDims(AttentionDevice::kCuda, DType::kBFloat16);
//   // "head dims to 512, or to 576 and 512 where V is the first columns of K"
//
// Every size from 1 to a limit is served. On CUDA the limits follow from the kernels' tiles
// (attention/cuda/tiles.h); the largest need more shared memory than the smaller cards
// of compute capability 8.x have, where attention refuses some (docs/kernels.md). The CPU has no
// limit.
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

// Whether attention with q of `q_dtype` serves these dims: float32, 16 bits and fp8.
bool SupportsHeadDims(AttentionDevice device, DType q_dtype, const HeadDims& dims);

// The limits: dims are supported if one of these is at least as large in both, and has v_in_k only
// where they have it. None: on the CPU, which has no limit, and for dtypes that are not served.
std::vector<HeadDims> LargestHeadDims(AttentionDevice device, DType q_dtype);

// The same in words, for messages: "head dims to 512, or to 576 and 512 where V is the first
// columns of K", "any head dims", "no head dims".
std::string SupportedHeadDims(AttentionDevice device, DType q_dtype);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_HEAD_DIMS_H_
