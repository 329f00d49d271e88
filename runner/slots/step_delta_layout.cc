#include "runner/slots/step_delta_layout.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/algorithm/container.h"

namespace reprise {
namespace {

// Allocates aligned arrays from `base`; with a null base it only counts.
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
  // For reads of mapped memory: the device fetches whole 128-byte lines; 256 is cudaHostAlloc's own
  // alignment at least.
  static constexpr int64_t kAlignment = 256;

  std::byte* base_;
  int64_t offset_ = 0;
};

StepDelta Carve(const StepDeltaCapacity& capacity, Carver& carver) {
  StepDelta delta;
  delta.counts = carver.Take<StepDeltaCounts>(1);
  delta.rows = carver.Take<StepRow>(capacity.max_rows);
  delta.leaves = carver.Take<int32_t>(capacity.num_slots);
  delta.joins = carver.Take<SlotJoin>(capacity.num_slots);
  delta.updates = carver.Take<BlockTableUpdate>(capacity.max_updates);
  delta.host_tokens = carver.Take<int32_t>(capacity.max_tokens);
  delta.scores = carver.Take<StepRowScore>(capacity.max_rows);
  delta.max_updates =
      static_cast<int>(std::min<int64_t>(capacity.max_updates, std::numeric_limits<int>::max()));
  return delta;
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

void WriteStepDelta(const ScheduledBatch& batch, int common_prefix_len, const StepDelta& delta) {
  StepDeltaCounts counts = {.common_prefix_len = common_prefix_len};
  for (const SlotId slot : batch.leaves) delta.leaves[counts.num_leaves++] = slot.value();
  for (const SlotJoin& join : batch.joins) delta.joins[counts.num_joins++] = join;
  for (const BlockTableUpdate& update : batch.updates) delta.updates[counts.num_updates++] = update;
  for (const ScheduledRow& row : batch.rows) {
    delta.rows[counts.num_rows++] = {
        .slot = row.slot.value(),
        .query_len = row.query_len(),
        .first_host_token = row.tokens.empty() ? -1 : counts.num_host_tokens,
        .samples = row.output == RowOutput::kToken};
    std::copy(row.tokens.begin(), row.tokens.end(), delta.host_tokens + counts.num_host_tokens);
    counts.num_host_tokens += static_cast<int32_t>(row.tokens.size());
    counts.num_tokens += row.query_len();
  }
  *delta.counts = counts;
  if (!absl::c_any_of(batch.rows, [](const ScheduledRow& row) { return row.is_scored(); })) return;
  for (size_t r = 0; r < batch.rows.size(); ++r) {
    delta.scores[r] = {.all_logits = batch.rows[r].logits == RowLogits::kAll,
                       .next_token = batch.rows[r].next_token};
  }
}

}  // namespace reprise
