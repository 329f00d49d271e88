// Token tables: for each request the cache slot of each of its tokens, as SGLang's req_to_token has
// them; and the way from them to block tables and back, on the host.
//
// With block_size 4, a request of 6 tokens in blocks 7 and 2:
//
//   token table  {28, 29, 30, 31, 8, 9}    slot = block * block_size + offset
//   block table  {7, 2}                    entry c = token table[c * block_size] / block_size
//
// Tokens of a block stand at consecutive slots, from a multiple of block_size on: what makes one a
// strided reading of the other. Cells without a token are 0, the null block's.
//
// Errors: InvalidArgument naming the argument and the row, before anything is written. Thread
// safety: pure functions. Cost: linear in the tokens and the cells that are written; no allocation.
// On the device, where only a block's first slot is looked at: cache/convert_tables.h.

#ifndef CACHE_TOKEN_TABLE_H_
#define CACHE_TOKEN_TABLE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cache/block_table_formats.h"

namespace reprise {

// Views of the caller's memory: token t of request r at slots[r * row_stride + t].
struct TokenTable {
  absl::Span<const int32_t> slots;
  int64_t row_stride = 0;
  int max_tokens = 0;
  int num_requests = 0;
};

// Which tokens of which requests: row r is tokens [starts[r], starts[r] + lens[r]) of request
// requests[r]. `starts` may be empty: all 0. A decoder's keys behind its encoder's in one table are
// the row that starts at the encoder's length.
struct TokenRows {
  absl::Span<const int32_t> requests;  // [num_rows]
  absl::Span<const int32_t> lens;      // [num_rows]
  absl::Span<const int32_t> starts;    // [num_rows] or empty
};

// Writes row r of `blocks` for each row of `rows`, and seq_lens = lens. Columns past a row's last
// block become null blocks.
// Errors too: a request that the table has not; tokens past the table's width; a block that does
// not begin at a multiple of block_size, or whose tokens do not follow each other; a row wider than
// `blocks`; an output too small.
absl::Status TokensToBlocks(const TokenTable& tokens, const TokenRows& rows, int block_size,
                            const MutablePaddedBlockTable& blocks);

// Writes row r of the token table, `slots` [num_rows, row_stride], from each row of a padded block
// table: its seq_lens[r] slots, then 0 up to `max_tokens`.
// Errors too: a seq_len that is negative or wider than either table; an output too small.
absl::Status BlocksToTokens(const PaddedBlockTable& blocks, int block_size,
                            absl::Span<int32_t> slots, int64_t row_stride, int max_tokens);

}  // namespace reprise

#endif  // CACHE_TOKEN_TABLE_H_
