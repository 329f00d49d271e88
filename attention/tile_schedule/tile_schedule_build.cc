#include "reprise/attention/tile_schedule/tile_schedule_build.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "reprise/attention/tile_schedule/tile_schedule_builder.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"
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

  void Sync() {}

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

  template <typename Value>
  Tally TallyOf(int n, Value value) {
    Tally tally;
    for (int i = 0; i < n; ++i) {
      const Tally of_one = value(i);
      tally = {.total = tally.total + of_one.total,
               .most = std::max(tally.most, of_one.most),
               .last = std::max(tally.last, of_one.last)};
    }
    return tally;
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

template <typename Cutter, typename Sum>
void CutBy(const TileScheduleRows& rows, const WorkPart& part, const TileScheduleSums& sums) {
  HostTeam team;
  TileScheduleBuilder<HostTeam, Cutter, Sum>(
      team, rows, part.lens, sums, part.schedule, part.form,
      TileScheduleScratch::At(part.schedule.scratch, part.schedule))
      .Run();
}

template <typename Cutter>
void CutBy(const TileScheduleRows& rows, const WorkPart& part) {
  const auto [sums, is_narrow] = SumsOf(part.schedule);
  if (is_narrow) {
    CutBy<Cutter, int32_t>(rows, part, sums);
  } else {
    CutBy<Cutter, int64_t>(rows, part, sums);
  }
}

void Cut(const TileScheduleRows& rows, const WorkPart& part) {
  if (part.schedule.mode == TileScheduleMode::kDeterministic) {
    CutBy<DeterministicCut>(rows, part);
  } else {
    CutBy<BalancedCut>(rows, part);
  }
}

template <typename Batch>
int LongestShort(const Batch& batch, const TileSchedule& schedule) {
  if (!schedule.has_short_rows()) return 0;
  const int longest = schedule.short_rows.max_query_len;
  if (batch.max_query_len <= longest || schedule.row_assignment == RowAssignment::kByRow)
    return longest;
  if (batch.max_query_len <= schedule.joined_short_rows * longest) return 0;
  const int64_t steps_of_row = (int64_t{batch.max_seq_len} + kWorkStepKeys - 1) / kWorkStepKeys;
  const int64_t steps = batch.num_rows * steps_of_row;
  if (steps <= schedule.max_joined_steps) return 0;
  const int64_t long_ranges = (batch.num_tokens - batch.num_rows) / schedule.main.tile_queries;
  if (steps <= schedule.max_joined_steps_beside_prompts && 3 * long_ranges >= batch.num_rows)
    return 0;
  // The batch has a short row only if num_tokens leaves at most `longest` tokens for one row while
  // all other rows have the maximum length.
  const int64_t others = static_cast<int64_t>(batch.num_rows - 1) * batch.max_query_len;
  return batch.num_tokens > others + longest ? 0 : longest;
}

absl::Status CheckAtMost(const char* name, int most, int got) {
  if (got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " of the batch must not exceed the capacity of the tile schedule: expected <= ", most,
      ", got ", got));
}

template <typename Batch>
absl::Status CheckCapacity(const Batch& batch, const TileSchedule& schedule) {
  if (schedule.main.items == nullptr) {
    return absl::InvalidArgumentError(
        "work is an empty TileSchedule, which CUDA cannot use: make one with PlanTileSchedule() "
        "and MakeTileSchedule(), and build it in each step with LaunchTileSchedule()");
  }
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", schedule.main.max_rows, batch.num_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_tokens", schedule.main.max_tokens, batch.num_tokens));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("max_query_len", schedule.main.max_query_len, batch.max_query_len));
  return CheckAtMost("max_seq_len", schedule.main.max_seq_len, batch.max_seq_len);
}

LaunchForm FormOf(const KernelSchedule& schedule, int num_rows, int window_left) {
  const int cluster = ClusterOf(schedule, num_rows, window_left);
  return {.cluster = cluster, .is_wide = IsWide(schedule, cluster, num_rows, window_left)};
}

template <typename Batch>
BatchSchedule WorkOfBatch(const Batch& batch, const LayerWindow& window,
                          const TileSchedule& schedule) {
  const int window_left = window.left.value_or(-1);
  return {.schedule = schedule,
          .main_form = FormOf(schedule.main, batch.num_rows, window_left),
          .short_form = FormOf(schedule.short_rows, batch.num_rows, window_left),
          .num_rows = batch.num_rows,
          .longest_short_row = LongestShort(batch, schedule),
          .window_left = window_left,
          .window_right = window.right.value_or(-1)};
}

