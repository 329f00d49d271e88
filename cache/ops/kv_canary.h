// A canary for KV caches: marks each slot with the sequence and position of its key, and checks
// before attention that every row is about to read its own keys.
//
//   KvCanary canary = *KvCanary::Create({.num_blocks = 4096, .block_size = 16, .device = device});
//   // With each write of new keys:
//   REPRISE_RETURN_IF_ERROR(canary.Mark(slot_mapping, sequences, positions));
//   // Before attention reads them:
//   REPRISE_RETURN_IF_ERROR(canary.Check({.block_table = table, .seq_lens = seq_lens,
//                                         .sequences = row_sequences}));
//   ... at any later time:
//   const KvCanaryReport report = canary.report();
//   LOG_IF(ERROR, report.num_wrong > 0) << report;
//
// It finds slots that are written twice, blocks that are given to two sequences, freed during a
// step or swapped without ordering, tables with stale columns, and misplaced drafts: faults that
// make attention read the keys of another sequence without a crash.
//
// A mark is the sequence and the position of a key, 8 bytes a slot, in a tensor of its own (one for
// each group of layers, since each group has blocks of its own). Marks must move with their blocks:
// give marks() to BlockStoreOptions::with for copies and swaps. Keys that a sequence found in a
// cached prefix, or shares with the sequence that it was forked from, have the mark of their
// writer: of the first `shared_lens` keys of a row only the position is checked.
//
// On CUDA, Mark() and Check() are one launch each on the current stream, without synchronisation or
// allocation: they may be captured. Checks run one after the other. Findings are written to memory
// that the host reads; report() returns those that have arrived, and is complete for the work that
// the host has waited for. Cost of a check: 8 bytes a key read, about 1/32 of the keys of a layer
// of 1 x 128 in bf16.
//
// On the CPU, Mark() and Check() are done when they return.
//
// Thread safety: none. Ownership: the canary owns marks and findings, which must outlive the graphs
// that have captured its calls.

#ifndef REPRISE_CACHE_OPS_KV_CANARY_H_
#define REPRISE_CACHE_OPS_KV_CANARY_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <ostream>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/cache/ops/kv_canary_args.h"

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
  at::Tensor sequences;         // [num_rows] int32: the sequence of the keys
  at::Tensor table_row = {};    // [num_rows] int32; undefined: row r of the table
  at::Tensor key_start = {};    // [num_rows] int32; undefined: 0
  at::Tensor shared_lens = {};  // [num_rows] int32: first keys of the sequence that others may have
                                // written; undefined: 0
  at::Tensor first_keys = {};   // [num_rows] int32: keys before it have left the window and are not
                                // read; undefined: 0
};

struct KvCanaryReport {
  int64_t num_wrong = 0;             // keys
  std::vector<KvCanaryFault> first;  // the first found of them, at most kMaxCanaryFaults
};
// One line a fault: its place, the expected and the found key.
std::ostream& operator<<(std::ostream& out, const KvCanaryReport& report);

class KvCanary {
 public:
  // Errors: InvalidArgument for a size below 1; ResourceExhausted.
  static absl::StatusOr<KvCanary> Create(const KvCanaryOptions& options);

  // [num_blocks, block_size, 2] int32: sequence and position; -1 where nothing was written.
  const at::Tensor& marks() const { return marks_; }

  // Marks slot_mapping[t] with (sequences[t], positions[t]); slots outside of the cache, for
  // example -1, are ignored.
  //   slot_mapping [num_tokens] int64; sequences, positions [>= num_tokens] int32; contiguous
  // Errors: InvalidArgument naming the argument; Internal if a launch fails.
  absl::Status Mark(const at::Tensor& slot_mapping, const at::Tensor& sequences,
                    const at::Tensor& positions);

  // Checks every key of every row. A key without a column or block is a fault too.
  // Errors: as Mark().
  absl::Status Check(const KvCanaryRows& rows);

  // The findings since Create() or the last Reset().
  KvCanaryReport report() const;

  // Forgets the findings. REQUIRES: no check is in flight; later ones are enqueued after it.
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

#endif  // REPRISE_CACHE_OPS_KV_CANARY_H_
