// Finds the prefix that all rows of a batch share, from their block tables: common_prefix_len of
// attention/paged_batch.h.
//
//   table rows {7, 2, 9}, {7, 2, 4}, block_size 16, seq_lens {40, 33}, one query each
//   CommonPrefixOnHost({.batch = batch, .block_size = 16})   32: blocks 7 and 2
//
// On a GPU, over device memory: LaunchCommonPrefix(args, stream).
//
// The result is the longest run of whole blocks that all rows with queries and keys have at the
// same columns, from the same key_start, and that ends before any of their own queries (or trees):
// except for windows, every query sees all of it. 0 if there is no such row. A work map planned for
// a shared prefix reads it once for several rows (attention/work_map/work_map_plan.h);
// ChooseCascade() decides whether that pays (attention/merge/cascade_rule.h).
//
// Lengths and rows may hold any values: a row that reaches outside the table shares nothing. Blocks
// are compared, never dereferenced. Under context parallelism tables and lengths are those of the
// rank, causality is by position, and the prefix counts the rank's keys; all new tokens of this
// step are assumed to be on this rank, which may make the prefix shorter than necessary.
//
// Thread safety: const data. Cost: rows times blocks of the prefix; no allocation.

#ifndef REPRISE_ATTENTION_MERGE_COMMON_PREFIX_H_
#define REPRISE_ATTENTION_MERGE_COMMON_PREFIX_H_

#include "absl/status/status.h"
#include "reprise/attention/merge/common_prefix_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes and the presence of the batch's arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckCommonPrefix(const CommonPrefixArgs& args);

// Does the same as the device form, over host memory. Returns the length, and writes it to
// common_prefix_len if that is present. REQUIRES: CheckCommonPrefix(args) is OK.
int CommonPrefixOnHost(const CommonPrefixArgs& args);

// Writes common_prefix_len over device memory: one launch, no synchronisation, no allocation, may
// be captured. Launches that share `scratch` must be ordered by their stream.
// Errors: InvalidArgument as from CheckCommonPrefix(), and for absent common_prefix_len or scratch,
// before any call of CUDA; Internal if CUDA refuses the launch. Only in builds with CUDA (target
// common_prefix_cuda).
absl::Status LaunchCommonPrefix(const CommonPrefixArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_COMMON_PREFIX_H_
