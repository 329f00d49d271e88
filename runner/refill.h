// The first act of a step: apply the host's delta to the slots and gather the step's arrays.
//
// One launch, whatever the batch holds. On the CPU the same arithmetic as a function; a test holds
// the two together.
//
//   RefillArgs args{.delta = delta, .slots = slots, .arrays = arrays, .padded_num_rows = 16,
//                   .padded_num_tokens = 16, .block_size = 16, .num_blocks = 1024};
//   RefillOnHost(args);            // or LaunchRefill(args, stream), runner/refill_kernel.h
//
// In this order:
//   leaves   the slot becomes as at creation: nothing cached, its table rows null blocks
//   joins    lengths, sample_index and sampling of the slot are set, last_token is 0
//   updates  entries of the groups' block tables are set; block 0 clears one
//   rows     seq_len of the row's slot grows by query_len: the step's keys count as cached for what
//            follows on the stream. The arrays are filled as runner/step_arrays.h says.
//
// Everything is bounds-checked in int64. Joins, leaves and updates out of range are skipped. A row
// is inert (in the arrays as a padded row, its slot untouched) if
//   - its slot is outside [0, num_slots), or is that of an earlier row, good or bad;
//   - query_len is outside [1, padded_num_tokens], or its tokens do not lie in host_tokens;
//   - a position of it is beyond max_blocks * block_size, or the block of one, in the table of any
//     group but cross groups, is outside [1, num_blocks). In groups of a window or of chunks a
//     column may be null if all that the row would write there is older than what its last query
//     sees: its tokens get slot -1. Their keys are not in the cache then, so queries before the
//     last must not need them from there;
//   - its tokens, after those of the good rows before it, pass padded_num_tokens; then no later row
//     is served either;
//   - it is beyond padded_num_rows.
// num_bad_rows counts all that was skipped or inert. common_prefix_len is written as the delta has
// it, or 0 if that is negative; who reads the step's rows holds it against their lengths.

#ifndef RUNNER_REFILL_H_
#define RUNNER_REFILL_H_

#include "runner/refill_args.h"

namespace reprise {

// REQUIRES: the padded sizes are at most those of the arrays; counts are within the delta's
// capacities. Thread safety: none.
void RefillOnHost(const RefillArgs& args);

}  // namespace reprise

#endif  // RUNNER_REFILL_H_
