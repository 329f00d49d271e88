// In what numbers the builder of a work map adds up costs and counts: 32 bits where that is enough
// for whatever the batch's arrays hold, for then its scans take half as long.

#ifndef ATTENTION_WORK_MAP_SUMS_H_
#define ATTENTION_WORK_MAP_SUMS_H_

#include <algorithm>
#include <bit>
#include <cstdint>

#include "attention/work_map.h"

namespace reprise {

// Items, partials and merges share a number: merges stand lowest.
struct WorkMapSums {
  int partial_shift = 19;
  int item_shift = 42;
};

struct WorkMapSumsOf {
  WorkMapSums sums;
  bool is_narrow = false;  // int32_t will do
};

// By the map's shape.
inline WorkMapSumsOf SumsOf(const TileMap& map) {
  const int64_t tiles = map.max_tiles;
  const int64_t steps = map.max_seq_len / kWorkStepKeys + 1;
  const bool is_balanced = map.mode == WorkMapMode::kBalanced;
  // Pieces beyond one a range.
  const int64_t cuts = is_balanced ? map.num_columns : tiles * (kMaxDeterministicSplits - 1);
  const int64_t most_cost =
      tiles * (steps * kStepCost + map.tile_cost) + (cuts + map.num_columns) * map.tile_cost;
  // Where prefixes are shared, every range leaves partials.
  const int64_t merges = is_balanced && map.max_shared_tiles == 0 ? cuts : tiles;
  const int64_t partials = (cuts + merges) * map.tile_queries;
  const auto bits = [](int64_t most) { return std::bit_width(static_cast<uint64_t>(most)); };
  const int partial_shift = bits(merges);
  const int item_shift = partial_shift + bits(partials);
  if (most_cost >= int64_t{1} << 30 || item_shift + bits(tiles + cuts) > 31) return {};
  return {.sums = {.partial_shift = partial_shift, .item_shift = item_shift}, .is_narrow = true};
}

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_SUMS_H_
