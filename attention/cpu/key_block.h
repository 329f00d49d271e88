// The visible keys of one block for a tile's queries, as float vectors.
//
//   block.Select(call, tile, intervals, {128, 256});   // selects the keys and the mask
//   block.Load(call, tile, rotary);                     // loads their K and V
//
// The block omits keys that no query of the tile sees. K and V of such keys are not read and may
// contain NaN.
//
// Thread safety: not thread-safe; one owner. Allocates only if a call needs more memory than all
// earlier calls.

#ifndef REPRISE_ATTENTION_CPU_KEY_BLOCK_H_
#define REPRISE_ATTENTION_CPU_KEY_BLOCK_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "reprise/attention/cpu/rotary.h"
#include "reprise/attention/cpu/tile.h"
#include "reprise/attention/cpu/vector_kernels.h"
#include "reprise/attention/visibility.h"

namespace reprise {

class KeyBlock {
 public:
  // Selects the keys of `range`, at most kKeyBlockLen, that at least one query of the tile sees.
  // `intervals` holds KeyInterval() of each query of the tile.
  void Select(const HostCall& call, const HostTile& tile, absl::Span<const KeyRange> intervals,
              KeyRange range);

  int num_keys() const { return num_keys_; }

  // If true, every row of the tile sees every selected key. If not, seen(row) is the mask.
  bool all_seen() const { return all_seen_; }
  const uint8_t* seen(int tile_row) const { return &seen_[tile_row * kKeyBlockLen]; }

  // |key position - query position| of each selected key for `query`. REQUIRES: the layer has
  // ALiBi.
  const float* distances(int query) const { return &distances_[query * kKeyBlockLen]; }

  // Loads K and V. If the layer has rotary embedding, rotates K by its position.
  void Load(const HostCall& call, const HostTile& tile, const HostRotary& rotary);

  // Vectors of the padded head dims. keys() is padded to a multiple of VectorKernels::kKeyGroup
  // keys; values() is not.
  const float* const* keys() const { return keys_.data(); }
  const float* const* values() const { return values_.data(); }

 private:
  void SelectInterval(const HostTile& tile, absl::Span<const KeyRange> intervals, KeyRange range);
  void SelectAny(const HostCall& call, const HostTile& tile, KeyRange range);
  void NotePositions(const HostCall& call, const HostTile& tile);

  int num_keys_ = 0;
  bool all_seen_ = false;
  std::array<int, kKeyBlockLen> locals_;         // the selected keys
  std::array<int64_t, kKeyBlockLen> positions_;  // positions of the selected keys; set if the layer
                                                 // has rotary embedding or ALiBi
  std::array<uint8_t, kMaxTileRows * kKeyBlockLen> seen_;
  std::array<float, kMaxTileRows * kKeyBlockLen> distances_;
  std::array<const float*, kKeyBlockLen> keys_;
  std::array<const float*, kKeyBlockLen> values_;
  std::array<const void*, kKeyBlockLen> places_;
  std::vector<float> k_storage_;  // [kKeyBlockLen, padded head_dim_qk]
  std::vector<float> v_storage_;  // [kKeyBlockLen, padded head_dim_v]
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_KEY_BLOCK_H_
