// The prefix that all rows of a batch share, found from their block tables: common_prefix_len of
// attention/paged_batch.h. D3.
//
//   table rows {7, 2, 9}, {7, 2, 4}, block_size 16, seq_lens {40, 33}, one query each
//   CommonPrefixLen({.batch = batch, .block_size = 16, ...})   32: blocks 7 and 2
//
// The longest run of whole blocks that stands at the same columns of all rows with queries and
// keys, from the same key_start, and ends before any of their own queries (or trees): every query
// sees all of it, windows apart. 0 if there is no such row. Whether reading it once pays is for
// ChooseCascade() to say (attention/cascade_rule.h).
//
// Lengths and rows may be anything: a row that reaches outside the table shares nothing. Blocks are
// compared, never followed. Under context parallelism tables and lengths are those of the rank,
// causality is by position, and the prefix found is one of the rank's keys; the new tokens of this
// step are then taken to be all on this rank, which may make it shorter than it could be.
//
// Thread safety: const data. Cost: rows times blocks of the prefix; no allocation.

#ifndef ATTENTION_COMMON_PREFIX_H_
#define ATTENTION_COMMON_PREFIX_H_

#include "attention/common_prefix_args.h"

namespace reprise {

// Over host memory. common_prefix_len is written if it is there. REQUIRES: block_size >= 1.
int CommonPrefixLen(const CommonPrefixArgs& args);

}  // namespace reprise

#endif  // ATTENTION_COMMON_PREFIX_H_
