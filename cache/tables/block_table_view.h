// Views of block tables in the caller's memory, padded and packed: the arguments of kernels,
// builders and conversions.
//
//   constexpr BlockTableView table = {.entries = rows, .row_stride = 8, .num_tables = 4,
//                                     .max_blocks = 8, .block_size = 16, .num_blocks = 1024};
//   int64_t slot = TableSlot(table, /*row=*/2, /*position=*/37);   // -1: must not be written
//
// The same three sequences of 6, 0 and 8 tokens at block_size 4:
//
//   padded   entries {{7, 2, -}, {-, -, -}, {5, 9, -}}   with seq_lens {6, 0, 8}
//   packed   block_indptr {0, 2, 2, 4}   block_indices {7, 2, 5, 9}   last_block_len {2, 0, 4}
//
// A token table (SGLang's req_to_token) has the cache slot of each token. It is a padded table with
// block_size 1 whose entries are slots: slot = block * block_size + offset.
//
// cache/tables/convert_tables.h converts between the formats.
//
// Views do not own memory; the memory may be on the host or the device. All functions are
// constexpr, so that nvcc also compiles them for the device.

#ifndef REPRISE_CACHE_TABLES_BLOCK_TABLE_VIEW_H_
#define REPRISE_CACHE_TABLES_BLOCK_TABLE_VIEW_H_

#include <cstdint>

#include "reprise/base/divisor.h"

namespace reprise {

// A padded table.
struct BlockTableView {
  // [num_tables, max_blocks]: element (row, column) is entries[row * row_stride + column].
  const int32_t* entries = nullptr;
  int64_t row_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  int block_size = 0;
  int num_blocks = INT32_MAX;  // blocks of the cache, including the null block; default: no limit
};

// A packed table (CSR), as in FlashInfer: the concatenated blocks of all rows. A shared block is
// listed once per row, so there may be more indices than blocks in the cache. Padding rows of a
// captured batch are empty: block_indptr repeats its last value.
struct PackedBlockTable {
  const int32_t* block_indptr = nullptr;  // [num_rows + 1] from 0, non-decreasing
  const int32_t* block_indices =
      nullptr;  // [max_indices], the first block_indptr[num_rows] are valid
  const int32_t* last_block_len = nullptr;  // [num_rows] 1 to block_size; 0 for an empty row
  int num_rows = 0;
  int max_indices = 0;
  int block_size = 0;
};

// Writable views of the same tables.
struct MutableBlockTableView {
  int32_t* entries = nullptr;
  int64_t row_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  int block_size = 0;

  constexpr operator BlockTableView() const {
    return {entries, row_stride, num_tables, max_blocks, block_size};
  }
};
struct MutablePackedBlockTable {
  int32_t* block_indptr = nullptr;
  int32_t* block_indices = nullptr;
  int32_t* last_block_len = nullptr;
  int num_rows = 0;
  int max_indices = 0;
  int block_size = 0;

  constexpr operator PackedBlockTable() const {
    return {block_indptr, block_indices, last_block_len, num_rows, max_indices, block_size};
  }
};

// Returns the number of blocks for `num_tokens` tokens. REQUIRES: num_tokens >= 0, block_size >= 1.
constexpr int32_t NumBlocksFor(int32_t num_tokens, int32_t block_size) {
  return CeilDiv(num_tokens, block_size);
}

// Returns the number of tokens that fit in a row and have an int32 position.
constexpr int64_t TableCapacity(const BlockTableView& table) {
  const int64_t room = static_cast<int64_t>(table.max_blocks) * table.block_size;
  return room < INT32_MAX ? room : INT32_MAX;
}

constexpr bool HasTableRow(const BlockTableView& table, int64_t row) {
  return row >= 0 && row < table.num_tables;
}

// Returns the slot of the token at `position` of a row: block * block_size + offset. Returns -1 if
// the entry is not a writable block: the null block, or a block outside the cache. REQUIRES:
// HasTableRow(table, row), 0 <= position < TableCapacity(table).
constexpr int64_t TableSlot(const BlockTableView& table, int64_t row, int64_t position) {
  const int column = static_cast<int>(position) / table.block_size;
  const int32_t block = table.entries[row * table.row_stride + column];
  if (block < 1 || block >= table.num_blocks) return -1;
  return static_cast<int64_t>(block) * table.block_size +
         static_cast<int>(position) % table.block_size;
}

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_BLOCK_TABLE_VIEW_H_
