// Which blocks of a sequence a table of a batch's own rows holds: the arithmetic of
// attention/batch_tables.h, for host and device.
//
//   blocks      a row of 3 queries over 21 keys, block_size 4: positions 18, 19, 20
//   kSeqLen     columns 0 .. 5, 21 keys: all that the row's queries may see
//   kComputed   columns 0 .. 4, 18 keys: those cached before the step; none in a pure prefill
//   kWindow     columns 3 .. 5, 9 keys, with window_left 5: the first query sees 13 and on
//
// Left out are whole blocks, so the distance of a query from a key is the same in all of them.

#ifndef ATTENTION_BATCH_TABLE_ROWS_H_
#define ATTENTION_BATCH_TABLE_ROWS_H_

#include <cstdint>

namespace reprise {

enum class TableBlocks : int8_t { kSeqLen, kComputed, kWindow };

struct TableSelection {
  TableBlocks blocks = TableBlocks::kSeqLen;
  int window_left = 0;  // of kWindow
};

struct TableRow {
  int32_t first_column = 0;
  int32_t num_blocks = 0;
  int32_t num_keys = 0;

  // 1 .. block_size, 0 of an empty row.
  constexpr int32_t LastBlockLen(int32_t block_size) const {
    return num_blocks == 0 ? 0 : num_keys - (num_blocks - 1) * block_size;
  }
};

// A row with a negative length, without keys, or with more queries than keys is an empty row.
// query_len counts only where not all blocks are selected. REQUIRES: block_size >= 1.
constexpr TableRow TableRowOf(int32_t seq_len, int32_t query_len, int32_t block_size,
                              const TableSelection& selection) {
  TableRow row;
  if (seq_len <= 0 || query_len < 0 || query_len > seq_len) return row;
  row.num_keys = seq_len;
  if (selection.blocks == TableBlocks::kComputed) row.num_keys = seq_len - query_len;
  if (selection.blocks == TableBlocks::kWindow) {
    const int32_t first_query = seq_len - query_len;
    const int32_t first_seen =
        first_query > selection.window_left ? first_query - selection.window_left : 0;
    row.first_column = first_seen / block_size;
    row.num_keys = seq_len - row.first_column * block_size;
  }
  row.num_blocks = row.num_keys / block_size + (row.num_keys % block_size != 0 ? 1 : 0);
  return row;
}

}  // namespace reprise

#endif  // ATTENTION_BATCH_TABLE_ROWS_H_
