// Sharding of a dimension over ranks: each rank has one range of the dimension, and the ranges
// follow each other in rank order.
//
//   ShareOf(10, {.rank = 1, .world = 4});          // {2, 3} of {0, 2} {2, 3} {5, 2} {7, 3}
//   AlignedShareOf(151936, ranks);                 // boundaries at multiples of 64 if possible
//   HeadShareOf(32, 8, ranks);                     // q heads, and the KV heads that they read
//
// Thread safety: pure functions. Host only.

#ifndef REPRISE_DISTRIBUTED_SHARE_H_
#define REPRISE_DISTRIBUTED_SHARE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/distributed/collectives.h"

namespace reprise {

// Returns the ranks of `collectives`, or a world of one rank for null.
inline Ranks RanksOf(const Collectives* collectives) {
  return collectives == nullptr ? Ranks() : collectives->ranks();
}

// A rank's range [begin, begin + size) of a dimension.
struct Share {
  int64_t begin = 0;
  int64_t size = 0;

  int64_t end() const { return begin + size; }
  // Scales the range to a dimension with `factor` elements per element of this one.
  Share Times(int64_t factor) const { return {begin * factor, size * factor}; }

  friend bool operator==(const Share&, const Share&) = default;
};

// Returns a rank's range of `size` elements, cut at multiples of `unit`; the last unit may be
// shorter. The ranges of two ranks differ by at most one unit. If there are fewer units than ranks,
// some ranges are empty. REQUIRES: size >= 0, unit >= 1, a rank in [0, world).
Share ShareOf(int64_t size, const Ranks& ranks, int64_t unit = 1);

// Like ShareOf(), with the largest unit of `unit`, 64, 8 and 1 that yields at least one unit per
// rank: GEMMs are fast at these widths. Blocks of a quantised dimension need a `unit` of their
// size. The unit depends only on size, world and `unit`, so all ranks use the same unit.
// REQUIRES: unit >= 1.
Share AlignedShareOf(int64_t size, const Ranks& ranks, int64_t unit = 64);

// Returns the largest AlignedShareOf() of all ranks.
int64_t LargestAlignedShare(int64_t size, int world);

// Returns InvalidArgument, naming the dimension, if it has fewer elements than there are ranks.
absl::Status CheckDivides(std::string_view name, int64_t size, const Ranks& ranks);

// The heads of a rank in grouped-query attention, where q head h reads KV head h / (num_q_heads /
// num_kv_heads).
struct HeadShare {
  Share q;
  Share kv;  // q.size is a multiple of kv.size
};

// Returns the heads of a rank. If there is at least one KV head per rank, each rank has whole
// groups. Otherwise each rank has one KV head; ranks with the same KV head shard its q heads. The
// numbers of heads need not be multiples of the number of ranks. A rank's q heads begin at a multiple
// of `q_unit` if the ranks can share whole groups that way. REQUIRES: num_kv_heads divides
// num_q_heads, and q_unit >= 1. Errors: InvalidArgument if a rank would have no q head.
absl::StatusOr<HeadShare> HeadShareOf(int num_q_heads, int num_kv_heads, const Ranks& ranks,
                                      int64_t q_unit = 1);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_SHARE_H_
