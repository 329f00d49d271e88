#include "reprise/attention/speculation/move_kv.h"

#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

bool IsLatent(const KvLayer& layer) { return layer.k.data == layer.v.data; }

bool SameStrides(const KvView& a, const KvView& b) {
  return a.block_stride == b.block_stride && a.token_stride == b.token_stride &&
         a.head_stride == b.head_stride && a.dim_chunk == b.dim_chunk &&
         a.dim_chunk_stride == b.dim_chunk_stride;
}

bool SameShape(const KvLayer& a, const KvLayer& b) {
  return SameStrides(a.k, b.k) && SameStrides(a.v, b.v) && a.dtype == b.dtype &&
         a.num_blocks == b.num_blocks && a.block_size == b.block_size &&
         a.num_kv_heads == b.num_kv_heads && a.head_dim_qk == b.head_dim_qk &&
         a.head_dim_v == b.head_dim_v && a.rope_dim == b.rope_dim &&
         (a.rope_dim == 0 || (SameStrides(a.rope, b.rope) && a.rope_dtype == b.rope_dtype));
}

void MovePartOfLayer(const MoveKvArgs& args, const MovePart& part, void* data, int64_t from,
                     int64_t to) {
  auto* bytes = static_cast<char*>(data);
  for (int head = 0; head < args.num_heads; ++head) {
    for (int dim = 0; dim < part.head_dim; ++dim) {
      std::memcpy(bytes + MoveOffset(part, args.block_size, to, head, dim) * args.element_bytes,
                  bytes + MoveOffset(part, args.block_size, from, head, dim) * args.element_bytes,
                  args.element_bytes);
    }
  }
}

absl::Status CheckPart(std::string_view head_dim, std::string_view dim_chunk,
                       const MovePart& part) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(head_dim, part.head_dim, 1));
  return CheckAtLeast(dim_chunk, part.view.dim_chunk, 1);
}

}  // namespace

absl::StatusOr<MoveKvArgs> MakeMoveKvArgs(absl::Span<const KvLayer> layers) {
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("num_layers", static_cast<int64_t>(layers.size()), 1, kMaxMoveLayers));
  const KvLayer& first = layers[0];
  MoveKvArgs args;
  args.k = {.view = first.k, .head_dim = first.head_dim_qk};
  args.v = {.view = first.v, .head_dim = first.head_dim_v};
  args.k.view.data = nullptr;
  args.v.view.data = nullptr;
  args.v_within_k = IsLatent(first);
  args.element_bytes = SizeOf(first.dtype);
  if (first.rope_dim > 0) {
    // V is part of the latent, so the rope part takes the arguments of V.
    if (SizeOf(first.rope_dtype) != args.element_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers[0].rope_dtype: expected elements of ", args.element_bytes,
                       " bytes, as for dtype, got ", SizeOf(first.rope_dtype),
                       " bytes: move the two parts separately"));
    }
    args.k.head_dim = first.key_dim();
    args.v = {.view = first.rope, .head_dim = first.rope_dim};
    args.v.view.data = nullptr;
    args.v_within_k = false;
  }
  args.num_heads = first.num_kv_heads;
  args.block_size = first.block_size;
  args.num_blocks = first.num_blocks;
  args.num_layers = static_cast<int>(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!SameShape(layers[i], first) || IsLatent(layers[i]) != IsLatent(first)) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers[", i,
                       "]: expected the dtype, sizes and strides of layers[0], got a different "
                       "layout: block size ",
                       layers[i].block_size, ", heads ", layers[i].num_kv_heads, ", head dims ",
                       layers[i].head_dim_qk, " and ", layers[i].head_dim_v));
    }
    args.k_data[i] = layers[i].k.data;
    args.v_data[i] = first.rope_dim > 0 ? layers[i].rope.data : layers[i].v.data;
  }
  return args;
}

absl::Status CheckMoveKv(const MoveKvArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_layers", args.num_layers, 1, kMaxMoveLayers));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_heads", args.num_heads, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", args.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_blocks", args.num_blocks, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_moves", args.max_moves, 0));
  const int bytes = args.element_bytes;
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("element_bytes: expected 1, 2, 4 or 8, got ", bytes));
  }
  REPRISE_RETURN_IF_ERROR(CheckPart("k.head_dim", "k.view.dim_chunk", args.k));
  if (!args.v_within_k) {
    REPRISE_RETURN_IF_ERROR(CheckPart("v.head_dim", "v.view.dim_chunk", args.v));
  }
  if (args.num_rows == 0 || args.max_moves == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven({{"move_from", args.move_from}, {"move_to", args.move_to}}));
  REPRISE_RETURN_IF_ERROR(
      CheckRowStride("row_stride", args.row_stride, args.max_moves, args.num_rows));
  for (int layer = 0; layer < args.num_layers; ++layer) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("k_data", args.k_data[layer]));
    if (!args.v_within_k) REPRISE_RETURN_IF_ERROR(CheckGiven("v_data", args.v_data[layer]));
  }
  return absl::OkStatus();
}

void MoveKvOnHost(const MoveKvArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    for (int move = 0; move < args.max_moves; ++move) {
      const int64_t from = args.move_from[row * args.row_stride + move];
      const int64_t to = args.move_to[row * args.row_stride + move];
      if (!IsMove(args, from, to)) continue;
      for (int layer = 0; layer < args.num_layers; ++layer) {
        MovePartOfLayer(args, args.k, args.k_data[layer], from, to);
        if (!args.v_within_k) {
          MovePartOfLayer(args, args.v, args.v_data[layer], from, to);
        }
      }
    }
  }
}

absl::Status MoveKv(const MoveKvArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckMoveKv(args));
  MoveKvOnHost(args);
  return absl::OkStatus();
}

}  // namespace reprise
