// A canary for KV caches: marks each slot with whose key it holds, and checks before attention that
// every key a row is about to read is the one it should be.
//
//   KvCanary canary = *KvCanary::Create({.num_blocks = 4096, .block_size = 16, .device = device});
//   // Beside each write of new keys:
//   REPRISE_RETURN_IF_ERROR(canary.Mark(slot_mapping, sequences, positions));
//   // Before attention reads them:
//   REPRISE_RETURN_IF_ERROR(canary.Check({.block_table = table, .seq_lens = seq_lens,
//                                         .sequences = row_sequences}));
//   ... some steps later, whenever the host likes:
//   const KvCanaryReport report = canary.report();
//   LOG_IF(ERROR, report.num_wrong > 0) << report;
//
// What it finds: slots written twice, blocks given to two sequences, freed under a step or swapped
// without ordering, tables with stale columns, drafts past their place: all that makes attention
// read the keys of somebody else without a crash.
//
// A mark is the sequence and the position of a key, 8 bytes a slot, in a tensor beside the cache
// (for each group of layers, for each has blocks of its own). It must go where its block goes: give
// marks() to BlockStoreOptions::with for copies and swaps. Keys that a sequence found in a cached
// prefix, or took over from the one it was forked from, carry the mark of their writer: of
// `shared_lens` first keys of a row only the position is checked.
//
// On CUDA, Mark() and Check() are one launch each on the current stream, without synchronisation or
// allocation: they may be captured. Checks run one after the other. Findings go into memory that
// the host reads; report() gives what has arrived so far, and is complete for the work that the
// host has waited for. Cost of a check: 8 bytes a key read, about 1/32 of the keys of a layer of
// 1 x 128 in bf16.
//
// On the CPU they are done when they return.
//
// Thread safety: none. Ownership: the canary owns marks and findings, which must outlive the graphs
// that have captured its calls.

#ifndef CACHE_KV_CANARY_H_
#define CACHE_KV_CANARY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mapped_buffer.h"
#include "cache/kv_canary_params.h"

namespace reprise {

struct KvCanaryOptions {
  int num_blocks = 0;
  int block_size = 0;
  at::Device device = at::kCPU;
};

// Rows of keys that are about to be read, as PagedBatch has them. On the canary's device.
struct KvCanaryRows {
  at::Tensor block_table;       // [num_tables, max_blocks] int32, last stride 1
  at::Tensor seq_lens;          // [num_rows] int32: keys of the row, counted from key_start
  at::Tensor sequences;         // [num_rows] int32: whose keys they are
  at::Tensor table_row = {};    // [num_rows] int32; undefined: row r of the table
  at::Tensor key_start = {};    // [num_rows] int32; undefined: 0
  at::Tensor shared_lens = {};  // [num_rows] int32: first keys of the sequence that others may have
                                // written; undefined: 0
  at::Tensor first_keys = {};   // [num_rows] int32: keys before it are not read, for they left the
                                // window; undefined: 0
};

struct KvCanaryReport {
  int64_t num_wrong = 0;             // keys
  std::vector<KvCanaryFault> first;  // the first found of them, at most kMaxCanaryFaults
};
// One line a fault: where it was, what was expected, what was found.
std::ostream& operator<<(std::ostream& out, const KvCanaryReport& report);

class KvCanary {
 public:
  // Errors: InvalidArgument for a size below 1; ResourceExhausted.
  static absl::StatusOr<KvCanary> Create(const KvCanaryOptions& options);

  // [num_blocks, block_size, 2] int32: sequence and position; -1 where nothing was written.
  const at::Tensor& marks() const { return marks_; }

  // Marks slot_mapping[t] with (sequences[t], positions[t]); slots outside of the cache, -1 among
  // them, are left out.
  //   slot_mapping [num_tokens] int64; sequences, positions [>= num_tokens] int32; contiguous
  // Errors: InvalidArgument naming the argument; Internal if a launch fails.
  absl::Status Mark(const at::Tensor& slot_mapping, const at::Tensor& sequences,
                    const at::Tensor& positions);

  // Checks every key of every row. A key whose column or block does not exist is a fault too.
  // Errors: as Mark().
  absl::Status Check(const KvCanaryRows& rows);

  // What has been found since the beginning or the last Reset().
  KvCanaryReport report() const;

  // Forgets the findings. REQUIRES: no check is in flight; the next ones are enqueued behind it.
  // Errors: Internal if LibTorch fails.
  absl::Status Reset();

 private:
  KvCanary() = default;

  int num_blocks_ = 0;
  int block_size_ = 0;
  at::Tensor marks_;
  std::shared_ptr<MappedBuffer> findings_;  // KvCanaryFindings
  at::Tensor counters_;                     // KvCanaryCounters
};

}  // namespace reprise

#endif  // CACHE_KV_CANARY_H_
