// Finds the prefix that all rows of a batch share, from their block tables: common_prefix_len of
// attention/paged_batch.h.
//
//   table rows {7, 2, 9}, {7, 2, 4}, block_size 16, seq_lens {40, 33}, one query each
//   CommonPrefixOnHost({.batch = batch, .block_size = 16})   32: blocks 7 and 2
//
// On a GPU, over device memory: LaunchCommonPrefix(args, stream).
//
// The result is the longest run of whole blocks that all rows with queries and keys have in the
// same block-table columns. The run ends before the first query of causal rows, and before the
// first tree token. Every query sees the whole prefix, except for windows, sparse patterns, custom
// masks and query_positions. 0 if there is no such row, or if rows differ in key_start. A tile
// schedule that was planned for a shared prefix reads it once for several rows
// (attention/tile_schedule/tile_schedule_plan.h). ChooseCascade() decides whether this is faster
// (attention/merge/cascade_rule.h).
//
// Lengths and rows may hold any values: a row that reaches outside the table shares nothing. Block
// numbers are compared, never used as addresses. Under context parallelism, tables and lengths
// belong to the rank, causality is by position, and the prefix counts the rank's keys. All new
// tokens of the step are assumed to be on this rank, which may make the prefix shorter than
// necessary.
//
// Thread safety: const data. Cost: number of rows times blocks of the prefix; does not allocate.

#ifndef REPRISE_ATTENTION_MERGE_COMMON_PREFIX_H_
#define REPRISE_ATTENTION_MERGE_COMMON_PREFIX_H_

#include "absl/status/status.h"
#include "reprise/attention/merge/common_prefix_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes and the presence of the batch's arrays, but not their content. Errors:
// InvalidArgument naming the field.
absl::Status CheckCommonPrefix(const CommonPrefixArgs& args);

// The host form: like LaunchCommonPrefix(), over host memory. Returns the length, and also writes
// it to common_prefix_len if that is present. REQUIRES: CheckCommonPrefix(args) is OK.
int CommonPrefixOnHost(const CommonPrefixArgs& args);

// Writes common_prefix_len over device memory. One launch; does not synchronise or allocate; may be
// captured. Launches that share `scratch` must be ordered by a stream. Only in builds with CUDA
// (target common_prefix_cuda).
// Errors: InvalidArgument as from CheckCommonPrefix(), or if common_prefix_len or scratch is
// absent; then CUDA has not been called. Internal if the launch fails.
absl::Status LaunchCommonPrefix(const CommonPrefixArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_COMMON_PREFIX_H_
