// Chooses the attention kernel of a call from a table. Plans and calls use the same table: a plan
// finds the kernel whose tile holds the Q tiles of the schedule, and a call finds the kernel to
// launch.
//
//   REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* kernel,
//                            FindAttentionKernel({.q_dtype = ..., .kv_dtype = ..., ...}));
//   LOG(INFO) << AttentionKernelTable();       // one line per kernel
//   LOG(INFO) << ExplainAttentionKernels(key); // the rule that excludes each kernel
//
// Rules exclude the kernels that do not serve a call. From the remaining kernels,
// FindAttentionKernel() takes the kernel with the smallest tile that holds
// AttentionKernelKey::rows, or the largest tile if no tile holds them. Among kernels with equal
// rows it takes the first in kAttentionKernels (attention/cuda/tiles.h). A kernel that converts
// (KvLoading::kConverted) serves every call that a tier 1 kDirect kernel with the same tile serves.
//
// No CUDA: kernel_launch.h launches the kernel. Thread safety: const data.

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
  int rows = 0;  // query rows that a tile should hold
  // Whether `rows` is KernelSchedule::tile_rows of a planned tile schedule. If true, smaller tiles
  // are excluded.
  bool is_planned = false;
  ValueSource values = ValueSource::kOwn;  // source of V in the cache
  KvLoading loading = KvLoading::kDirect;  // the cheapest loading that the call allows
  bool has_rotary = false;                 // rotary embedding inside the kernel
  std::optional<DType> rope_dtype = {};    // KvLayer::rope_dtype, if the layer has a rope tensor
  bool is_general = false;                 // custom mask, scales per q head, slopes per sequence
  std::optional<DType> products = {};      // MMA type; absent: derived from q and KV
  int max_shared_bytes = 0;                // DeviceLimits::max_shared_bytes
  // DeviceLimits::compute_capability. 0 excludes all tuned kernels.
  int compute_capability = 0;
  int max_tier = 2;  // 1 excludes all tuned kernels
};

// Errors: Unimplemented. The message gives the supported options, from the rule that excludes the
// nearest kernel.
absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key);

// Returns one line per kernel, which ends with the shared memory of a CTA. docs/kernels.md contains
// this table.
//   tier 1  bfloat16.d128.rows16.direct  head dims <= 128, 128  16 rows  1 x 1 x 4 warps ...
std::string AttentionKernelTable();

// Returns a line with the key, and one line per kernel: its name, and "serves" or the first rule
// that excludes it.
std::string ExplainAttentionKernels(const AttentionKernelKey& key);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_
