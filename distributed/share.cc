#include "reprise/distributed/share.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

bool ServesEveryRank(int64_t size, int64_t unit, int world) {
  return (size + unit - 1) / unit >= world;
}

int64_t AlignedUnit(int64_t size, int world, int64_t preferred) {
  for (const int64_t unit : {preferred, int64_t{64}, int64_t{8}}) {
    if (ServesEveryRank(size, unit, world)) return unit;
  }
  return 1;
}

}  // namespace

Share ShareOf(int64_t size, const Ranks& ranks, int64_t unit) {
  const int64_t num_units = (size + unit - 1) / unit;
  const auto boundary = [&](int64_t rank) {
    return std::min(size, num_units * rank / ranks.world * unit);
  };
  const int64_t begin = boundary(ranks.rank);
  return {begin, boundary(int64_t{ranks.rank} + 1) - begin};
}

Share AlignedShareOf(int64_t size, const Ranks& ranks, int64_t unit) {
  return ShareOf(size, ranks, AlignedUnit(size, ranks.world, unit));
}

int64_t LargestAlignedShare(int64_t size, int world) {
  int64_t largest = 0;
  for (int rank = 0; rank < world; ++rank) {
    largest = std::max(largest, AlignedShareOf(size, {.rank = rank, .world = world}).size);
  }
  return largest;
}

absl::Status CheckDivides(std::string_view name, int64_t size, const Ranks& ranks) {
  if (size >= ranks.world) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(name),
                                                 " must give each rank a part: expected at least ",
                                                 ranks.world, ", got ", size));
}

absl::StatusOr<HeadShare> HeadShareOf(int num_q_heads, int num_kv_heads, const Ranks& ranks,
                                      int64_t q_unit) {
  const int64_t group = num_q_heads / num_kv_heads;
  if (num_kv_heads >= ranks.world) {
    const int64_t kv_unit = q_unit / std::gcd(q_unit, group);
    const bool has_units = ServesEveryRank(num_kv_heads, kv_unit, ranks.world);
    const Share kv = ShareOf(num_kv_heads, ranks, has_units ? kv_unit : 1);
    return HeadShare{.q = kv.Times(group), .kv = kv};
  }
  // Rank r holds KV head floor(r * num_kv_heads / world), so the ranks of one KV head are
  // consecutive.
  const int64_t world = ranks.world;
  const auto first_rank = [&](int64_t head) {
    return (head * world + num_kv_heads - 1) / num_kv_heads;
  };
  const int64_t max_ranks_a_head = (world + num_kv_heads - 1) / num_kv_heads;
  if (group < max_ranks_a_head) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_q_heads must give each rank one: expected at least ", max_ranks_a_head * num_kv_heads,
        " q heads over ", num_kv_heads, " KV heads for ", world, " ranks, got ", num_q_heads));
  }
  const int64_t head = int64_t{ranks.rank} * num_kv_heads / world;
  const int64_t first = first_rank(head);
  const Share within = ShareOf(group, {.rank = static_cast<int>(ranks.rank - first),
                                       .world = static_cast<int>(first_rank(head + 1) - first)});
  return HeadShare{.q = {head * group + within.begin, within.size}, .kv = {head, 1}};
}

}  // namespace reprise
