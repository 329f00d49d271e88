#include "reprise/attention/testing/host_tile_schedule.h"

#include <algorithm>

#include "absl/status/statusor.h"
#include "glog/logging.h"
#include "reprise/attention/device_profile.h"

namespace reprise {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kGuardBytes = 4096;
constexpr uint8_t kPoison = 0x7f;  // 0x7f7f7f7f is a huge count, and a huge float
constexpr uint8_t kGuard = 0xa5;

}  // namespace

HostTileSchedule::HostTileSchedule(const TileScheduleOptions& options) {
  absl::StatusOr<TileSchedulePlan> plan = PlanTileSchedule(options);
  CHECK(plan.ok()) << plan.status();
  plan_ = *plan;
  const TileSchedule elsewhere = MakeTileSchedule(plan_, reinterpret_cast<void*>(kAlignment));
  workspace_bytes_ = reinterpret_cast<intptr_t>(elsewhere.main.partial_lse) - kAlignment;
  memory_.assign(workspace_bytes_ + kAlignment + kGuardBytes, kGuard);
  const auto address = reinterpret_cast<uintptr_t>(memory_.data());
  workspace_begin_ = static_cast<int64_t>(-address % kAlignment);
  schedule_ = MakeTileSchedule(plan_, memory_.data() + workspace_begin_);
  Poison();
}

void HostTileSchedule::Poison() {
  std::fill_n(memory_.begin() + workspace_begin_, workspace_bytes_, kPoison);
}

bool HostTileSchedule::IsGuardIntact() const {
  const auto end = memory_.begin() + workspace_begin_ + workspace_bytes_;
  const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
  return std::all_of(memory_.begin(), memory_.begin() + workspace_begin_, is_guard) &&
         std::all_of(end, memory_.end(), is_guard);
}

std::vector<int64_t> HostTileSchedule::QueueSteps() const {
  const KernelSchedule& schedule = schedule_.main;
  std::vector<int64_t> steps(schedule.num_queues, 0);
  for (int column = 0; column < schedule.num_queues; ++column) {
    for (int i = schedule.queue_items[column]; i < schedule.queue_items[column + 1]; ++i) {
      const WorkItem& item = schedule.items[i];
      steps[column] += (item.key_end - item.key_begin + kWorkStepKeys - 1) / kWorkStepKeys;
    }
  }
  return steps;
}

TileScheduleOptions OptionsFor(const PagedBatch& batch, const AttentionParams& layer, DType dtype) {
  return {.dtype = dtype,
          .num_q_heads = layer.num_q_heads,
          .num_kv_heads = layer.num_kv_heads,
          .head_dim_qk = layer.head_dim_qk,
          .head_dim_v = layer.head_dim_v,
          .max_rows = batch.num_rows,
          .max_tokens = batch.num_tokens,
          .max_query_len = batch.max_query_len,
          .max_seq_len = batch.max_seq_len,
          .costs = H200Profile().tile_schedule};
}

}  // namespace reprise
