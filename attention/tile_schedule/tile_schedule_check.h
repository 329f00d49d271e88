// Checks the invariants of a tile schedule against its batch. For tests.
//
//   ASSERT_TRUE(CheckTileSchedule(schedule, batch, window).ok());
//
// Checks invariants 1 to 5 and 7 of attention/tile_schedule/tile_schedule.h for every query and
// key, by the rules of attention/visibility.h, except that custom masks show every key in the
// window, as in the builder. The schedule and the arrays of the batch are on the host.
//
// Errors: Internal, naming the invariant and, for example, the item. Cost: O(queries * keys); less
// if the first and last visible keys are near the ends.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_CHECK_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_CHECK_H_

#include "absl/status/status.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"

namespace reprise {

absl::Status CheckTileSchedule(const TileSchedule& schedule, const PagedBatch& batch,
                               const LayerWindow& window);
absl::Status CheckTileSchedule(const TileSchedule& schedule, const RaggedBatch& batch,
                               const LayerWindow& window);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_CHECK_H_
