// From an engine's table of token slots to a block table.
//
// SGLang keeps, for each request, the slot of every token: req_to_token [num_requests, max_tokens].
// Where blocks hold block_size tokens, each aligned run of block_size slots is one block:
//
//   // block_size 4: token slots {28 29 30 31 8 9}   ->   blocks {7 2}
//   FillBlocksOfTokens({.slots = slots, ...}, lens, /*block_size=*/4, padded);
//
// At block_size 1 a token table is a block table as it is, and needs no copy: give it to
// PagedBatch with block_size 1, indexed by request slot through table_row.
//
// Encoder and decoder in one token table: the encoder's slots first, the decoder's after them
// (attention/cross_batch.h). The table is then converted as a whole, lens being the sum of both.
//
// On a GPU: attention/token_table_kernel.h. Thread safety: pure functions. Cost: linear in tokens;
// no allocation.

#ifndef ATTENTION_TOKEN_TABLE_H_
#define ATTENTION_TOKEN_TABLE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "cache/block_table_formats.h"

namespace reprise {

// Slot of token t of row r: slots[r * row_stride + t].
struct TokenTableView {
  const int32_t* slots = nullptr;
  int64_t row_stride = 0;
  int num_tables = 0;
  int max_tokens = 0;
};

// Writes lens.size() rows of `padded`: row i is that of table row table_row[i] (of row i if
// table_row is empty), the blocks of its first lens[i] tokens, then null blocks; padded.seq_lens
// become lens. Errors, naming row and token: InvalidArgument for a table row or length out of
// range, slots that are no aligned runs of block_size, or an output too small; what was written by
// then stays.
absl::Status FillBlocksOfTokens(const TokenTableView& table, absl::Span<const int32_t> table_row,
                                absl::Span<const int32_t> lens, int block_size,
                                const MutablePaddedBlockTable& padded);

}  // namespace reprise

#endif  // ATTENTION_TOKEN_TABLE_H_
