#include "reprise/attention/cpu/key_block.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "reprise/attention/token_view.h"
#include "reprise/base/element_access.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {
namespace {

static_assert(kKeyBlockLen % VectorKernels::kKeyGroup == 0);
static_assert(kKeyBlockLen % VectorKernels::kMaxLanes == 0);

// Looks up the addresses of the keys `locals`, which ascend: places[j] is the address of dim 0 of
// key locals[j]. Divides once per block.
void FindPlaces(const HostCall& call, const HostTile& tile, const KvView& view, DType dtype,
                absl::Span<const int> locals, const void** places) {
  const int64_t element_size = SizeOf(dtype);
  const int64_t token_bytes = view.token_stride * element_size;
  const int64_t block_size = call.kv.block_size;
  const char* head =
      static_cast<const char*>(view.data) + tile.kv_head * view.head_stride * element_size;
  const int num_keys = static_cast<int>(locals.size());
  for (int j = 0; j < num_keys;) {
    const int64_t column = (tile.first_token + locals[j]) / block_size;
    const char* block = head + tile.blocks[column] * view.block_stride * element_size;
    // This block holds the local keys in [first, end), limited to the row.
    const int64_t first = column * block_size - tile.first_token;
    const int64_t end = first + block_size;
    for (; j < num_keys && locals[j] < end; ++j) {
      places[j] = block + (locals[j] - first) * token_bytes;
    }
  }
}

// Loads a vector with non-contiguous dims, element by element.
void LoadScattered(const KvView& view, DType dtype, const void* place, int dim, float* out) {
  for (int d = 0; d < dim; ++d) out[d] = LoadElement<float>(place, dtype, view.Offset(0, 0, 0, d));
}

// The source of K or V.
struct VectorSource {
  KvView view;
  TokenView new_tokens;  // from local key tile.first_new_key(); no data: no new keys
  Scale scale;           // applies to the cache, not to the new keys
  int dim = 0;           // number of dims in the view
  int padded = 0;        // floats per vector, including padding and the rope part
  // Whether the caller modifies the loaded vectors, which therefore must be copies.
  bool is_changed = false;
};

float ValueOf(const Scale& scale, int64_t table_row, int64_t kv_head) {
  return scale.data ? scale.data[table_row * scale.row_stride + kv_head * scale.head_stride]
                    : scale.value;
}

// Loads the vectors of new keys. Divides them by the scale that later multiplies all vectors of the
// row.
void LoadNew(const HostCall& call, const HostTile& tile, const VectorSource& source,
             absl::Span<const int> locals, float* out) {
  const int padded = source.padded;
  const TokenView& tokens = source.new_tokens;
  const float factor = 1.0f / ValueOf(source.scale, tile.row.table_row, tile.kv_head);
  for (int local : locals) {
    const int64_t token = tile.row.first_token + local - tile.first_new_key();
    const void* place = static_cast<const char*>(tokens.data) +
                        tokens.Offset(token, tile.kv_head) * SizeOf(tokens.dtype);
    call.kernels->load(&place, 1, tokens.dtype, source.dim, out, padded);
    for (int d = 0; d < source.dim; ++d) out[d] *= factor;
    out += padded;
  }
}

// Sets vectors[j] to the floats of key locals[j]. They point into the cache if its vectors have the
// required form, no key is new and the caller does not modify the vectors. Otherwise they point
// into `storage`.
void LoadVectors(const HostCall& call, const HostTile& tile, const VectorSource& source,
                 absl::Span<const int> locals, const void** places, std::vector<float>& storage,
                 const float** vectors) {
  const KvView& view = source.view;
  const int dim = source.dim;
  const int num_keys = static_cast<int>(locals.size());
  const int padded = source.padded;
  const bool together = view.dim_chunk >= dim;
  int num_cached = num_keys;
  if (source.new_tokens.data) {
    num_cached = static_cast<int>(
        std::lower_bound(locals.begin(), locals.end(), tile.first_new_key()) - locals.begin());
  }
  FindPlaces(call, tile, view, call.kv.dtype, locals.first(num_cached), places);
  if (!source.is_changed && together && call.kv.dtype == DType::kFloat32 && padded == dim &&
      num_cached == num_keys) {
    for (int j = 0; j < num_keys; ++j) vectors[j] = static_cast<const float*>(places[j]);
    return;
  }
  const auto needed = static_cast<size_t>(padded) * kKeyBlockLen;
  if (storage.size() < needed) storage.resize(needed);
  if (together) call.kernels->load(places, num_cached, call.kv.dtype, dim, storage.data(), padded);
  for (int j = 0; j < num_keys; ++j) {
    float* copy = &storage[static_cast<size_t>(j) * padded];
    if (j < num_cached && !together) LoadScattered(view, call.kv.dtype, places[j], dim, copy);
    vectors[j] = copy;
  }
  if (num_cached < num_keys) {
    LoadNew(call, tile, source, locals.subspan(num_cached),
            &storage[static_cast<size_t>(num_cached) * padded]);
  }
  for (int j = 0; j < num_keys; ++j) {
    float* copy = &storage[static_cast<size_t>(j) * padded];
    std::fill(copy + dim, copy + padded, 0.0f);
  }
}

// Loads the rope parts of the keys after the dims that LoadVectors() has loaded. Rescales them so
// that k_scale applies to both parts.
void LoadRope(const HostCall& call, const HostTile& tile, absl::Span<const int> locals,
              const void** places, std::vector<float>& storage) {
  const KvLayer& kv = call.kv;
  const int num_keys = static_cast<int>(locals.size());
  const int64_t padded = call.PaddedDim(kv.head_dim_qk);
  FindPlaces(call, tile, kv.rope, kv.rope_dtype, locals, places);
  float* const first = storage.data() + kv.key_dim();
  call.kernels->load(places, num_keys, kv.rope_dtype, kv.rope_dim, first, padded);
  const float ratio = ValueOf(kv.rope_scale, tile.row.table_row, tile.kv_head) /
                      ValueOf(kv.k_scale, tile.row.table_row, tile.kv_head);
  if (ratio == 1.0f) return;
  for (int j = 0; j < num_keys; ++j) {
    for (int d = 0; d < kv.rope_dim; ++d) first[j * padded + d] *= ratio;
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
  // All heads of a query see the same keys.
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
      distances_[query * kKeyBlockLen + j] = static_cast<float>(std::abs(positions_[j] - position));
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
      // In a tree, the same key may have different positions for different queries. With rotary
      // embedding, a tile therefore has only one query.
      positions_[num_keys_] = *position;
      const int64_t query_position = QueryPosition(tile.row, tile.query_begin + query);
      distances_[query * kKeyBlockLen + num_keys_] =
          static_cast<float>(std::abs(*position - query_position));
    }
    locals_[num_keys_] = key;
    num_keys_ += any;
  }
}

