// Converts the steps of a runner to the view of one rank if the keys of each sequence are sharded
// over ranks (decode context parallelism, docs/distributed.md).
//
//   ContextRows context(options);
//   // Once per captured shape:
//   StepBatches batches = metadata->BatchesAt(key, context.ArraysOf(arrays), slots);
//   context.Place(arrays, batches);
//   // Each step, on the driver's stream, before the metadata:
//   REPRISE_RETURN_IF_ERROR(context.Build(arrays, key.padded_num_seqs, key.padded_num_tokens));
//
// The scheduler, block tables and refill handle the tokens of all ranks. The attention of this rank
// reads only the rank's own keys. It therefore uses the lengths and slots of
// attention/metadata/rank_rows.h, and positions within the sequence.
//
// Thread safety: none; one owner. Must outlive graphs that capture Build().

#ifndef REPRISE_RUNNER_RANKS_CONTEXT_ROWS_H_
#define REPRISE_RUNNER_RANKS_CONTEXT_ROWS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/slots/step_arrays.h"
#include "reprise/runner/step_metadata.h"

namespace reprise {

struct ContextRowsOptions {
  KeyPositions ranks = {};
  int block_size = 0;  // tokens per block, over all ranks
  int num_groups = 1;
  int max_rows = 0;
  int max_tokens = 0;
  int max_seq_len = 0;  // maximum sequence length, over all ranks
  c10::Device device = c10::kCPU;
};

class ContextRows {
 public:
  // Allocates device memory. REQUIRES: valid ranks, and a block_size that is a multiple of their
  // cycle.
  explicit ContextRows(const ContextRowsOptions& options);

  // Returns the step's arrays with the lengths and slots of this rank instead of those for all
  // ranks.
  StepArrays ArraysOf(const StepArrays& arrays) const;

  // Sets the positions of keys and queries in `batches`, which must use the arrays of ArraysOf().
  void Place(const StepArrays& arrays, StepBatches& batches) const;

  // Enqueues the computation of the rank's lengths and slots from `arrays`, which hold the values
  // for all ranks. Uses LibTorch's current stream. May be captured. Errors: as CheckRankRows() and
  // LaunchRankRows().
  absl::Status Build(const StepArrays& arrays, int num_rows, int num_tokens) const;

  // Maximum number of keys of a sequence on any rank.
  int max_seq_len() const;
  int64_t bytes() const;
  void AddTo(Fingerprint& fingerprint) const;

 private:
  ContextRowsOptions options_;
  at::Tensor lens_;   // [2, max_rows] int32: seq_lens, context_lens
  at::Tensor slots_;  // [num_groups, max_tokens] int64
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_RANKS_CONTEXT_ROWS_H_
