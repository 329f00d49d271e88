// Builds the batch of attention/metadata/batch_builder.h from arrays instead of a scheduler's
// sequences. The arrays may be on the device, and the launch may be captured.
//
//   // Rows of the slots 4 and 0 with 1 and 5 new tokens; seq_lens include them:
//   BatchGatherArgs args{.table_row = table_row, .query_lens = query_lens, .seq_lens = seq_lens,
//                        .table = table, .num_rows = 16, .num_tokens = 32, .max_query_len = 8,
//                        .max_seq_len = 4096, .arrays = arrays, .num_faults = num_faults};
//   PagedBatch batch = GatherBatch(args);        // its pointers and capacities, once per shape
//   LaunchBatchGather(args, stream);             // each step
//
// For runners that keep lengths and tables on the device. Runners that keep sequences in slots use
// refill (runner/slots/refill.h), which does this and more.
//
//   array            live rows and tokens                        padded and bad
//   query_start_loc  prefix sums of query_len                    the live total, continued
//   seq_lens         keys in the cache after the step            0
//   context_lens     keys in the cache before it                 0
//   table_row        as given                                    0
//   key_start        as given                                    0
//   positions        index in the sequence                       0
//   slot_mapping     block * block_size + offset; -1 in the      -1
//                    null block, and for tokens older than
//                    write_window
//   row_faults       0                                           0, or why the row is bad: RowFault
//
// A row with query_len 0 is an empty row. A row is bad, and then treated as empty, if
//   kTableRow  its table_row is outside [0, num_tables)
//   kLength    its query_len is negative or larger than max_query_len, it has more keys than max_seq_len, its length is
//              too small for its queries, its key_start negative, or a key beyond the table
//   kNoBlock   the block of a new token is outside [0, num_blocks)
//   kNoRoom    its tokens, after those of the good rows before it, exceed num_tokens; then all
//              later rows with tokens are bad too
// num_faults counts them.
//
// Thread safety: pure functions. Cost: linear in rows, tokens and new blocks; no allocation.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_
#define REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_

#include "absl/status/status.h"
#include "reprise/attention/metadata/batch_gather_args.h"
#include "reprise/attention/paged_batch.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// The batch over these arrays: causal, with query_positions absent.
PagedBatch GatherBatch(const BatchGatherArgs& args);

// Errors: InvalidArgument naming a negative size, an invalid table, or an absent array.
absl::Status CheckBatchGather(const BatchGatherArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckBatchGather(args) is OK.
void BatchGatherOnHost(const BatchGatherArgs& args);

// Does the same on the GPU, in one launch. Pointers are device pointers; outputs overlap no input.
// No synchronisation; may be captured, because the grid depends only on num_rows and num_tokens.
// Errors: those of CheckBatchGather(); Internal if the launch fails.
absl::Status LaunchBatchGather(const BatchGatherArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_
