// Arguments of a KV read as plain values, the address lookup of its tokens, and the device
// launcher. Callers use ReadKv() and ReadKvRows() (read_kv.h).

#ifndef REPRISE_CACHE_OPS_READ_KV_ARGS_H_
#define REPRISE_CACHE_OPS_READ_KV_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/check.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/storage/kv_layer.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct ReadKvArgs {
  KvLayer kv = {};
  KvTokens k = {};
  KvTokens v = {};
  DType dtype = DType::kFloat32;  // dtype of k and v
  int64_t num_tokens = 0;         // rows of k: maximum number of tokens to write
  int num_sides = 2;              // 2: K and V; 1: only K

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

// Errors: InvalidArgument naming the field. Does not read arrays.
inline absl::Status CheckReadKv(const ReadKvArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckKvArgs(args));
  if (args.slot_mapping != nullptr) {
    REPRISE_RETURN_IF_ERROR(CheckHasNoRows("kv.k_scale", args.kv.k_scale));
    return CheckHasNoRows("kv.v_scale", args.kv.v_scale);
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tables", args.num_tables, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_blocks", args.max_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  if (args.num_tokens == 0 || args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("start_loc", args.start_loc));
  if (args.num_tables == 0 || args.max_blocks == 0) return absl::OkStatus();
  return CheckGiven("block_table", args.block_table);
}

// The address of a token in the cache. A token without a valid address is read as 0.
struct TokenAddress {
  bool is_wanted = false;  // false: the token belongs to no row and is not written
  SlotAddress place = {};
  int64_t table_row = 0;
};

// Looks up the address of `token`. REQUIRES: `places` was made from args.kv.
constexpr TokenAddress PlaceOfToken(const ReadKvArgs& args, const SlotAddresses& places,
                                    int64_t token) {
  if (args.slot_mapping != nullptr) {
    return {.is_wanted = true, .place = places.Find(args.slot_mapping[token])};
  }
  // Finds the first row that ends after the token. Empty rows may begin at the same token.
  int low = 0, high = args.num_rows;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (args.start_loc[middle + 1] <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  TokenAddress found;
  if (low == args.num_rows || args.start_loc[low] > token) return found;
  found.is_wanted = true;
  const int64_t table_row = args.table_row == nullptr ? low : args.table_row[low];
  const int64_t key_start = args.key_start == nullptr ? 0 : args.key_start[low];
  const int64_t key = key_start + token - args.start_loc[low];
  if (table_row < 0 || table_row >= args.num_tables || key < 0 || key > INT32_MAX) return found;
  const int64_t column = places.block_size().Divide(static_cast<uint32_t>(key));
  if (column >= args.max_blocks) return found;
  const int64_t block = args.block_table[table_row * args.table_stride + column];
  if (block < 0 || block >= args.kv.num_blocks) return found;
  found.place = {.block = block,
                 .offset = static_cast<int>(key - column * args.kv.block_size),
                 .is_there = true};
  found.table_row = table_row;
  return found;
}

// Enqueues the read on `stream`. All pointers are device pointers. No synchronisation and no
// allocation: may be captured. No launch if args.num_tokens is 0. Errors: as CheckReadKv();
// Unimplemented for float64; Internal if CUDA fails.
absl::Status LaunchReadKv(const ReadKvArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_READ_KV_ARGS_H_
