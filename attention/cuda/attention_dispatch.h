// The dispatch table, as data: which attention kernel serves which call.
//
//   REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* kernel,
//                            FindAttentionKernel({.q_dtype = ..., .kv_dtype = ..., ...}));
//   cudaError_t error = kernel->launch(params, stream);
//   LOG(INFO) << AttentionKernelTable();       // one line per kernel
//   LOG(INFO) << ExplainAttentionKernels(key); // the same, with the rule that excludes each
//
// Kernels are listed in order of preference, tuned ones (tier 2) first. A call is served by the
// first kernel that no rule excludes. The last kernels of a type, which convert
// (KvLoading::kConverted), serve every call that any kernel serves.
//
// Thread safety: const data.

#ifndef REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_
#define REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_

#include <cuda_runtime_api.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/attention_launchers.h"
#include "reprise/attention/work_map/attention_tile.h"
#include "reprise/base/dtype.h"

namespace reprise {

struct AttentionKernelEntry {
  int tier = 1;
  AttentionTile tile;
  KvLoading loading = KvLoading::kDirect;
  // The only one that the kernel is made for, 90 is 9.0; absent: any.
  std::optional<int> compute_capability = {};
  // Whether it lets the next kernel of the stream in only after AwaitKernelBefore()
  // (base/dependent_launch.cuh). Then the kernel for a call's other rows need not wait for its end.
  bool lets_sibling_in = false;
  cudaError_t (*launch)(const AttentionKernelParams& params, cudaStream_t stream) = nullptr;
  int (*shared_bytes)() = nullptr;

  // "bfloat16.d128.rows16.direct", "bfloat16.d128.rows128.warpgroup",
  // "float16.d128.rows128.warpgroup.fp8".
  std::string name() const;
};

// The inputs of the choice.
struct AttentionKernelKey {
  DType q_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int tile_rows = 0;                         // of the work map
  ValueSource values = ValueSource::kOwn;    // whether V is the first columns of K
  KvLoading loading = KvLoading::kDirect;    // the cheapest way that the call allows
  bool has_rotary = false;                   // inside the kernel
  std::optional<DType> rope_dtype = {};      // of a rope part that is a tensor of its own
  bool is_general = false;                   // custom masks, scales per q head, slopes per sequence
  std::optional<DType> products = {};        // the type to multiply in; absent: as q
  std::optional<int> max_shared_bytes = {};  // of a CTA on the card; absent: no limit
  // Of the card; 90 is 9.0. Absent: only kernels that are not specific to a card.
  std::optional<int> compute_capability = {};
  int max_tier = 2;  // 1: the general kernels only
};

absl::Span<const AttentionKernelEntry> AttentionKernels();

// Errors: Unimplemented, naming what is supported where the nearest kernel fails.
absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key);

// "tier 1  bfloat16.d128.rows16.direct  head dims <= 128, 128  16 rows  1 x 1 x 4 warps ..." and so
// on: a line per kernel, with the shared memory of a CTA last. docs/kernels.md shows it.
std::string AttentionKernelTable();

// A line per kernel: its name, and "serves" or the rule that excludes it.
std::string ExplainAttentionKernels(const AttentionKernelKey& key);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_ATTENTION_DISPATCH_H_
