#include "attention/move_kv.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "attention/builder_sizes.h"
#include "base/dtype.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

bool SameStrides(const KvView& a, const KvView& b) {
  return a.block_stride == b.block_stride && a.token_stride == b.token_stride &&
         a.head_stride == b.head_stride && a.dim_chunk == b.dim_chunk &&
         a.dim_chunk_stride == b.dim_chunk_stride;
}

bool SameShape(const KvLayer& a, const KvLayer& b) {
  return SameStrides(a.k, b.k) && SameStrides(a.v, b.v) && a.dtype == b.dtype &&
         a.num_blocks == b.num_blocks && a.block_size == b.block_size &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim_qk == b.head_dim_qk &&
         a.head_dim_v == b.head_dim_v;
}

void MovePartOfLayer(const MoveKvParams& params, const MovePart& part, void* data, int64_t from,
                     int64_t to) {
  auto* bytes = static_cast<char*>(data);
  for (int head = 0; head < params.num_heads; ++head) {
    for (int dim = 0; dim < part.head_dim; ++dim) {
      std::memcpy(
          bytes + MoveOffset(part, params.block_size, to, head, dim) * params.element_bytes,
          bytes + MoveOffset(part, params.block_size, from, head, dim) * params.element_bytes,
          params.element_bytes);
    }
  }
}

}  // namespace

absl::StatusOr<MoveKvParams> MakeMoveKvParams(absl::Span<const KvLayer> layers) {
  REPRISE_RETURN_IF_ERROR(
      CheckSize("num_layers", static_cast<int64_t>(layers.size()), 1, kMaxMoveLayers));
  const KvLayer& first = layers[0];
  MoveKvParams params;
  params.k = {.view = first.k, .head_dim = first.head_dim_qk};
  params.v = {.view = first.v, .head_dim = first.head_dim_v};
  params.k.view.data = nullptr;
  params.v.view.data = nullptr;
  params.v_within_k = first.k.data == first.v.data;
  params.element_bytes = SizeOf(first.dtype);
  params.num_heads = first.num_kv_heads;
  params.block_size = first.block_size;
  params.num_blocks = first.num_blocks;
  params.num_layers = static_cast<int>(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!SameShape(layers[i], first) ||
        (layers[i].k.data == layers[i].v.data) != params.v_within_k) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers[", i,
                       "]: expected the dtype, sizes and strides of layers[0], got others: block "
                       "size ",
                       layers[i].block_size, ", heads ", layers[i].num_kv_heads, ", head dims ",
                       layers[i].head_dim_qk, " and ", layers[i].head_dim_v));
    }
    params.k_data[i] = layers[i].k.data;
    params.v_data[i] = layers[i].v.data;
  }
  return params;
}

void MoveKvOnHost(const MoveKvParams& params) {
  for (int row = 0; row < params.num_rows; ++row) {
    for (int move = 0; move < params.max_moves; ++move) {
      const int64_t from = params.move_from[row * params.row_stride + move];
      const int64_t to = params.move_to[row * params.row_stride + move];
      if (!IsMove(params, from, to)) continue;
      for (int layer = 0; layer < params.num_layers; ++layer) {
        MovePartOfLayer(params, params.k, params.k_data[layer], from, to);
        if (!params.v_within_k) {
          MovePartOfLayer(params, params.v, params.v_data[layer], from, to);
        }
      }
    }
  }
}

}  // namespace reprise
