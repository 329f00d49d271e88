// Builds a PagedBatch from arrays, on the host or on the device, for decode, prefill, chunked
// prefill, draft verification and draft-extend. The keys may be sharded over context-parallel
// ranks.
//
//   // Sequences in table rows 4 and 0 with 1 and 5 new tokens; seq_lens include the new tokens:
//   BatchGatherArgs args{.table_row = table_row, .query_lens = query_lens, .seq_lens = seq_lens,
//                        .table = table, .num_rows = 16, .num_tokens = 32, .max_query_len = 8,
//                        .max_seq_len = 4096, .arrays = arrays, .num_faults = num_faults};
//   PagedBatch batch = GatherBatch(args);        // pointers and capacities, once per shape
//   LaunchBatchGather(args, stream);             // each step
//
// Use it in runners that keep lengths and tables on the device. Runners that keep sequences in
// slots use refill (runner/slots/refill.h). For a scheduler's sequences on the host see
// attention/metadata/batch_builder.h. Forms of the arguments:
//
//   lengths    seq_lens by row, or table_seq_lens by table row, each in any SeqLenForm
//   tokens     query_lens counts all new tokens, or only the drafts after num_verified verified
//              tokens; token ids come from first_token and `tokens` if arrays.token_ids is present
//   limit      tokens beyond max_seq_len or the table cause a fault, or are dropped (for drafts)
//   ranks      the table belongs to one rank; KeyPart::kContext excludes the keys of this step
//
// Chains of 3 drafts for two sequences of 5 and 9 tokens, with a limit of 10 and block_size 4:
//
//   BatchGatherArgs args = {.table_row = {0, 1}, .query_lens = {3, 3}, .num_verified = 1,
//                           .table_seq_lens = {5, 9}, .seq_len_form = SeqLenForm::kBeforeStep,
//                           .past_limit = PastLimit::kClip, ..., .max_seq_len = 10, ...};
//   BuildBatchGather(args)    row 0: positions 5 6 7 8, seq_len 9
//                             row 1: position 9, seq_len 10: its drafts exceed the limit
//
//   array            live rows and tokens                        padded and inert
//   query_start_loc  prefix sums of query_len                    the prefix sums, continued
//   seq_lens         keys in the cache after the step            0
//   context_lens     keys in the cache before the step           0
//   table_row        as given                                    0
//   key_start        as given                                    0
//   positions        index in the sequence                       0
//   slot_mapping     block * block_size + offset; -1 in the      -1
//                    null block, for tokens older than
//                    write_window, and for other ranks' tokens
//   logits_indices   the row's last token                        0
//   row_faults       0                                           0, or the RowFault
//
// A row without tokens is empty. Under context parallelism all ranks clip the same drafts. If a
// rank holds no key of a row, the row's seq_len is 0 on that rank; its out is 0 and its lse is
// -inf, and merge_states ignores it.
//
// A graph captured for (num_rows, num_tokens, max_query_len) accepts rows of any length up to
// max_query_len. An invalid row becomes inert and is reported (base/row_fault.h):
//   kTableRow  table_row is at least num_tables
//   kLength    the row has more than max_query_len tokens, its query_len is negative, its length is
//              beyond the limit or too small for its form, or its key_start is negative
//   kNoBlock   the block of a new token is outside [0, num_blocks), or is null and null_blocks is
//              kByRetention
//   kNoRoom    the tokens of this and all previous rows exceed num_tokens
// Rows with kTableRow or kLength take no tokens. Rows with kNoBlock or kNoRoom keep their tokens,
// which are inert.
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

// Returns the batch over the arrays, which are on the host or on the device. The batch is causal
// unless args.part is KeyPart::kContext. It has query_positions only if args.part is
// KeyPart::kContext or there are several ranks.
PagedBatch GatherBatch(const BatchGatherArgs& args);

// Checks sizes, strides and the presence of arrays, but not the content of arrays.
// Errors: InvalidArgument that names the field.
absl::Status CheckBatchGather(const BatchGatherArgs& args);

// Gathers the batch in host memory, like LaunchBatchGather() on the device.
// REQUIRES: CheckBatchGather(args) is OK.
void BatchGatherOnHost(const BatchGatherArgs& args);

// Calls CheckBatchGather() and BatchGatherOnHost(), and returns the batch.
// Errors: InvalidArgument from the check, for absent row_faults, or for the first row with a fault,
// with its values. If a row has a fault, the arrays hold the same values as after the device form.
absl::StatusOr<PagedBatch> BuildBatchGather(const BatchGatherArgs& args);

// Gathers the batch in device memory. May be captured: the grid depends only on num_rows,
// num_tokens and max_query_len. REQUIRES: outputs do not overlap inputs.
// Errors: InvalidArgument from CheckBatchGather(), before any CUDA call; Internal if the launch
// fails. Cost: one kernel, preceded by a memset if num_faults is given. Does not synchronise or
// allocate. Only in builds with CUDA (target batch_gather_cuda).
absl::Status LaunchBatchGather(const BatchGatherArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_BATCH_GATHER_H_
