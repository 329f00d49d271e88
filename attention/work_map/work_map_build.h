// Fills a work map (attention/work_map/work_map.h) for a batch: each step, before the first layer.
//
//   // On the device: one small kernel.
//   REPRISE_RETURN_IF_ERROR(LaunchWorkMap(batch, WindowOf(layer), map, stream));
//
//   // On the host, for tests and to look at a map.
//   std::vector<char> workspace(plan.workspace_bytes + 256);   // aligned to 256 bytes
//   WorkMap map = MakeWorkMap(plan, aligned);
//   REPRISE_RETURN_IF_ERROR(WorkMapOnHost(batch, WindowOf(layer), map));
//   // map.main.items[0 .. map.main.counts[0]) ...
//
// Both forms are the same code (attention/work_map/work_map_builder.h) and make the same map.
// Pointers of batch and map are on the host, or on the device of `stream`. The window is that of
// the layer class; layers that differ in heads or window need a map each.
//
// LaunchWorkMap() may be captured: all that changes from step to step is read from the arrays. It
// does not synchronise or allocate.
//
// Errors: InvalidArgument if CheckWorkMapCapacity() refuses; LaunchWorkMap(): Internal if the
// launch fails.
//
// Thread safety: arguments are const except for the memory of the map. Cost: O(query ranges +
// items), plus the queries' positions and masks where the batch has them; on an H200 2.2 us beyond
// the launch for one row, 2.4 us for 256. Dealt maps (prefill), launch included, 7 us for 64 query
// ranges, 10 us for 512.

#ifndef REPRISE_ATTENTION_WORK_MAP_WORK_MAP_BUILD_H_
#define REPRISE_ATTENTION_WORK_MAP_WORK_MAP_BUILD_H_

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_build_args.h"

struct CUstream_st;

namespace reprise {

// Checks that `map` was made by MakeWorkMap(), and that the batch's host upper bounds are within
// its own. Both builders and PagedAttention() call it. Errors: InvalidArgument.
absl::Status CheckWorkMapCapacity(const PagedBatch& batch, const WorkMap& map);
absl::Status CheckWorkMapCapacity(const RaggedBatch& batch, const WorkMap& map);

absl::Status WorkMapOnHost(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map);
absl::Status WorkMapOnHost(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map);

// `stream` is a cudaStream_t. Only in builds with CUDA: target work_map_build_cuda.
absl::Status LaunchWorkMap(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map,
                           CUstream_st* stream);
absl::Status LaunchWorkMap(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map,
                           CUstream_st* stream);

// Rows of at most this many queries are in map.short_rows, the others in map.main; 0: all in main.
// Follows from the plan and the batch's bounds, so the builders and attention agree.
int LongestShortRow(const PagedBatch& batch, const WorkMap& map);
int LongestShortRow(const RaggedBatch& batch, const WorkMap& map);

// Notes what the map is built for. Both builders call it.
void NoteBuild(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map);
void NoteBuild(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map);

// Checks that the map, if its builder is known, was built for a batch of as many rows that is divided
// alike among the two maps, and for no narrower window: then its items are those of the call.
// PagedAttention() calls it on CUDA. Only with RowSplit::kByBatch. Errors: InvalidArgument.
absl::Status CheckBuiltFor(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map);
absl::Status CheckBuiltFor(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map);

// How the kernel for `part`, a map of `map`, is launched: by ClusterOf() and IsWide() when the map was
// built, or for these arguments if that is not known.
struct LaunchForm {
  int cluster = 1;
  bool is_wide = false;
};
LaunchForm FormAsBuilt(const TileMap& part, const WorkMap& map, int num_rows, int window_left);

// The maps of a plan, each with the rows that it serves.
struct RowsOfTileMap {
  TileMap map;
  QueryLens lens;
};
absl::InlinedVector<RowsOfTileMap, 2> MapsOf(const WorkMap& map, int longest_short_row);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_WORK_MAP_BUILD_H_
