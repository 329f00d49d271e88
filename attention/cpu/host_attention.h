// Attention on the CPU: every feature of the contracts (attention/attention.h), float32
// accumulation, any number of threads.
//
// Does not use LibTorch: the caller provides the function that runs shares of the work in parallel.
//
//   PagedAttentionOnHost(layer, batch, q, kv, output, {.run = run_shares, .count = 8});
//
// The batch's arrays are read when called; of its host fields only num_rows and causal matter, so
// the call may be recorded and replayed. On one kind of processor, results are bitwise independent
// of the number of threads and of the other rows of the batch.
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

void PagedAttentionOnHost(const AttentionParams& layer, const PagedBatch& batch, const TokenView& q,
                          const KvLayer& kv, const HostOutput& output, const HostThreads& threads,
                          const VectorKernels& kernels = BestVectorKernels(),
                          const NewKeys& new_keys = {});

// The scales of contiguous keys and values.
struct KeyScales {
  Scale k = {};
  Scale v = {};
};

void RaggedAttentionOnHost(const AttentionParams& layer, const RaggedBatch& batch,
                           const TokenView& q, const TokenView& k, const TokenView& v,
                           const HostOutput& output, const HostThreads& threads,
                           const VectorKernels& kernels = BestVectorKernels(),
                           const KeyScales& scales = {});

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_HOST_ATTENTION_H_
