// Builds a tile schedule (attention/tile_schedule/tile_schedule.h) for a batch: in each step,
// before the first layer.
//
//   // On the device: one small kernel.
//   REPRISE_ASSIGN_OR_RETURN(const BatchSchedule work,
//                            LaunchTileSchedule(batch, WindowOf(layer), schedule, stream));
//   // then each layer: PagedAttention(layer, batch, work, ...)
//
//   // On the host, for tests and for inspecting a schedule.
//   std::vector<char> workspace(plan.workspace_bytes + 256);   // aligned to 256 bytes
//   TileSchedule schedule = MakeTileSchedule(plan, aligned);
//   REPRISE_RETURN_IF_ERROR(TileScheduleOnHost(batch, WindowOf(layer), schedule).status());
//   // schedule.main.items[0 .. schedule.main.counts[0]) ...
//
// Both forms run the same code (attention/tile_schedule/tile_schedule_builder.h) and build the same
// schedule. Pointers of the batch and the schedule are on the host, or on the device of `stream`.
// The window belongs to the layer class (attention/layer_classes.h); layers of different classes
// need separate schedules.
//
// LaunchTileSchedule() may be captured: everything that changes between steps is read from the
// arrays. It does not synchronise or allocate.
//
// Errors: InvalidArgument if CheckTileScheduleCapacity() fails. LaunchTileSchedule(): Internal if
// the launch fails.
//
// Thread safety: arguments are const except for the memory of the schedule. Cost: O(Q tiles +
// items), plus the queries' positions and masks if the batch has them. On an H200: 2.2 us beyond
// the launch for one row, 2.4 us for 256 rows. Round-robin schedules (prefill), including the
// launch: 7 us for 64 Q tiles, 10 us for 512.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILD_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILD_H_

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"

struct CUstream_st;

namespace reprise {

// Checks that `schedule` has memory from MakeTileSchedule(), that the host upper bounds of the
// batch are within the schedule's capacity, and that tail_len has a tail_mask. Both builders call
// it. Errors: InvalidArgument.
absl::Status CheckTileScheduleCapacity(const PagedBatch& batch, const TileSchedule& schedule);
absl::Status CheckTileScheduleCapacity(const RaggedBatch& batch, const TileSchedule& schedule);

// The value that the builders return, without building. It depends only on the bounds of the batch,
// the window and the plan.
BatchSchedule WorkOf(const PagedBatch& batch, const LayerWindow& window,
                     const TileSchedule& schedule);
BatchSchedule WorkOf(const RaggedBatch& batch, const LayerWindow& window,
                     const TileSchedule& schedule);

absl::StatusOr<BatchSchedule> TileScheduleOnHost(const PagedBatch& batch, const LayerWindow& window,
                                                 const TileSchedule& schedule);
absl::StatusOr<BatchSchedule> TileScheduleOnHost(const RaggedBatch& batch,
                                                 const LayerWindow& window,
                                                 const TileSchedule& schedule);

// `stream` is a cudaStream_t. Only in builds with CUDA: target tile_schedule_build_cuda.
absl::StatusOr<BatchSchedule> LaunchTileSchedule(const PagedBatch& batch, const LayerWindow& window,
                                                 const TileSchedule& schedule, CUstream_st* stream);
absl::StatusOr<BatchSchedule> LaunchTileSchedule(const RaggedBatch& batch,
                                                 const LayerWindow& window,
                                                 const TileSchedule& schedule, CUstream_st* stream);

// Calls CheckTileScheduleCapacity(). With RowAssignment::kByBatch, also checks that `work` has the
// batch's number of rows, that the batch's bounds assign its rows to the same schedules, and that
// `work` was built for a window at least as wide. With kByRow, the caller must ensure that `work`
// was built for these rows and for a window at least as wide. PagedAttention() calls it on CUDA.
// Errors: InvalidArgument.
absl::Status CheckBatchSchedule(const PagedBatch& batch, const LayerWindow& window,
                                const BatchSchedule& work);
absl::Status CheckBatchSchedule(const RaggedBatch& batch, const LayerWindow& window,
                                const BatchSchedule& work);

// One schedule of a BatchSchedule, how its kernel is launched, and the rows that it contains.
struct WorkPart {
  KernelSchedule schedule;
  LaunchForm form;
  QueryLens lens;
};
absl::InlinedVector<WorkPart, 2> PartsOf(const BatchSchedule& work);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_BUILD_H_
