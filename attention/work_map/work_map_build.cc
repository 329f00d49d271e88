#include "reprise/attention/work_map/work_map_build.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/work_map/work_map_builder.h"
#include "reprise/attention/work_map/work_map_cut.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

struct HostTeam {
  template <typename Body>
  void Fill(int n, Body body) {
    for (int i = 0; i < n; ++i) body(i);
  }

  template <typename Body>
  void ForEach(int n, Body body) {
    Fill(n, body);
  }

  template <typename Body>
  void ForEachAside(int n, Body body) {
    Fill(n, body);
  }

  void Meet() {}

  template <typename Value>
  int Total(int n, Value value) {
    int total = 0;
    for (int i = 0; i < n; ++i) total += value(i);
    return total;
  }

  template <typename Value>
  int Least(int n, Value value) {
    int least = std::numeric_limits<int>::max();
    for (int i = 0; i < n; ++i) least = std::min(least, value(i));
    return least;
  }

  template <typename Count, typename Use>
  auto Scan(int n, Count count, Use use) {
    decltype(count(0)) sum = 0;
    for (int i = 0; i < n; ++i) {
      const auto value = count(i);
      use(i, sum);
      sum += value;
    }
    return sum;
  }

  template <typename BucketOf, typename Use>
  void RankByBucket(int n, BucketOf bucket_of, Use use) {
    std::array<int, kNumRankBuckets> next = {};
    for (int i = 0; i < n; ++i) {
      if (const int bucket = bucket_of(i); bucket >= 0) ++next[bucket];
    }
    std::exclusive_scan(next.begin(), next.end(), next.begin(), 0);
    for (int i = 0; i < n; ++i) {
      if (const int bucket = bucket_of(i); bucket >= 0) use(i, next[bucket]++);
    }
  }

  template <typename SpanOf, typename Body>
  void Spread(int n, SpanOf span_of, Body body) {
    for (int i = 0; i < n; ++i) {
      const ItemSpan span = span_of(i);
      for (int k = 0; k < span.count; ++k) body(i, span.begin + k);
    }
  }
};

template <typename Cutter>
void CutBy(const WorkMapRows& rows, const QueryLens& lens, const TileMap& map) {
  HostTeam team;
  const WorkMapScratch scratch = WorkMapScratch::At(map.scratch, map);
  const auto [sums, is_narrow] = SumsOf(map);
  if (is_narrow) {
    WorkMapBuilder<HostTeam, Cutter, int32_t>(team, rows, lens, sums, map, scratch).Run();
  } else {
    WorkMapBuilder<HostTeam, Cutter, int64_t>(team, rows, lens, sums, map, scratch).Run();
  }
}

void Cut(const WorkMapRows& rows, const QueryLens& lens, const TileMap& map) {
  if (map.mode == WorkMapMode::kDeterministic) {
    CutBy<DeterministicCut>(rows, lens, map);
  } else {
    CutBy<BalancedCut>(rows, lens, map);
  }
}

// Two kernels do not pay for a batch whose longest row has at most this many times the queries of a
// short one.
constexpr int kHardlyLonger = 4;

template <typename Batch>
int LongestShort(const Batch& batch, const WorkMap& map) {
  if (!map.has_short_rows()) return 0;
  const int longest = map.short_rows.max_query_len;
  if (batch.max_query_len <= longest || map.split == RowSplit::kByRow) return longest;
  if (batch.max_query_len <= kHardlyLonger * longest) return 0;
  const int64_t steps_of_row = (int64_t{batch.max_seq_len} + kWorkStepKeys - 1) / kWorkStepKeys;
  const int64_t steps = batch.num_rows * steps_of_row;
  if (steps <= map.most_joined_steps) return 0;
  const int64_t long_ranges = (batch.num_tokens - batch.num_rows) / map.main.tile_queries;
  if (steps <= map.most_joined_steps_beside_prompts && 3 * long_ranges >= batch.num_rows) return 0;
  // A short row exists only if all other rows have the maximum length.
  const int64_t others = static_cast<int64_t>(batch.num_rows - 1) * batch.max_query_len;
  return batch.num_tokens > others + longest ? 0 : longest;
}

absl::Status CheckAtMost(const char* name, int most, int got) {
  if (got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " of the batch exceeds what the work map was planned for: expected <= ", most, ", got ",
      got));
}

