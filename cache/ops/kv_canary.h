// A canary for KV caches: marks each slot with the sequence and position of its key. Before
// attention, it checks that every row is about to read its own keys.
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
// It detects slots that are written twice; blocks that are allocated to two sequences, freed during
// a step or swapped without ordering; tables with stale columns; and misplaced drafts. These faults
// make attention read the keys of another sequence without a crash.
//
// A mark is the sequence and position of a key: 8 bytes per slot, in a separate tensor. Each group
// of layers needs one canary, because each group has separate blocks. Marks must move with their
// blocks: pass marks() to BlockStoreOptions::with for copies and swaps. Keys found in a cached
// prefix, or shared with the sequence of a fork, have the mark of their writer. Only the position
// is therefore checked for the first `shared_lens` keys of a row.
//
// On CUDA, Mark() and Check() are at most one launch each on the current stream, without
// synchronisation or allocation, and may be captured. Checks must not run concurrently. Findings
// are written to memory that the host reads. report() returns the findings that have arrived, and
// is complete for all work that the host has waited for. Cost of a check: 8 bytes read per key,
// about 1/32 of a layer's keys with 1 x 128 in bf16.
//
// On the CPU, Mark() and Check() complete before they return.
//
// Thread safety: not thread-safe. Ownership: the canary owns marks and findings. It must outlive
// the graphs that have captured its calls.

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

// Rows of keys that are about to be read, as in PagedBatch. On the canary's device.
struct KvCanaryRows {
  at::Tensor block_table;       // [num_tables, max_blocks] int32, last stride 1
  at::Tensor seq_lens;          // [num_rows] int32: keys of the row, counted from key_start
  at::Tensor sequences;         // [num_rows] int32: the sequence of the keys
  at::Tensor table_row = {};    // [num_rows] int32; undefined: row r of the table
  at::Tensor key_start = {};    // [num_rows] int32; undefined: 0
  at::Tensor shared_lens = {};  // [num_rows] int32: number of first keys of the sequence that
                                // another sequence may have written; undefined: 0
  at::Tensor first_keys = {};   // [num_rows] int32: first key in the window; earlier keys are not
                                // read; undefined: 0
};

struct KvCanaryReport {
  int64_t num_wrong = 0;             // number of wrong keys
  std::vector<KvCanaryFault> first;  // the first wrong keys, at most kMaxCanaryFaults
};
// Prints the number of wrong keys, then one line per fault in `first`: its position, the expected
// key and the found key.
std::ostream& operator<<(std::ostream& out, const KvCanaryReport& report);

class KvCanary {
 public:
  // Errors: InvalidArgument for a size below 1; ResourceExhausted.
  static absl::StatusOr<KvCanary> Create(const KvCanaryOptions& options);

  // [num_blocks, block_size, 2] int32: sequence and position; -1 for slots that were never marked.
  const at::Tensor& marks() const { return marks_; }

  // Marks slot_mapping[t] with (sequences[t], positions[t]). Slots outside the cache, such as -1,
  // are ignored.
  //   slot_mapping [num_tokens] int64; sequences, positions [>= num_tokens] int32; contiguous
  // Errors: InvalidArgument naming the argument; Internal if a launch fails.
  absl::Status Mark(const at::Tensor& slot_mapping, const at::Tensor& sequences,
                    const at::Tensor& positions);

  // Checks every key that the rows read. A key without a column or block is also a fault. Errors:
  // as Mark().
  absl::Status Check(const KvCanaryRows& rows);

  // Returns the findings since Create() or the last Reset().
  KvCanaryReport report() const;

  // Clears the findings. REQUIRES: no check is in flight; later checks are enqueued after the call.
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
