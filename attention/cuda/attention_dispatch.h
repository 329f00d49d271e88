// Which attention kernel serves which call, as data. Plans of work maps and calls ask the same table:
// a plan for the kernel whose tile the map's query ranges fill, a call for the kernel to launch.
//
//   REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* kernel,
//                            FindAttentionKernel({.q_dtype = ..., .kv_dtype = ..., ...}));
//   LOG(INFO) << AttentionKernelTable();       // one line per kernel
//   LOG(INFO) << ExplainAttentionKernels(key); // the same, with the rule that excludes each
//
// Rules exclude the kernels that do not serve a call. Among the others, FindAttentionKernel() takes
// the kernel with the smallest tile that holds AttentionKernelKey::rows, or the largest tile if none
// holds them. Among kernels with equal rows it takes the first in kAttentionKernels
// (attention/cuda/tiles.h). Kernels that convert (KvLoading::kConverted) serve every call that another
// kernel with the same tile serves.
//
// No CUDA: kernel_launch.h launches what is found. Thread safety: const data.

#ifndef REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_
#define REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The inputs of the choice.
struct AttentionKernelKey {
  DType q_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int rows = 0;  // rows of q that a tile should hold
  // Whether `rows` is TileMap::tile_rows of a planned work map. Smaller tiles are then excluded.
  bool is_planned = false;
  ValueSource values = ValueSource::kOwn;  // whether V is the first columns of K
  KvLoading loading = KvLoading::kDirect;  // the cheapest way that the call allows
  bool has_rotary = false;                 // inside the kernel
  std::optional<DType> rope_dtype = {};    // KvLayer::rope_dtype, if the layer has a rope tensor
  bool is_general = false;                 // custom masks, scales per q head, slopes per sequence
  std::optional<DType> products = {};      // the type to multiply in; absent: as q
  int max_shared_bytes = 0;                // DeviceLimits::max_shared_bytes
  // DeviceLimits::compute_capability. 0 excludes all kernels for a specific card.
  int compute_capability = 0;
  int max_tier = 2;  // 1 excludes all kernels for a specific card
};

// Errors: Unimplemented, naming what is supported where the nearest kernel fails.
absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key);

// "tier 1  bfloat16.d128.rows16.direct  head dims <= 128, 128  16 rows  1 x 1 x 4 warps ..." and so
// on: a line per kernel, with the shared memory of a CTA last. docs/kernels.md shows it.
std::string AttentionKernelTable();

// A line per kernel: its name, and "serves" or the rule that excludes it.
std::string ExplainAttentionKernels(const AttentionKernelKey& key);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_
