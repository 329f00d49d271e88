// Attention on the CPU: every feature of the contracts (attention/attention.h), float32
// accumulation, any number of threads.
//
// Without LibTorch: the caller says how to run shares of the work side by side.
//
//   PagedAttentionOnHost(layer, batch, q, kv, output, {.run = run_shares, .count = 8});
//
// The batch's arrays are read when called; of its host fields only num_rows and causal matter, so
// the call may be recorded and replayed. Results are the same bits whatever the number of threads
// and the other rows of the batch, on one kind of processor.
//
// REQUIRES: what CheckPagedBatchOnHost() and ValidatePagedAttention() check (attention/validate.h).
// Thread safety: concurrent calls are safe. Allocates only when a call needs more than any before
// on its threads.
//
// Cost: reads each row's K and V once per kMaxTileRows rows of q and kv head
// (attention/cpu/tile.h), 2 * (head_dim_qk + head_dim_v) multiply-adds per query, q head and key.

#ifndef ATTENTION_CPU_HOST_ATTENTION_H_
#define ATTENTION_CPU_HOST_ATTENTION_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "attention/attention_params.h"
#include "attention/cpu/tile.h"
#include "attention/cpu/vector_kernels.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/token_view.h"
#include "cache/kv_layer.h"

namespace reprise {

// Who does the work.
struct HostThreads {
  // Calls run_share(0) .. run_share(num_shares - 1), each once, on any threads, and returns when
  // all have returned. Must outlive the call.
  absl::FunctionRef<void(int num_shares, absl::FunctionRef<void(int)> run_share)> run;
  int count = 1;  // the most shares
  // Multiply-adds that are worth a share: 15 to 30 microseconds of them, where waking a thread and
  // waiting for it takes a few, and far more on a machine that is busy.
  int64_t share_work = 500'000;
};

void PagedAttentionOnHost(const AttentionParams& layer, const PagedBatch& batch, const TokenView& q,
                          const KvLayer& kv, const HostOutput& output, const HostThreads& threads,
                          const VectorKernels& kernels = BestVectorKernels(),
                          const NewKeys& new_keys = {});

void RaggedAttentionOnHost(const AttentionParams& layer, const RaggedBatch& batch,
                           const TokenView& q, const TokenView& k, const TokenView& v,
                           const HostOutput& output, const HostThreads& threads,
                           const VectorKernels& kernels = BestVectorKernels());

}  // namespace reprise

#endif  // ATTENTION_CPU_HOST_ATTENTION_H_
