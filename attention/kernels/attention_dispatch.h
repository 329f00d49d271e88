// Which attention kernel serves which sizes: the dispatch table of tier 1, as data.
//
//   REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* kernel,
//                            FindAttentionKernel({.q_dtype = ..., .kv_dtype = ..., ...}));
//   cudaError_t error = kernel->launch(params, stream);
//   LOG(INFO) << AttentionKernelTable();   // one line a kernel
//
// Thread safety: const data.

#ifndef ATTENTION_KERNELS_ATTENTION_DISPATCH_H_
#define ATTENTION_KERNELS_ATTENTION_DISPATCH_H_

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/kernels/attention_kernel_params.h"
#include "attention/kernels/attention_tile.h"
#include "base/dtype.h"

namespace reprise {

struct AttentionKernelEntry {
  AttentionTile tile;
  cudaError_t (*launch)(const AttentionKernelParams& params, cudaStream_t stream);
};

// What the choice depends on.
struct AttentionKernelKey {
  DType q_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int tile_rows = 0;  // of the work map
};

absl::Span<const AttentionKernelEntry> AttentionKernels();

// The kernel of the least head dim that holds both. Errors: Unimplemented, naming what is
// supported.
absl::StatusOr<const AttentionKernelEntry*> FindAttentionKernel(const AttentionKernelKey& key);

// "bfloat16  head_dim <= 128  16 rows  1 x 4 warps  16 keys  3 CTAs/SM" and so on, a line a kernel.
std::string AttentionKernelTable();

}  // namespace reprise

#endif  // ATTENTION_KERNELS_ATTENTION_DISPATCH_H_
