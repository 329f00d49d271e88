#include "attention/cpu/key_block.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "attention/element_access.h"
#include "cache/kv_layer.h"

namespace reprise {
namespace {

static_assert(kKeyBlockLen % VectorKernels::kKeyGroup == 0);
static_assert(kKeyBlockLen % VectorKernels::kMaxLanes == 0);

// Calls use(j, block, token in block) for the keys `locals`, which ascend.
template <typename Use>
void ForEachPlace(const HostCall& call, const HostTile& tile, absl::Span<const int> locals,
                  const Use& use) {
  const int64_t block_size = call.kv.block_size;
  int64_t block = 0;
  int64_t block_begin = 0;
  int64_t block_end = 0;  // tokens of `block`, counted through the table
  for (size_t j = 0; j < locals.size(); ++j) {
    const int64_t token = tile.first_token + locals[j];
    if (token >= block_end) {
      const int64_t column = token / block_size;
      block = tile.blocks[column];
      block_begin = column * block_size;
      block_end = block_begin + block_size;
    }
    use(j, block, token - block_begin);
  }
}

// Element by element, for layouts whose dims are not together.
void LoadScattered(const KvView& view, DType dtype, int64_t block, int64_t token, int64_t head,
                   int dim, float* out) {
  for (int d = 0; d < dim; ++d) {
    out[d] = LoadElement<float>(view.data, dtype, view.Offset(block, token, head, d));
  }
}

// Points vectors[j] to the floats of key j: in the cache if they lie there as they are needed, else
// in `storage`.
void LoadVectors(const HostCall& call, const HostTile& tile, const KvView& view, int dim,
                 absl::Span<const int> locals, bool in_place, const void** sources,
                 std::vector<float>& storage, const float** vectors) {
  const int padded = call.PaddedDim(dim);
  const auto needed = static_cast<size_t>(padded) * kKeyBlockLen;
  if (storage.size() < needed) storage.resize(needed);
  const auto* base = static_cast<const char*>(view.data);
  const bool together = view.dim_chunk >= dim;
  const int64_t element_size = SizeOf(call.kv.dtype);
  ForEachPlace(call, tile, locals, [&](size_t j, int64_t block, int64_t token) {
    float* copy = &storage[j * padded];
    if (together) {
      sources[j] = base + view.Offset(block, token, tile.kv_head, 0) * element_size;
    } else {
      LoadScattered(view, call.kv.dtype, block, token, tile.kv_head, dim, copy);
    }
    vectors[j] = copy;
  });
  const int num_keys = static_cast<int>(locals.size());
  if (together && in_place && call.kv.dtype == DType::kFloat32 && padded == dim) {
    for (int j = 0; j < num_keys; ++j) vectors[j] = static_cast<const float*>(sources[j]);
  } else if (together) {
    call.kernels->load(sources, num_keys, call.kv.dtype, dim, storage.data(), padded);
  }
  if (padded == dim) return;
  for (int j = 0; j < num_keys; ++j) {
    std::fill(&storage[j * padded + dim], &storage[j * padded] + padded, 0.0f);
  }
}

}  // namespace

void KeyBlock::Select(const HostCall& call, const HostTile& tile,
                      absl::Span<const KeyRange> intervals, KeyRange range) {
  if (IsInterval(call.layer, tile.row)) {
    SelectInterval(tile, intervals, range);
    NotePositions(call, tile);
  } else {
    SelectAny(call, tile, range);
  }
}

void KeyBlock::SelectInterval(const HostTile& tile, absl::Span<const KeyRange> intervals,
                              KeyRange range) {
  all_seen_ = std::all_of(intervals.begin(), intervals.end(), [&](const KeyRange& interval) {
    return interval.begin <= range.begin && range.end <= interval.end;
  });
  num_keys_ = 0;
  if (all_seen_) {
    for (int key = range.begin; key < range.end; ++key) locals_[num_keys_++] = key;
    return;
  }
  for (int key = range.begin; key < range.end; ++key) {
    bool any = false;
    for (int query = 0; query < tile.num_queries(); ++query) {
      const bool sees = intervals[query].begin <= key && key < intervals[query].end;
      seen_[query * tile.num_heads() * kKeyBlockLen + num_keys_] = sees;
      any = any || sees;
    }
    locals_[num_keys_] = key;
    num_keys_ += any;
  }
  // The heads of a query see alike.
  for (int row = 0; row < tile.num_rows(); ++row) {
    const int first = row - row % tile.num_heads();
    if (row == first) continue;
    std::memcpy(&seen_[row * kKeyBlockLen], &seen_[first * kKeyBlockLen], num_keys_);
  }
}

void KeyBlock::NotePositions(const HostCall& call, const HostTile& tile) {
  if (!call.layer.alibi_slopes && !call.layer.rotary) return;
  for (int j = 0; j < num_keys_; ++j) positions_[j] = OrdinaryKeyPosition(tile.row, locals_[j]);
  if (!call.layer.alibi_slopes) return;
  for (int query = 0; query < tile.num_queries(); ++query) {
    const int64_t position = QueryPosition(tile.row, tile.query_begin + query);
    for (int j = 0; j < num_keys_; ++j) {
      distances_[query * kKeyBlockLen + j] = static_cast<float>(positions_[j] - position);
    }
  }
}

void KeyBlock::SelectAny(const HostCall& call, const HostTile& tile, KeyRange range) {
  all_seen_ = false;
  num_keys_ = 0;
  for (int key = range.begin; key < range.end; ++key) {
    bool any = false;
    for (int row = 0; row < tile.num_rows(); ++row) {
      const int query = row / tile.num_heads();
      const int head = tile.head_begin + row % tile.num_heads();
      const std::optional<int64_t> position =
          KeyPosition(call.layer, tile.row, tile.query_begin + query, head, key);
      seen_[row * kKeyBlockLen + num_keys_] = position.has_value();
      if (!position) continue;
      any = true;
      // Queries may see a key of the tail at different positions; with rotary a tile holds only
      // one.
      positions_[num_keys_] = *position;
      distances_[query * kKeyBlockLen + num_keys_] =
          static_cast<float>(*position - QueryPosition(tile.row, tile.query_begin + query));
    }
    locals_[num_keys_] = key;
    num_keys_ += any;
  }
}

void KeyBlock::Load(const HostCall& call, const HostTile& tile, const HostRotary& rotary) {
  const absl::Span<const int> locals = absl::MakeConstSpan(locals_.data(), num_keys_);
  const bool rotated = call.layer.rotary.has_value();
  LoadVectors(call, tile, call.kv.k, call.layer.head_dim_qk, locals, /*in_place=*/!rotated,
              sources_.data(), k_storage_, keys_.data());
  if (rotated) {
    const int padded = call.PaddedDim(call.layer.head_dim_qk);
    for (int j = 0; j < num_keys_; ++j) rotary.Apply(positions_[j], &k_storage_[j * padded]);
  }
  LoadVectors(call, tile, call.kv.v, call.layer.head_dim_v, locals, /*in_place=*/true,
              sources_.data(), v_storage_, values_.data());
  for (int j = num_keys_; j % VectorKernels::kKeyGroup != 0; ++j) keys_[j] = keys_[num_keys_ - 1];
}

}  // namespace reprise
