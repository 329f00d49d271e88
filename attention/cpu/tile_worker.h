// Computes the attention of one tile at a time, on one thread.
//
//   TileWorker& worker = TileWorker::OfThisThread();
//   worker.Attend(call, tile);                          // the whole tile, including the output
//
// Several workers may also share a tile:
//
//   worker.AttendSegment(call, tile, segment, partial);  // any worker, any order
//   worker.Finish(call, tile, partials, num_segments);   // after all segments
//
// Both ways give bitwise identical results. Thread safety: not thread-safe; one worker per thread.
// Allocates only if a call needs more memory than all earlier calls on the thread.

#ifndef REPRISE_ATTENTION_CPU_TILE_WORKER_H_
#define REPRISE_ATTENTION_CPU_TILE_WORKER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "reprise/attention/cpu/key_block.h"
#include "reprise/attention/cpu/rotary.h"
#include "reprise/attention/cpu/tile.h"

namespace reprise {

// The segments with keys that the tile may see, counted from the row's first key.
struct SegmentRange {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
};
SegmentRange SegmentsOf(const HostCall& call, const HostTile& tile);

class TileWorker {
 public:
  static TileWorker& OfThisThread();

  void Attend(const HostCall& call, const HostTile& tile);

  // Computes the softmax over one segment into `partial`.
  void AttendSegment(const HostCall& call, const HostTile& tile, int segment,
                     const TilePartial& partial);

  // Combines num_segments partials in order, and writes out and lse. `storage` holds the partials
  // one after another.
  void Finish(const HostCall& call, const HostTile& tile, float* storage, int num_segments);

 private:
  void LoadQueries(const HostCall& call, const HostTile& tile);
  void AttendLoaded(const HostCall& call, const HostTile& tile, int segment,
                    const TilePartial& partial);
  void AttendBlock(const HostCall& call, const HostTile& tile, const TilePartial& partial);
  void TransformScores(const HostCall& call, const HostTile& tile, int num_keys);

  std::vector<float> q_;      // [num_rows, padded head_dim_qk]
  std::vector<float> total_;  // partial of the whole tile
  std::vector<float> segment_;
  std::array<float, kMaxTileRows* kKeyBlockLen> scores_ = {};
  std::array<KeyRange, kMaxTileRows> intervals_;  // one per query
  std::array<float, kMaxTileRows> rescale_;
  KeyBlock keys_;
  HostRotary rotary_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_TILE_WORKER_H_
