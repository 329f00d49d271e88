// How a dimension is divided over ranks: each rank has a range of it, and the ranges follow each
// other in the order of the ranks.
//
//   ShareOf(10, {.rank = 1, .world = 4});          // {2, 3} of {0, 2} {2, 3} {5, 2} {7, 3}
//   AlignedShareOf(151936, ranks);                 // cut at multiples of 64 where possible
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

// The one rank there is for null.
inline Ranks RanksOf(const Collectives* collectives) {
  return collectives == nullptr ? Ranks() : collectives->ranks();
}

// The range [begin, begin + size) of a dimension.
struct Share {
  int64_t begin = 0;
  int64_t size = 0;

  int64_t end() const { return begin + size; }
  // The same range of a dimension that has `factor` elements for each of this one.
  Share Times(int64_t factor) const { return {begin * factor, size * factor}; }

  friend bool operator==(const Share&, const Share&) = default;
};

// A rank's share of `size` elements, in units of `unit` of them; the last unit may be shorter.
// Shares differ by at most a unit; with fewer units than ranks some are empty. REQUIRES: size >= 0,
// unit >= 1, a rank in [0, world).
Share ShareOf(int64_t size, const Ranks& ranks, int64_t unit = 1);

// In units of 64 if there are at least as many as ranks, else of 8, else of 1: the widths at which
// matrix products are fast. What all ranks agree on depends on size and world alone.
Share AlignedShareOf(int64_t size, const Ranks& ranks);

// The largest share of any rank.
int64_t LargestAlignedShare(int64_t size, int world);

// InvalidArgument, naming the dimension, if it has fewer elements than there are ranks.
absl::Status CheckDivides(std::string_view name, int64_t size, const Ranks& ranks);

// Heads of grouped-query attention: q head h reads the KV head h / (num_q_heads / num_kv_heads).
struct HeadShare {
  Share q;
  Share kv;  // q.size is a multiple of kv.size
};

// With at least as many KV heads as ranks, each rank has whole groups. With fewer, a KV head is
// held by several ranks, which divide its q heads. Numbers need not divide. REQUIRES: num_kv_heads
// divides num_q_heads. Errors: InvalidArgument if a rank would have no q head.
absl::StatusOr<HeadShare> HeadShareOf(int num_q_heads, int num_kv_heads, const Ranks& ranks);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_SHARE_H_
