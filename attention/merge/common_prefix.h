// Finds the prefix that all rows of a batch share, from their block tables: common_prefix_len of
// attention/paged_batch.h. D3.
//
//   table rows {7, 2, 9}, {7, 2, 4}, block_size 16, seq_lens {40, 33}, one query each
//   CommonPrefixLen({.batch = batch, .block_size = 16, ...})   32: blocks 7 and 2
//
// The result is the longest run of whole blocks that all rows with queries and keys have at the
// same columns, from the same key_start, and that ends before any of their own queries (or trees):
// except for windows, every query sees all of it. 0 if there is no such row. ChooseCascade()
// decides whether to read it once (attention/merge/cascade_rule.h).
//
// Lengths and rows may hold any values: a row that reaches outside the table shares nothing. Blocks
// are compared, never dereferenced. Under context parallelism tables and lengths are those of the
// rank, causality is by position, and the prefix counts the rank's keys; all new tokens of this
// step are assumed to be on this rank, which may make the prefix shorter than necessary.
//
// Thread safety: const data. Cost: rows times blocks of the prefix; no allocation.

#ifndef ATTENTION_MERGE_COMMON_PREFIX_H_
#define ATTENTION_MERGE_COMMON_PREFIX_H_

#include "attention/merge/common_prefix_args.h"

namespace reprise {

// Runs over host memory. Writes common_prefix_len if it is present. REQUIRES: block_size >= 1.
int CommonPrefixLen(const CommonPrefixArgs& args);

}  // namespace reprise

#endif  // ATTENTION_MERGE_COMMON_PREFIX_H_
