// Attention on the CPU with all features of the contracts (attention/attention.h), accumulation in
// float32, and any number of threads.
//
// Does not use LibTorch: the caller supplies the function that runs shares of the work in parallel.
//
//   const HostCall call = {.layer = layer, .kv = kv, .q = q, .output = output};
//   PagedAttentionOnHost(call, batch, {.run = run_shares, .count = 8});
//   // Contiguous keys:
//   const HostCall ragged = {
//       .layer = layer, .kv = ContiguousKv(layer, k, v), .q = q, .output = output};
//   RaggedAttentionOnHost(ragged, ragged_batch, {.run = run_shares, .count = 8});
//
// The functions read the arrays of the batch during the call. Of its host fields they use only
// num_rows, causal, block_table_stride and key_positions, so a call may be recorded and replayed.
// On processors of one kind, results are bitwise independent of the number of threads and the other
// rows in the batch.
//
// REQUIRES: the checks of CheckAttentionParams(), CheckBatchFields(), CheckKvLayer() and
// CheckBatchArrays() (attention/checks.h) pass.
// Thread safety: concurrent calls with different outputs are safe. Allocates only if a call needs
// more memory than all earlier calls on its threads.
//
// Cost: loads K and V of each row once per tile: per KV head and at most kMaxTileRows rows of q
// (attention/cpu/tile.h). head_dim_qk + head_dim_v multiply-adds per query, q head and key.

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

// How to run the work in parallel.
struct HostThreads {
  // Calls run_share(0) .. run_share(num_shares - 1) once each, on any threads, and returns after
  // all calls have returned. Must outlive the call.
  absl::FunctionRef<void(int num_shares, absl::FunctionRef<void(int)> run_share)> run;
  int count = 1;  // maximum number of shares
  // Minimum number of multiply-adds per share, which take 15 to 30 us. Waking a thread and waiting
  // for it takes a few microseconds, and far longer on a busy machine.
  int64_t share_work = 500'000;
};

void PagedAttentionOnHost(const HostCall& call, const PagedBatch& batch,
                          const HostThreads& threads);

// Returns contiguous keys and values as a cache with one long block: the `kv` of a ragged call.
KvLayer ContiguousKv(const AttentionParams& layer, const TokenView& k, const TokenView& v,
                     const KeyScales& scales = {});

// REQUIRES: call.kv is a result of ContiguousKv(), and call.new_keys has no data.
void RaggedAttentionOnHost(const HostCall& call, const RaggedBatch& batch,
                           const HostThreads& threads);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_HOST_ATTENTION_H_
