// A tile schedule on the host with poisoned memory, for tests.
//
//   HostTileSchedule work({.num_q_heads = 8, .num_kv_heads = 2, ...});
//   ASSERT_TRUE(TileScheduleOnHost(batch, {}, work.schedule()).ok());
//   EXPECT_TRUE(work.IsGuardIntact());
//
// Does not allocate the partials' memory, which the builder does not access, so that large plans
// are cheap.
//
// Thread safety: not thread-safe; one owner.

#ifndef REPRISE_ATTENTION_TESTING_HOST_TILE_SCHEDULE_H_
#define REPRISE_ATTENTION_TESTING_HOST_TILE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {

class HostTileSchedule {
 public:
  // CHECK-fails if the options cannot be planned.
  explicit HostTileSchedule(const TileScheduleOptions& options);

  const TileSchedule& schedule() const { return schedule_; }
  const TileSchedulePlan& plan() const { return plan_; }

  // Fills the workspace with bytes that give huge counts and floats.
  void Poison();

  // Returns true if the memory before the workspace and after the schedule's part of it is
  // unchanged.
  bool IsGuardIntact() const;

  // Returns the number of KV tiles of each queue of schedule().main, to measure the balance.
  // REQUIRES: the schedule has been built.
  std::vector<int64_t> QueueSteps() const;

 private:
  TileSchedulePlan plan_;
  std::vector<uint8_t> memory_;
  int64_t workspace_begin_ = 0;
  int64_t workspace_bytes_ = 0;  // size up to the partials
  TileSchedule schedule_;
};

// Returns the options of a plan for this batch only, with the costs of an H200.
TileScheduleOptions OptionsFor(const PagedBatch& batch, const AttentionParams& layer, DType dtype);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_HOST_TILE_SCHEDULE_H_
