// What a KV read is, in plain values, and where each token of it stands: the same for the CPU and
// for CUDA.

#ifndef CACHE_READ_KV_PARAMS_H_
#define CACHE_READ_KV_PARAMS_H_

#include <cstdint>

#include "base/dtype.h"
#include "cache/kv_layer.h"

namespace reprise {

// Element (token, head, dim) goes to data[token * token_stride + head * head_stride +
// dim * dim_stride], strides in elements.
struct KvDestination {
  void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;
};

struct ReadKvParams {
  KvLayer kv = {};
  KvDestination k = {};
  KvDestination v = {};
  DType dtype = DType::kFloat32;  // of k and v
  int64_t num_tokens = 0;         // rows of k: as many tokens as may be written
  int num_sides = 2;              // K and V; 1: K alone

  // By slot:
  const int64_t* slot_mapping = nullptr;  // [num_tokens]; null: by rows

  // By rows:
  const int32_t* block_table = nullptr;
  int64_t table_stride = 0;
  int num_tables = 0;
  int max_blocks = 0;
  const int32_t* start_loc = nullptr;  // [num_rows + 1]
  const int32_t* table_row = nullptr;  // [num_rows] or null
  const int32_t* key_start = nullptr;  // [num_rows] or null
  int num_rows = 0;
};

// Where a token stands: nowhere if block is -1, and then 0 is read.
struct TokenPlace {
  bool is_wanted = false;  // false: the token belongs to no row, nothing is written for it
  int64_t block = -1;
  int64_t offset = 0;
  int64_t table_row = 0;
};

constexpr TokenPlace PlaceOfToken(const ReadKvParams& params, int64_t token) {
  const KvLayer& kv = params.kv;
  TokenPlace place;
  if (params.slot_mapping != nullptr) {
    const int64_t slot = params.slot_mapping[token];
    place.is_wanted = true;
    if (slot < 0 || slot >= static_cast<int64_t>(kv.num_blocks) * kv.block_size) return place;
    // In 32 bits where they do, which is several times cheaper on a GPU.
    place.block = slot <= INT32_MAX
                      ? static_cast<uint32_t>(slot) / static_cast<uint32_t>(kv.block_size)
                      : slot / kv.block_size;
    place.offset = slot - place.block * kv.block_size;
    return place;
  }
  // The last row that begins at or before the token: empty rows before it begin there too.
  int low = 0, high = params.num_rows;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (params.start_loc[middle + 1] <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low == params.num_rows || params.start_loc[low] > token) return place;
  place.is_wanted = true;
  const int64_t table_row = params.table_row == nullptr ? low : params.table_row[low];
  const int64_t key_start = params.key_start == nullptr ? 0 : params.key_start[low];
  const int64_t key = key_start + token - params.start_loc[low];
  if (table_row < 0 || table_row >= params.num_tables || key < 0 || key > INT32_MAX) return place;
  const int64_t column = static_cast<uint32_t>(key) / static_cast<uint32_t>(kv.block_size);
  if (column >= params.max_blocks) return place;
  const int64_t block = params.block_table[table_row * params.table_stride + column];
  if (block < 0 || block >= kv.num_blocks) return place;
  place.block = block;
  place.offset = key - column * kv.block_size;
  place.table_row = table_row;
  return place;
}

}  // namespace reprise

#endif  // CACHE_READ_KV_PARAMS_H_
