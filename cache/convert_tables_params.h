// Arrays that the conversions of cache/convert_tables.h read and write, in plain values.

#ifndef CACHE_CONVERT_TABLES_PARAMS_H_
#define CACHE_CONVERT_TABLES_PARAMS_H_

#include <cstdint>

namespace reprise {

// Padded to packed. The rows of a batch may be any rows of a table, as PagedBatch has them.
struct PackTableParams {
  const int32_t* block_table = nullptr;  // [num_tables, max_blocks]
  int64_t row_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  const int32_t* table_row = nullptr;  // [num_rows]; null: row r of the table
  const int32_t* seq_lens = nullptr;   // [num_rows]
  int num_rows = 0;
  int block_size = 0;

  int32_t* block_indptr = nullptr;    // [num_rows + 1]
  int32_t* block_indices = nullptr;   // [max_indices]
  int32_t* last_block_len = nullptr;  // [num_rows]
  int max_indices = 0;
};

// Packed to padded.
struct UnpackTableParams {
  const int32_t* block_indptr = nullptr;    // [num_rows + 1]
  const int32_t* block_indices = nullptr;   // [max_indices]
  const int32_t* last_block_len = nullptr;  // [num_rows]
  int max_indices = 0;
  int num_rows = 0;
  int block_size = 0;

  int32_t* block_table = nullptr;  // [num_rows, max_blocks]
  int64_t row_stride = 0;
  int max_blocks = 0;
  int32_t* seq_lens = nullptr;  // [num_rows]
};

// Token table to padded: row r is tokens [starts[r], starts[r] + lens[r]) of request requests[r].
struct TokensToBlocksParams {
  const int32_t* slots = nullptr;  // [num_requests, max_tokens]
  int64_t slots_stride = 0;
  int num_requests = 0;
  int max_tokens = 0;
  const int32_t* requests = nullptr;  // [num_rows]; null: request r
  const int32_t* lens = nullptr;      // [num_rows]
  const int32_t* starts = nullptr;    // [num_rows]; null: 0
  int num_rows = 0;
  int block_size = 0;

  int32_t* block_table = nullptr;  // [num_rows, max_blocks]
  int64_t row_stride = 0;
  int max_blocks = 0;
  int32_t* seq_lens = nullptr;  // [num_rows], or null
};

// Padded to token table.
struct BlocksToTokensParams {
  const int32_t* block_table = nullptr;  // [num_rows, max_blocks]
  int64_t row_stride = 0;
  int max_blocks = 0;
  const int32_t* seq_lens = nullptr;  // [num_rows]
  int num_rows = 0;
  int block_size = 0;

  int32_t* slots = nullptr;  // [num_rows, max_tokens]
  int64_t slots_stride = 0;
  int max_tokens = 0;
};

}  // namespace reprise

#endif  // CACHE_CONVERT_TABLES_PARAMS_H_