absl::Status CheckSide(const char* name, int built, const std::optional<int>& side) {
  if (built < 0 || (side && *side <= built)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("work is for a narrower window: expected ", name,
                                                 " at most ", built, ", got ",
                                                 side ? std::to_string(*side) : "none"));
}

template <typename Batch>
absl::Status CheckWork(const Batch& batch, const LayerWindow& window, const BatchSchedule& work) {
  if (work.schedule.row_assignment == RowAssignment::kByRow) return absl::OkStatus();
  if (batch.num_rows != work.num_rows) {
    return absl::InvalidArgumentError(absl::StrCat("work is for another batch: expected num_rows ",
                                                   work.num_rows, ", got ", batch.num_rows));
  }
  if (const int longest = LongestShort(batch, work.schedule); longest != work.longest_short_row) {
    return absl::InvalidArgumentError(absl::StrCat(
        "work is for a batch with other bounds (num_tokens, max_query_len, max_seq_len): expected "
        "rows of up to ",
        work.longest_short_row, " queries in the second schedule, got ", longest));
  }
  REPRISE_RETURN_IF_ERROR(CheckSide("window_left", work.window_left, window.left));
  return CheckSide("window_right", work.window_right, window.right);
}

template <typename Batch>
absl::StatusOr<BatchSchedule> Build(const Batch& batch, const LayerWindow& window,
                                    const TileSchedule& schedule) {
  REPRISE_RETURN_IF_ERROR(CheckTileScheduleCapacity(batch, schedule));
  const BatchSchedule work = WorkOfBatch(batch, window, schedule);
  const TileScheduleRows rows = RowsOf(batch, window);
  for (const WorkPart& part : PartsOf(work)) Cut(rows, part);
  return work;
}

}  // namespace

absl::Status CheckTileScheduleCapacity(const PagedBatch& batch, const TileSchedule& schedule) {
  if (batch.tail_len != nullptr && batch.tail_mask == nullptr && batch.num_tokens > 0) {
    return absl::InvalidArgumentError("tail_mask, with tail_len: expected an array, got none");
  }
  return CheckCapacity(batch, schedule);
}

absl::Status CheckTileScheduleCapacity(const RaggedBatch& batch, const TileSchedule& schedule) {
  return CheckCapacity(batch, schedule);
}

BatchSchedule WorkOf(const PagedBatch& batch, const LayerWindow& window,
                     const TileSchedule& schedule) {
  return WorkOfBatch(batch, window, schedule);
}

BatchSchedule WorkOf(const RaggedBatch& batch, const LayerWindow& window,
                     const TileSchedule& schedule) {
  return WorkOfBatch(batch, window, schedule);
}

absl::Status CheckBatchSchedule(const PagedBatch& batch, const LayerWindow& window,
                                const BatchSchedule& work) {
  REPRISE_RETURN_IF_ERROR(CheckTileScheduleCapacity(batch, work.schedule));
  return CheckWork(batch, window, work);
}

absl::Status CheckBatchSchedule(const RaggedBatch& batch, const LayerWindow& window,
                                const BatchSchedule& work) {
  REPRISE_RETURN_IF_ERROR(CheckTileScheduleCapacity(batch, work.schedule));
  return CheckWork(batch, window, work);
}

absl::InlinedVector<WorkPart, 2> PartsOf(const BatchSchedule& work) {
  absl::InlinedVector<WorkPart, 2> parts;
  parts.push_back({work.schedule.main, work.main_form, {.least = work.longest_short_row + 1}});
  if (work.schedule.has_short_rows()) {
    parts.push_back({work.schedule.short_rows, work.short_form, {.most = work.longest_short_row}});
  }
  return parts;
}

absl::StatusOr<BatchSchedule> TileScheduleOnHost(const PagedBatch& batch, const LayerWindow& window,
                                                 const TileSchedule& schedule) {
  return Build(batch, window, schedule);
}

absl::StatusOr<BatchSchedule> TileScheduleOnHost(const RaggedBatch& batch,
                                                 const LayerWindow& window,
                                                 const TileSchedule& schedule) {
  return Build(batch, window, schedule);
}

}  // namespace reprise
