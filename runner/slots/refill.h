// Applies the host's delta to the slots, then writes the step's arrays. Runs before the step's
// graph.
//
// A refill is one launch for any batch. Rows follow the rules of all row builders
// (attention/metadata/batch_rows.h). The CPU and GPU implementations differ only in the
// distribution of work over threads.
//
//   RefillArgs args{.delta = delta, .slots = slots, .arrays = arrays, .padded_num_rows = 16,
//                   .padded_num_tokens = 16, .block_size = 16, .num_blocks = 1024};
//   RefillOnHost(args);            // or LaunchRefill(args, stream)
//
// Refill applies the delta in this order:
//
//   leaves   clears the slot: lengths, position_delta, last_token, sample_index and sampling are
//            reset, and all entries of its block tables are null blocks. Does not clear history and
//            drafted_len.
//   joins    sets the slot's lengths, position_delta, sample_index and sampling. last_token becomes
//            0. The history of tokens with cached keys becomes -1, and drafted_len becomes
//            seq_len - num_undrafted, if these arrays exist.
//   updates  sets entries of the groups' block tables. Block 0 clears an entry.
//   rows     seq_len of the row's slot grows by query_len (with drafts, by 1): work that follows on
//            the stream treats the step's keys as cached. The arrays are filled as described in
//            runner/slots/step_arrays.h. Tokens that are not drafts are stored in the slot's
//            history and in place_tokens, if these exist.
//
// All bounds are checked in int64. Leaves, joins and updates out of range are skipped. A row is
// inert (the arrays contain a padded row, and its slot does not change) and has a RowFault in these
// cases:
//
//   kTableRow  its slot is outside [0, num_slots), or an earlier row has the same slot, even if
//              that row is inert
//   kLength    query_len is outside [1, padded_num_tokens], or a position is beyond the block table
//   kToken     its tokens are not in host_tokens
//   kNoBlock   the block of a position is outside [1, num_blocks) in the table of a group other
//              than cross groups. Exception: in a group with a window or chunks, a column may be
//              null if the row's last query reads none of the keys that the row would write there.
//              The tokens of the column then get slot -1, and their keys are not in the cache, so
//              the row's earlier queries must not need these keys from the cache.
//   kNoRoom    its tokens do not fit into padded_num_tokens after the tokens of earlier served
//              rows; then later rows are not served either. Or its earlier tokens with logits do
//              not fit into padded_num_earlier_logits; then later rows with such tokens are not
//              served either.
//
// Rows beyond padded_num_rows are not served. num_faults counts everything that was skipped or
// inert. common_prefix_len is copied from the delta, or 0 if negative; readers of the step's rows
// check it against their lengths.

#ifndef REPRISE_RUNNER_SLOTS_REFILL_H_
#define REPRISE_RUNNER_SLOTS_REFILL_H_

#include "absl/status/status.h"
#include "reprise/runner/slots/refill_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks sizes and the presence of arrays. Errors: InvalidArgument naming the size or the array, if
// a padded size exceeds the capacity of the arrays, block_size is not positive, the number of
// groups is not in [1, kMaxKvGroups], or arrays for scores, drafts or multi-dimensional positions
// are missing.
absl::Status CheckRefill(const RefillArgs& args);

// Runs the refill on the CPU. REQUIRES: CheckRefill(args) is OK; the delta's counts are within its
// capacities. Thread safety: none.
void RefillOnHost(const RefillArgs& args);

// Runs the refill on the GPU, in one launch. Pointers are device addresses; the delta and
// num_faults may be in mapped host memory. May be captured. Errors: as CheckRefill(); Internal if
// the launch fails, or if num_slots and padded_num_rows need more shared memory than a CTA can have
// (on Hopper, about 5600 each).
absl::Status LaunchRefill(const RefillArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_REFILL_H_
