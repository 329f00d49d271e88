// A work map on the host with its memory, poisoned: for tests.
//
//   HostWorkMap work({.num_q_heads = 8, .num_kv_heads = 2, ...});
//   ASSERT_TRUE(WorkMapOnHost(batch, {}, work.map()).ok());
//   EXPECT_TRUE(work.IsGuardIntact());
//
// The partials' memory is left out (the builder does not touch it), so that large plans cost
// little.
//
// Thread safety: none; one owner.

#ifndef REPRISE_ATTENTION_TESTING_HOST_WORK_MAP_H_
#define REPRISE_ATTENTION_TESTING_HOST_WORK_MAP_H_

#include <cstdint>
#include <vector>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {

class HostWorkMap {
 public:
  // CHECK-fails on options that cannot be planned.
  explicit HostWorkMap(const WorkMapOptions& options);

  const WorkMap& map() const { return map_; }
  const WorkMapPlan& plan() const { return plan_; }

  // Fills the workspace with bytes that make huge counts and NaN.
  void Poison();

  // True if nothing was written before the workspace or after its part for the map.
  bool IsGuardIntact() const;

  // Key steps of each column of map().main, to judge evenness.
  std::vector<int64_t> ColumnSteps() const;

 private:
  WorkMapPlan plan_;
  std::vector<uint8_t> memory_;
  int64_t workspace_begin_ = 0;
  int64_t workspace_bytes_ = 0;  // up to the partials
  WorkMap map_;
};

// The options of a plan for just this batch.
WorkMapOptions OptionsFor(const PagedBatch& batch, const AttentionParams& layer, DType dtype);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_HOST_WORK_MAP_H_
