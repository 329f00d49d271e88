// The arguments of the CPU path, and its units of work.
//
// A tile is a range of queries of one row for a range of q heads of one KV head: at most
// kMaxTileRows rows of q, against the keys of the row. Keys are processed in blocks of
// kKeyBlockLen, which are loaded as float once for all rows of the tile. The softmax is carried
// from block to block within a segment of kSegmentLen keys, and segments are combined in order.
// Blocks and segments are counted from the row's first key, even if the query does not see that
// key. A row's result therefore depends only on the row, and not on the batch, the threads or the
// cut into items.

#ifndef REPRISE_ATTENTION_CPU_TILE_H_
#define REPRISE_ATTENTION_CPU_TILE_H_

#include <cstdint>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/cpu/vector_kernels.h"
#include "reprise/attention/token_view.h"
#include "reprise/attention/visibility.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

constexpr int kMaxTileRows = 32;   // scores of a tile and block: 16 KB, half of an L1 cache
constexpr int kKeyBlockLen = 128;  // a multiple of VectorKernels::kMaxLanes
constexpr int kSegmentLen = 4 * kKeyBlockLen;

// Destination of the results. Element (token, head) of lse has index token * lse_token_stride +
// head * lse_head_stride.
struct HostOutput {
  TokenView out;
  int64_t num_out_tokens = 0;
  float* lse = nullptr;  // null: lse is not written
  int64_t lse_token_stride = 0;
  int64_t lse_head_stride = 0;
  int64_t num_lse_tokens = 0;
  // The stored value is out / scale. If block_scales is not null, every `block` columns of a head
  // have a separate scale, element (token, head, column / block), indexed like lse with these
  // strides.
  Scale scale = {};
  float* block_scales = nullptr;
  int64_t block_token_stride = 0;
  int64_t block_head_stride = 0;
  int block = 0;
};

// The arguments of one call. Contiguous keys are passed as a cache with one long block
// (ContiguousKv() in attention/cpu/host_attention.h).
struct HostCall {
  AttentionParams layer;
  KvLayer kv;
  TokenView q;
  HostOutput output;
  const VectorKernels* kernels = &BestVectorKernels();
  NewKeys new_keys = {};

  int PaddedDim(int dim) const {
    return (dim + kernels->lanes - 1) / kernels->lanes * kernels->lanes;
  }
};

struct HostTile {
  BatchRow row;
  const int32_t* blocks = nullptr;  // the row's block table
  int64_t first_token = 0;          // token of local key 0, from the start of the table row or of k
  int query_begin = 0;
  int query_end = 0;
  int head_begin = 0;  // q heads, all of the same kv_head
  int head_end = 0;
  int kv_head = 0;

  // The first local key from the call's new keys, if the call has new keys.
  int first_new_key() const { return row.seq_len - row.query_len; }
  int num_queries() const { return query_end - query_begin; }
  int num_heads() const { return head_end - head_begin; }
  // Number of rows of q. Row i is query i / num_heads() of head i % num_heads().
  int num_rows() const { return num_queries() * num_heads(); }
};

// The softmax of a tile over part of its keys: out = sum of exp(score - largest) * v, and sum = sum
// of exp(score - largest).
struct TilePartial {
  float* out = nullptr;      // [num_rows, padded head_dim_v]
  float* largest = nullptr;  // [num_rows], -infinity if no key was visible
  float* sum = nullptr;      // [num_rows]

  static int64_t NumFloats(int num_rows, int padded_dim_v) {
    return static_cast<int64_t>(num_rows) * (padded_dim_v + 2);
  }
  static TilePartial At(float* storage, int num_rows, int padded_dim_v) {
    float* largest = storage + static_cast<int64_t>(num_rows) * padded_dim_v;
    return {.out = storage, .largest = largest, .sum = largest + num_rows};
  }
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_TILE_H_
