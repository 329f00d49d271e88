#include "reprise/runner/slots/step_delta_layout.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

namespace reprise {
namespace {

// Allocates aligned arrays, starting at `base`. If `base` is null, only computes the size.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  T* Take(int64_t count) {
    T* array = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset_);
    offset_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }
  int64_t offset() const { return offset_; }

 private:
  // Devices read mapped memory in 128-byte lines. cudaHostAlloc() aligns to at least 256 bytes.
  static constexpr int64_t kAlignment = 256;

  std::byte* base_;
  int64_t offset_ = 0;
};

StepDelta Carve(const StepDeltaCapacity& capacity, Carver& carver) {
  StepDelta delta;
  delta.counts = carver.Take<StepDeltaCounts>(1);
  delta.rows = carver.Take<StepRow>(capacity.max_rows);
  delta.leaves = carver.Take<int32_t>(capacity.num_slots);
  delta.joins = carver.Take<StepJoin>(capacity.num_slots);
  delta.updates = carver.Take<StepUpdate>(capacity.max_updates);
  delta.host_tokens = carver.Take<int32_t>(capacity.max_tokens);
  delta.scores = carver.Take<StepRowScore>(capacity.max_rows);
  if (capacity.num_position_dims > 1) {
    delta.host_positions =
        carver.Take<int32_t>(int64_t{capacity.num_position_dims} * capacity.max_tokens);
  }
  if (capacity.has_trees) delta.host_parents = carver.Take<int32_t>(capacity.max_tokens);
  delta.max_updates =
      static_cast<int>(std::min<int64_t>(capacity.max_updates, std::numeric_limits<int>::max()));
  return delta;
}

void WritePositions(const ScheduledBatch& batch, const StepDeltaCapacity& capacity,
                    const StepDelta& delta) {
  for (int dim = 0; dim < capacity.num_position_dims; ++dim) {
    int32_t* next = delta.host_positions + int64_t{dim} * capacity.max_tokens;
    for (const ScheduledRow& row : batch.rows) {
      // Drafts are host tokens, but have no positions from the host.
      const int64_t num_tokens =
          static_cast<int64_t>(row.tokens.empty() ? row.drafts.size() : row.tokens.size());
      if (row.positions.count > 0) {
        std::copy_n(row.positions.data + dim * row.positions.dim_stride, row.positions.count, next);
      }
      std::fill(next + row.positions.count, next + num_tokens, -1);
      next += num_tokens;
    }
  }
}

// Writes the parents of a row's drafts, starting at `parents`.
void WriteParents(const ScheduledRow& row, int32_t* parents) {
  if (!row.parents.empty()) {
    std::copy(row.parents.begin(), row.parents.end(), parents);
  } else {
    std::iota(parents, parents + row.drafts.size(), 0);
  }
}

}  // namespace

int64_t StepDeltaBytes(const StepDeltaCapacity& capacity) {
  Carver carver(nullptr);
  Carve(capacity, carver);
  return carver.offset();
}

StepDelta StepDeltaAt(const StepDeltaCapacity& capacity, std::byte* base) {
  Carver carver(base);
  return Carve(capacity, carver);
}

void WriteStepDelta(const ScheduledBatch& batch, int common_prefix_len,
                    const StepDeltaCapacity& capacity, const StepDelta& delta) {
  StepDeltaCounts counts = {.common_prefix_len = common_prefix_len};
  for (const SlotId slot : batch.leaves) delta.leaves[counts.num_leaves++] = slot.value();
  for (const SlotJoin& join : batch.joins) {
    delta.joins[counts.num_joins++] = {.slot = join.slot.value(),
                                       .seq_len = join.seq_len,
                                       .sample_index = join.sample_index,
                                       .sampling = join.sampling,
                                       .num_encoder_tokens = join.num_encoder_tokens,
                                       .position_delta = join.position_delta,
                                       .num_undrafted = join.num_undrafted};
  }
  for (const BlockTableUpdate& update : batch.updates) {
    delta.updates[counts.num_updates++] = {.slot = update.slot.value(),
                                           .column = update.column,
                                           .block = update.block.value(),
                                           .group = update.group};
  }
  bool has_scores = false;
  for (const ScheduledRow& row : batch.rows) {
    const absl::Span<const int32_t> given = row.tokens.empty() ? row.drafts : row.tokens;
    delta.rows[counts.num_rows++] = {
        .slot = row.slot.value(),
        .query_len = row.query_len(),
        .first_host_token = given.empty() ? -1 : counts.num_host_tokens,
        .samples = row.draft_count() > 0 ? kVerifiesDrafts : row.output == RowOutput::kToken};
    has_scores |= row.num_earlier_logits() > 0 || row.is_scored();
    std::copy(given.begin(), given.end(), delta.host_tokens + counts.num_host_tokens);
    if (delta.host_parents != nullptr) {
      WriteParents(row, delta.host_parents + counts.num_host_tokens);
    }
    counts.num_host_tokens += static_cast<int32_t>(given.size());
    counts.num_tokens += row.query_len();
    counts.has_positions |= row.positions.count > 0;
  }
  if (counts.has_positions != 0) WritePositions(batch, capacity, delta);
  *delta.counts = counts;
  if (!has_scores) return;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    delta.scores[r] = {.all_logits = batch.rows[r].num_earlier_logits() > 0,
                       .next_token = batch.rows[r].next_token};
  }
}

}  // namespace reprise