void KeyBlock::Load(const HostCall& call, const HostTile& tile, const HostRotary& rotary) {
  const absl::Span<const int> locals = absl::MakeConstSpan(locals_.data(), num_keys_);
  const bool rotated = call.layer.rotary.has_value();
  const int padded = call.PaddedDim(call.layer.head_dim_qk);
  const VectorSource k = {.view = call.kv.k,
                          .new_tokens = call.new_keys.k,
                          .scale = call.kv.k_scale,
                          .dim = call.layer.head_dim_qk - call.kv.rope_dim,
                          .padded = padded,
                          .is_changed = rotated || call.kv.rope_dim > 0};
  const VectorSource v = {.view = call.kv.v,
                          .new_tokens = call.new_keys.v,
                          .scale = call.kv.v_scale,
                          .dim = call.layer.head_dim_v,
                          .padded = call.PaddedDim(call.layer.head_dim_v)};
  LoadVectors(call, tile, k, locals, places_.data(), k_storage_, keys_.data());
  if (call.kv.rope_dim > 0 && num_keys_ > 0) {
    LoadRope(call, tile, locals, places_.data(), k_storage_);
  }
  if (rotated) {
    for (int j = 0; j < num_keys_; ++j) rotary.Apply(positions_[j], &k_storage_[j * padded]);
  }
  LoadVectors(call, tile, v, locals, places_.data(), v_storage_, values_.data());
  for (int j = num_keys_; j % VectorKernels::kKeyGroup != 0; ++j) keys_[j] = keys_[num_keys_ - 1];
}

}  // namespace reprise
