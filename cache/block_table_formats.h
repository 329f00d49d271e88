// Block tables in the two forms of the field, and the way from one to the other, on the host.
//
// Padded: block_table [num_rows, max_blocks] with seq_lens, as PagedBatch has it. Packed (CSR): the
// blocks of all rows one after the other, as FlashInfer has it. The same three sequences of 6, 0
// and 8 tokens at block_size 4:
//
//   padded   block_table {{7, 2, -}, {-, -, -}, {5, 9, -}}    seq_lens {6, 0, 8}
//   packed   block_indptr {0, 2, 2, 4}   block_indices {7, 2, 5, 9}   last_block_len {2, 0, 4}
//
// last_block_len is 1..block_size, and 0 only for an empty row. Padded rows of a captured batch are
// empty rows: indptr goes on at its last value.
//
// Errors: InvalidArgument naming the argument and the row, before anything is written. Thread
// safety: pure functions. Cost: linear in rows and blocks; no allocation.

#ifndef CACHE_BLOCK_TABLE_FORMATS_H_
#define CACHE_BLOCK_TABLE_FORMATS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

// Views of the caller's memory. Element (row, column) of a padded table stands at
// entries[row * row_stride + column].
struct PaddedBlockTable {
  absl::Span<const int32_t> entries;
  int64_t row_stride = 0;
  int max_blocks = 0;
  absl::Span<const int32_t> seq_lens;  // [num_rows]
};
struct MutablePaddedBlockTable {
  absl::Span<int32_t> entries;
  int64_t row_stride = 0;
  int max_blocks = 0;
  absl::Span<int32_t> seq_lens;  // [>= num_rows]
};

struct PackedBlockTable {
  absl::Span<const int32_t> block_indptr;    // [num_rows + 1], from 0, non-decreasing
  absl::Span<const int32_t> block_indices;   // [>= block_indptr[num_rows]]
  absl::Span<const int32_t> last_block_len;  // [num_rows]
};
struct MutablePackedBlockTable {
  absl::Span<int32_t> block_indptr;    // [>= num_rows + 1]
  absl::Span<int32_t> block_indices;   // [>= blocks of all rows]
  absl::Span<int32_t> last_block_len;  // [>= num_rows]
};

// Writes the first num_rows = padded.seq_lens.size() rows of `packed`; returns how many
// block_indices they take. Entries past each row's last block are not read. Shared blocks are
// listed once a row, so there may be more indices than the cache has blocks.
// Errors: a seq_len that is negative or wider than the table; a table smaller than its rows; an
// output too small.
absl::StatusOr<int> PackBlockTable(const PaddedBlockTable& padded, int block_size,
                                   const MutablePackedBlockTable& packed);

// Writes the first num_rows = packed.last_block_len.size() rows of `padded` and their seq_lens; the
// columns past each row's last block become null blocks.
// Errors: block_indptr that does not start at 0, decreases, has another length than num_rows + 1 or
// passes block_indices; last_block_len out of its range; a row wider than the table; an output too
// small.
absl::Status UnpackBlockTable(const PackedBlockTable& packed, int block_size,
                              const MutablePaddedBlockTable& padded);

}  // namespace reprise

#endif  // CACHE_BLOCK_TABLE_FORMATS_H_
