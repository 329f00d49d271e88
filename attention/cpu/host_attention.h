// Attention on the CPU: every feature of the contracts (attention/attention.h), float32
// accumulation, any number of threads.
//
// Does not use LibTorch: the caller provides the function that runs shares of the work in parallel.
//
//   const HostCall call = {.layer = layer, .kv = kv, .q = q, .output = output};
//   PagedAttentionOnHost(call, batch, {.run = run_shares, .count = 8});
//   // Contiguous keys:
//   const HostCall ragged = {.layer = layer, .kv = ContiguousKv(layer, k, v), .q = q, .output = output};
//   RaggedAttentionOnHost(ragged, ragged_batch, {.run = run_shares, .count = 8});
//
// The functions read the arrays of the batch when they are called. They use two of its host fields,
// num_rows and causal, so a call may be recorded and replayed. On one kind of processor, results are
// bitwise independent of the number of threads and of the other rows of the batch.
//
// REQUIRES: what CheckAttentionParams(), CheckBatchFields() and CheckKvLayer()
// (attention/checks.h) and CheckBatchArrays() (attention/checks.h) check.
// Thread safety: concurrent calls are safe. Allocates only when a call needs more than any before
// on its threads.
//
// Cost: reads each row's K and V once per kMaxTileRows rows of q and kv head
// (attention/cpu/tile.h), 2 * (head_dim_qk + head_dim_v) multiply-adds per query, q head and key.

#ifndef REPRISE_ATTENTION_CPU_HOST_ATTENTION_H_
#define REPRISE_ATTENTION_CPU_HOST_ATTENTION_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/cpu/tile.h"
#include "reprise/attention/cpu/vector_kernels.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/token_view.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// How the work is run.
struct HostThreads {
  // Calls run_share(0) .. run_share(num_shares - 1), each once, on any threads, and returns when
  // all have returned. Must outlive the call.
  absl::FunctionRef<void(int num_shares, absl::FunctionRef<void(int)> run_share)> run;
  int count = 1;  // largest number of shares
  // Smallest number of multiply-adds per share: 15 to 30 microseconds of work. Waking a thread and
  // waiting for it takes a few microseconds, and far more on a busy machine.
  int64_t share_work = 500'000;
};

void PagedAttentionOnHost(const HostCall& call, const PagedBatch& batch,
                          const HostThreads& threads);

// Returns contiguous keys and values as a cache of one long block: the `kv` of a ragged call.
KvLayer ContiguousKv(const AttentionParams& layer, const TokenView& k, const TokenView& v,
                     const KeyScales& scales = {});

// REQUIRES: call.kv is from ContiguousKv(), and call.new_keys has no data.
void RaggedAttentionOnHost(const HostCall& call, const RaggedBatch& batch,
                           const HostThreads& threads);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_HOST_ATTENTION_H_
