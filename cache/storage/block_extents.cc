#include "reprise/cache/storage/block_extents.h"

#include <algorithm>
#include <functional>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

// A contiguous part of each block, and its index in layer order.
struct Piece {
  BlockExtent extent;
  int64_t index = 0;
};

struct Dimension {
  int64_t size = 1;
  int64_t stride = 0;  // elements
};

// Appends the pieces of one side of a layer. Adjacent contiguous dimensions are joined into one
// piece.
absl::Status AddPieces(const KvLayer& layer, const KvView& view, int head_dim,
                       std::vector<Piece>& pieces) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("layer.block_size", layer.block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("layer.num_kv_heads", layer.num_kv_heads, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("layer.head_dim", head_dim, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("layer.dim_chunk", view.dim_chunk, 1));
  const int64_t chunk = std::min(view.dim_chunk, head_dim);
  if (head_dim % chunk != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "head_dim must divide into chunks: expected a multiple of ", chunk, ", got ", head_dim));
  }
  std::vector<Dimension> dims;  // dimensions with more than one element, innermost first
  for (const Dimension& dim :
       {Dimension{chunk, 1}, Dimension{head_dim / chunk, view.dim_chunk_stride},
        Dimension{layer.block_size, view.token_stride},
        Dimension{layer.num_kv_heads, view.head_stride}}) {
    if (dim.size > 1) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end(),
            [](const Dimension& a, const Dimension& b) { return a.stride < b.stride; });
  int64_t run = 1;
  size_t num_joined = 0;
  for (; num_joined < dims.size() && dims[num_joined].stride == run; ++num_joined) {
    run *= dims[num_joined].size;
  }

  // Iterates over the dimensions that are not joined, outermost first.
  const int64_t element = SizeOf(layer.dtype);
  const std::function<void(size_t, int64_t)> walk = [&](size_t num_left, int64_t offset) {
    if (num_left == num_joined) {
      pieces.push_back({.extent = {.data = static_cast<std::byte*>(view.data) + offset * element,
                                   .block_stride = view.block_stride * element,
                                   .bytes = run * element},
                        .index = static_cast<int64_t>(pieces.size())});
      return;
    }
    const Dimension& outermost = dims[num_left - 1];
    for (int64_t i = 0; i < outermost.size; ++i) walk(num_left - 1, offset + i * outermost.stride);
  };
  walk(dims.size(), 0);
  return absl::OkStatus();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const BlockExtent& extent) {
  return out << "{" << static_cast<const void*>(extent.data) << " by " << extent.block_stride
             << ": " << extent.bytes << " bytes}";
}

absl::StatusOr<std::vector<BlockExtent>> BlockExtentsOf(absl::Span<const KvLayer> layers,
                                                        KvSides sides) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("layers", static_cast<int64_t>(layers.size()), 1));
  std::vector<Piece> pieces;
  for (const KvLayer& layer : layers) {
    if (layer.num_blocks != layers[0].num_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("layers must have the same number of blocks: expected ",
                       layers[0].num_blocks, ", got ", layer.num_blocks));
    }
    if (sides != KvSides::kValues) {
      REPRISE_RETURN_IF_ERROR(AddPieces(layer, layer.k, layer.key_dim(), pieces));
      if (layer.rope_dim > 0) {
        KvLayer rope = layer;
        rope.dtype = layer.rope_dtype;
        REPRISE_RETURN_IF_ERROR(AddPieces(rope, layer.rope, layer.rope_dim, pieces));
      }
    }
    if (sides != KvSides::kKeys && !IsLatent(layer)) {
      REPRISE_RETURN_IF_ERROR(AddPieces(layer, layer.v, layer.head_dim_v, pieces));
    }
  }
  // Joins pieces that touch or overlap, then restores layer order.
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.extent.block_stride, a.extent.data, a.index) <
           std::tie(b.extent.block_stride, b.extent.data, b.index);
  });
  std::vector<Piece> joined;
  for (const Piece& piece : pieces) {
    if (!joined.empty() && joined.back().extent.block_stride == piece.extent.block_stride &&
        joined.back().extent.data + joined.back().extent.bytes >= piece.extent.data) {
      BlockExtent& last = joined.back().extent;
      last.bytes =
          std::max<int64_t>(last.bytes, piece.extent.data + piece.extent.bytes - last.data);
      joined.back().index = std::min(joined.back().index, piece.index);
    } else {
      joined.push_back(piece);
    }
  }
  std::sort(joined.begin(), joined.end(),
            [](const Piece& a, const Piece& b) { return a.index < b.index; });
  std::vector<BlockExtent> extents;
  extents.reserve(joined.size());
  for (const Piece& piece : joined) extents.push_back(piece.extent);
  return extents;
}

}  // namespace reprise
