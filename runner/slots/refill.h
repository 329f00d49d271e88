// The first act of a step: apply the host's delta to the slots and gather the step's arrays.
//
// One launch, whatever the batch holds. The rows are those of all builders
// (attention/metadata/batch_rows.h); the CPU's form and the GPU's differ in how threads divide
// them.
//
//   RefillArgs args{.delta = delta, .slots = slots, .arrays = arrays, .padded_num_rows = 16,
//                   .padded_num_tokens = 16, .block_size = 16, .num_blocks = 1024};
//   RefillOnHost(args);            // or LaunchRefill(args, stream)
//
// In this order:
//   leaves   the slot becomes as at creation: nothing cached, its table rows null blocks
//   joins    lengths, position_delta, sample_index and sampling of the slot are set, last_token is 0
//   updates  entries of the groups' block tables are set; block 0 clears one
//   rows     seq_len of the row's slot grows by query_len: the step's keys count as cached for what
//            follows on the stream. The arrays are filled as runner/slots/step_arrays.h says.
//            Tokens that are no drafts are kept in the slot's history and in place_tokens, if there.
//
// Everything is bounds-checked in int64. Joins, leaves and updates out of range are skipped. A row
// is inert (in the arrays as a padded row, its slot untouched), with a RowFault, if
//   kTableRow  its slot is outside [0, num_slots), or is that of an earlier row, good or bad
//   kLength    query_len is outside [1, padded_num_tokens], or a position is beyond the table
//   kToken     its tokens are not in host_tokens
//   kNoBlock   the block of a position, in the table of any group but cross groups, is outside
//              [1, num_blocks). In groups of a window or of chunks a column may be null if all that
//              the row would write there is older than what its last query sees: its tokens get
//              slot -1. Their keys are not in the cache then, so queries before the last must not
//              need them from there
//   kNoRoom    its tokens, after those of the good rows before it, pass padded_num_tokens; then no
//              later row is served either. Or its earlier tokens whose logits are wanted pass
//              padded_num_earlier_logits; then no later row that wants some is served
// Rows beyond padded_num_rows are not served. num_faults counts all that was skipped or inert.
// common_prefix_len is copied from the delta, or 0 if that is negative; readers of the step's rows
// check it against their lengths.

#ifndef REPRISE_RUNNER_SLOTS_REFILL_H_
#define REPRISE_RUNNER_SLOTS_REFILL_H_

#include "absl/status/status.h"
#include "reprise/runner/slots/refill_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Errors: InvalidArgument naming the size or array: padded sizes beyond the arrays, no block_size, a
// number of groups outside 1 .. kMaxKvGroups, arrays of scores or of positions of several dimensions
// missing where they are needed.
absl::Status CheckRefill(const RefillArgs& args);

// REQUIRES: CheckRefill(args) is OK; counts are within the delta's capacities. Thread safety: none.
void RefillOnHost(const RefillArgs& args);

// The same on the GPU, in one launch. Pointers are device addresses; the delta and num_faults may
// be mapped host memory. May be captured.
// Errors: those of CheckRefill(); Internal if the launch fails, or if num_slots and padded_num_rows
// are too many for shared memory (some 8000 each).
absl::Status LaunchRefill(const RefillArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_REFILL_H_
