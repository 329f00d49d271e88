// Builds a PagedBatch from arrays, on the host or on the device, for decode, prefill, chunked prefill,
// verification of drafts and draft-extend. The keys may be divided among context-parallel ranks.
//
//   // The sequences in table rows 4 and 0 with 1 and 5 new tokens; seq_lens include them:
//   BatchGatherArgs args{.table_row = table_row, .query_lens = query_lens, .seq_lens = seq_lens,
//                        .table = table, .num_rows = 16, .num_tokens = 32, .max_query_len = 8,
//                        .max_seq_len = 4096, .arrays = arrays, .num_faults = num_faults};
//   PagedBatch batch = GatherBatch(args);        // its pointers and capacities, once per shape
//   LaunchBatchGather(args, stream);             // each step
//
// For runners that keep lengths and tables on the device. Runners that keep sequences in slots use
// refill (runner/slots/refill.h); for a scheduler's sequences on the host see
// attention/metadata/batch_builder.h. The forms of the arguments:
//
//   lengths    seq_lens by row, or table_seq_lens by table row, each in any SeqLenForm
//   tokens     query_lens counts them, or only the drafts after num_certain tokens; their ids from
//              first_token and `tokens`, if arrays.token_ids is present
//   limit      tokens beyond max_seq_len or the table give the row a fault, or are clipped: drafts
//   ranks      the table is one rank's; keys of the step are left out with KeyPart::kContext
//
// Chains of 3 drafts for two sequences of 5 and 9 tokens, with a limit of 10 and block_size 4:
//
//   BatchGatherArgs args = {.table_row = {0, 1}, .query_lens = {3, 3}, .num_certain = 1,
//                           .table_seq_lens = {5, 9}, .seq_len_form = SeqLenForm::kBeforeStep,
//                           .past_limit = PastLimit::kClip, ..., .max_seq_len = 10, ...};
//   BuildBatchGather(args)    row 0: positions 5 6 7 8, seq_len 9
//                             row 1: position 9, seq_len 10: its drafts would pass the limit
//
//   array            live rows and tokens                        padded and inert
//   query_start_loc  prefix sums of query_len                    the live total, continued
//   seq_lens         keys in the cache after the step            0
//   context_lens     keys in the cache before it                 0
//   table_row        as given                                    0
//   key_start        as given                                    0
//   positions        index in the sequence                       0
//   slot_mapping     block * block_size + offset; -1 in the      -1
//                    null block, for tokens older than
//                    write_window and for tokens of other ranks
//   logits_indices   the row's last token                        0
//   row_faults       0                                           0, or the RowFault
//
// A row without tokens is empty. Under context parallelism all ranks clip the same drafts. A rank
// without a key of the row has seq_len 0 there: out = 0 and lse = -inf, which merging ignores.
//
// A graph of (num_rows, num_tokens, max_query_len) accepts rows of any lengths up to max_query_len.
// A row that cannot be served is inert and reported (base/row_fault.h):
//   kTableRow  its table_row is num_tables or more
//   kLength    it has more tokens than max_query_len, its length is negative or beyond the limit,
//              its length is too small for its form, or its key_start is negative
//   kNoBlock   the block of a new token is outside [0, num_blocks), or null and null_blocks is
//              kByRetention
//   kNoRoom    its tokens, after those of all previous rows, exceed num_tokens
// Rows with the first two faults take no tokens. Rows with the other two keep their tokens, which
// are inert.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows, tokens and new blocks; no
// allocation.

#ifndef REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_
#define REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/metadata/batch_gather_args.h"
#include "reprise/attention/paged_batch.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// The batch over the arrays, on the host or on the device. It is causal, except for
// KeyPart::kContext. It has query_positions only for that part and for several ranks.
PagedBatch GatherBatch(const BatchGatherArgs& args);

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckBatchGather(const BatchGatherArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckBatchGather(args) is OK.
void BatchGatherOnHost(const BatchGatherArgs& args);

// Calls CheckBatchGather() and BatchGatherOnHost(), and returns the batch. Errors: InvalidArgument
// from the check, for absent row_faults, or for the first row with a fault, with its values; the
// arrays are then as the device leaves them.
absl::StatusOr<PagedBatch> BuildBatchGather(const BatchGatherArgs& args);

// Does the same over device memory; outputs overlap no input. One kernel, preceded by a memset if
// num_faults is given. No synchronisation, no allocation; may be captured, because the grid depends
// only on num_rows, num_tokens and max_query_len. Errors: InvalidArgument as from
// CheckBatchGather(), before any call of CUDA; Internal if CUDA refuses the launch. Only in builds
// with CUDA (target batch_gather_cuda).
absl::Status LaunchBatchGather(const BatchGatherArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_
