// Attention of one tile at a time, on one thread.
//
//   TileWorker& worker = TileWorker::OfThisThread();
//   worker.Attend(call, tile);                          // the whole tile, written out
//
// or in pieces for several workers:
//
//   worker.AttendSegment(call, tile, segment, partial);  // any worker, any order
//   worker.Finish(call, tile, partials, num_segments);   // once all are done
//
// Both ways give the same bits. Thread safety: none; one per thread. Memory is allocated only when
// a call needs more than any before on the thread.

#ifndef REPRISE_ATTENTION_CPU_TILE_WORKER_H_
#define REPRISE_ATTENTION_CPU_TILE_WORKER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "reprise/attention/cpu/key_block.h"
#include "reprise/attention/cpu/rotary.h"
#include "reprise/attention/cpu/tile.h"

namespace reprise {

// The segments of the keys that the tile may see, counted from the row's first key.
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

  // The softmax over segment `segment` into `partial`.
  void AttendSegment(const HostCall& call, const HostTile& tile, int segment,
                     const TilePartial& partial);

  // Merges partials[0 .. num_segments) in this order and writes out and lse. Destroys them.
  // `storage` holds them one after the other.
  void Finish(const HostCall& call, const HostTile& tile, float* storage, int num_segments);

 private:
  void LoadQueries(const HostCall& call, const HostTile& tile);
  void AttendLoaded(const HostCall& call, const HostTile& tile, int segment,
                    const TilePartial& partial);
  void AttendBlock(const HostCall& call, const HostTile& tile, const TilePartial& partial);
  void TransformScores(const HostCall& call, const HostTile& tile, int num_keys);

  std::vector<float> q_;      // [num_rows, padded head_dim_qk]
  std::vector<float> total_;  // partials of Attend()
  std::vector<float> segment_;
  std::array<float, kMaxTileRows* kKeyBlockLen> scores_ = {};
  std::array<KeyRange, kMaxTileRows> intervals_;  // of each query
  std::array<float, kMaxTileRows> rescale_;
  KeyBlock keys_;
  HostRotary rotary_;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_TILE_WORKER_H_
