#include "attention/work_map_build.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attention/work_map_builder.h"
#include "attention/work_map_scratch.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

struct HostTeam {
  template <typename Body>
  void ForEach(int n, Body body) {
    for (int i = 0; i < n; ++i) body(i);
  }

  template <typename Value>
  int Least(int n, Value value) {
    int least = std::numeric_limits<int>::max();
    for (int i = 0; i < n; ++i) least = std::min(least, value(i));
    return least;
  }

  template <typename Count, typename Use>
  int64_t Scan(int n, Count count, Use use) {
    int64_t sum = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t value = count(i);
      use(i, sum, value);
      sum += value;
    }
    return sum;
  }
};

void Cut(const WorkMapRows& rows, const WorkMap& map) {
  HostTeam team;
  const WorkMapScratch scratch = WorkMapScratch::At(map.scratch, map.max_tiles);
  if (map.mode == WorkMapMode::kDeterministic) {
    WorkMapBuilder<HostTeam, DeterministicCut>(team, rows, map, scratch).Run();
  } else {
    WorkMapBuilder<HostTeam, BalancedCut>(team, rows, map, scratch).Run();
  }
}

absl::Status CheckAtMost(const char* name, int most, int got) {
  if (got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " of the batch exceeds what the work map was planned for: expected <= ", most, ", got ",
      got));
}

template <typename Batch>
absl::Status CheckCapacity(const Batch& batch, const WorkMap& map) {
  if (map.items == nullptr) {
    return absl::InvalidArgumentError(
        "work is an empty WorkMap, which CUDA cannot use: make one with PlanWorkMap() and "
        "MakeWorkMap(), and fill it each step with LaunchBuildWorkMap()");
  }
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_rows", map.max_rows, batch.num_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("num_tokens", map.max_tokens, batch.num_tokens));
  REPRISE_RETURN_IF_ERROR(CheckAtMost("max_query_len", map.max_query_len, batch.max_query_len));
  return CheckAtMost("max_seq_len", map.max_seq_len, batch.max_seq_len);
}

template <typename Batch>
absl::Status Build(const Batch& batch, const LayerWindow& window, const WorkMap& map) {
  REPRISE_RETURN_IF_ERROR(CheckWorkMapCapacity(batch, map));
  Cut(RowsOf(batch, window), map);
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

absl::Status BuildWorkMap(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  return Build(batch, window, map);
}

absl::Status BuildWorkMap(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map) {
  return Build(batch, window, map);
}

}  // namespace reprise