template <typename Batch>
absl::Status CheckCapacity(const Batch& batch, const WorkMap& map) {
  if (map.main.items == nullptr) {
    return absl::InvalidArgumentError(
        "work is an empty WorkMap, which CUDA cannot use: make one with PlanWorkMap() and "
        "MakeWorkMap(), and fill it each step with LaunchWorkMap()");
  }
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", map.main.max_rows, batch.num_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_tokens", map.main.max_tokens, batch.num_tokens));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("max_query_len", map.main.max_query_len, batch.max_query_len));
  return CheckAtMost("max_seq_len", map.main.max_seq_len, batch.max_seq_len);
}

template <typename Batch>
void Note(const Batch& batch, const LayerWindow& window, const WorkMap& map) {
  if (map.build == nullptr) return;
  *map.build = {.is_known = true,
                .num_rows = batch.num_rows,
                .longest_short_row = LongestShort(batch, map),
                .window_left = window.left.value_or(-1),
                .window_right = window.right.value_or(-1)};
}

absl::Status CheckSide(const char* name, int built, const std::optional<int>& side) {
  if (built < 0 || (side && *side <= built)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("work was built for a narrower window: expected ",
                                                 name, " at most ", built, ", got ",
                                                 side ? std::to_string(*side) : "none"));
}

template <typename Batch>
absl::Status CheckBuilt(const Batch& batch, const LayerWindow& window, const WorkMap& map) {
  if (map.build == nullptr || !map.build->is_known) return absl::OkStatus();
  const WorkMapBuild& build = *map.build;
  if (batch.num_rows != build.num_rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("work was built for another batch: expected num_rows ", build.num_rows,
                     ", got ", batch.num_rows));
  }
  if (const int longest = LongestShort(batch, map); longest != build.longest_short_row) {
    return absl::InvalidArgumentError(absl::StrCat(
        "work was built for a batch with other bounds (num_tokens, max_query_len, max_seq_len): "
        "expected rows of up to ",
        build.longest_short_row, " queries in a map of their own, got ", longest));
  }
  REPRISE_RETURN_IF_ERROR(CheckSide("window_left", build.window_left, window.left));
  return CheckSide("window_right", build.window_right, window.right);
}

template <typename Batch>
absl::Status Build(const Batch& batch, const LayerWindow& window, const WorkMap& map) {
  REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, map));
  const WorkMapRows rows = RowsOf(batch, window);
  for (const RowsOfTileMap& part : MapsOf(map, LongestShort(batch, map))) {
    Cut(rows, part.lens, part.map);
  }
  Note(batch, window, map);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWorkMapCapacity(const PagedBatch& batch, const WorkMap& map) {
  if (batch.tail_len != nullptr && batch.tail_mask == nullptr && batch.num_tokens > 0) {
    return absl::InvalidArgumentError("tail_mask, with tail_len: expected an array, got none");
  }
  return CheckCapacity(batch, map);
}

absl::Status CheckWorkMapCapacity(const RaggedBatch& batch, const WorkMap& map) {
  return CheckCapacity(batch, map);
}

int LongestShortRow(const PagedBatch& batch, const WorkMap& map) {
  return LongestShort(batch, map);
}

int LongestShortRow(const RaggedBatch& batch, const WorkMap& map) {
  return LongestShort(batch, map);
}

void NoteBuild(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  Note(batch, window, map);
}

void NoteBuild(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  Note(batch, window, map);
}

absl::Status CheckBuiltFor(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  return CheckBuilt(batch, window, map);
}

absl::Status CheckBuiltFor(const RaggedBatch& batch, const LayerWindow& window,
                           const WorkMap& map) {
  return CheckBuilt(batch, window, map);
}

LaunchForm FormAsBuilt(const TileMap& part, const WorkMap& map, int num_rows, int window_left) {
  if (map.build != nullptr && map.build->is_known) window_left = map.build->window_left;
  const int cluster = ClusterOf(part, num_rows, window_left);
  return {.cluster = cluster, .is_wide = IsWide(part, cluster, num_rows, window_left)};
}

absl::InlinedVector<RowsOfTileMap, 2> MapsOf(const WorkMap& map, int longest_short_row) {
  absl::InlinedVector<RowsOfTileMap, 2> maps;
  maps.push_back({map.main, {.least = longest_short_row + 1}});
  if (map.has_short_rows()) maps.push_back({map.short_rows, {.most = longest_short_row}});
  return maps;
}

absl::Status WorkMapOnHost(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  return Build(batch, window, map);
}

absl::Status WorkMapOnHost(const RaggedBatch& batch, const LayerWindow& window,
                           const WorkMap& map) {
  return Build(batch, window, map);
}

}  // namespace reprise
