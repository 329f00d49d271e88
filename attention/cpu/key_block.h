// The keys of one block that a tile's queries see, as float vectors.
//
//   block.Select(call, tile, intervals, {128, 256});   // which keys, and which queries see them
//   block.Load(call, tile, rotary);                     // their K and V
//
// A key that no query of the tile sees is not in the block, so K and V of unseen keys are never
// read and may hold NaN.
//
// Thread safety: none; one owner. Memory is allocated only when a call needs more than any before.

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
  // Collects the keys of `range`, at most kKeyBlockLen, that some query of the tile sees.
  // `intervals`: KeyInterval() of each query of the tile.
  void Select(const HostCall& call, const HostTile& tile, absl::Span<const KeyRange> intervals,
              KeyRange range);

  int num_keys() const { return num_keys_; }

  // Whether every row of the tile sees every selected key; else seen(row) has the mask.
  bool all_seen() const { return all_seen_; }
  const uint8_t* seen(int tile_row) const { return &seen_[tile_row * kKeyBlockLen]; }

  // |p - P| of each key for each query of the tile. REQUIRES: the layer has ALiBi.
  const float* distances(int query) const { return &distances_[query * kKeyBlockLen]; }

  // Loads K, turned to its position if the layer has rotary, and V.
  void Load(const HostCall& call, const HostTile& tile, const HostRotary& rotary);

  // Vectors of the padded head dims; keys are filled up to whole groups of
  // VectorKernels::kKeyGroup.
  const float* const* keys() const { return keys_.data(); }
  const float* const* values() const { return values_.data(); }

 private:
  void SelectInterval(const HostTile& tile, absl::Span<const KeyRange> intervals, KeyRange range);
  void SelectAny(const HostCall& call, const HostTile& tile, KeyRange range);
  void NotePositions(const HostCall& call, const HostTile& tile);

  int num_keys_ = 0;
  bool all_seen_ = false;
  std::array<int, kKeyBlockLen> locals_;         // the selected keys
  std::array<int64_t, kKeyBlockLen> positions_;  // their positions, if the layer has rotary
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
