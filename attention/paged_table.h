// A block table with all that is needed to turn a position into a slot and to bounds-check it, on
// the host or on the device.
//
//   constexpr PagedTable table = {.entries = rows, .row_stride = 8, .num_tables = 4,
//                                 .max_blocks = 8, .block_size = 16, .num_blocks = 1024};
//   int64_t slot = TableSlot(table, /*table_row=*/2, /*position=*/37);   // -1: not to be written
//
// The builders that run inside a graph take it: they read entries that nobody has checked. A value
// without storage; pure functions, constexpr, so that nvcc compiles them for the device.

#ifndef ATTENTION_PAGED_TABLE_H_
#define ATTENTION_PAGED_TABLE_H_

#include <cstdint>

namespace reprise {

struct PagedTable {
  // [num_tables, max_blocks]: element (row, column) at entries[row * row_stride + column].
  const int32_t* entries = nullptr;
  int64_t row_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  int block_size = 0;
  int num_blocks = 0;  // of the cache, the null block included
};

// Tokens that a row has room for, and that an int32 position can count.
constexpr int64_t TableCapacity(const PagedTable& table) {
  const int64_t room = static_cast<int64_t>(table.max_blocks) * table.block_size;
  return room < INT32_MAX ? room : INT32_MAX;
}

constexpr bool HasTableRow(const PagedTable& table, int64_t row) {
  return row >= 0 && row < table.num_tables;
}

// Slot of the token at `position` of a row: block * block_size + offset. -1 if its entry is no
// block that may be written: the null block, or one outside the cache.
// REQUIRES: HasTableRow(table, row), 0 <= position < TableCapacity(table).
constexpr int64_t TableSlot(const PagedTable& table, int64_t row, int64_t position) {
  const int column = static_cast<int>(position) / table.block_size;
  const int32_t block = table.entries[row * table.row_stride + column];
  if (block < 1 || block >= table.num_blocks) return -1;
  return static_cast<int64_t>(block) * table.block_size +
         static_cast<int>(position) % table.block_size;
}

}  // namespace reprise

#endif  // ATTENTION_PAGED_TABLE_H_
