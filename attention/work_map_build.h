// Makes a work map on the host: the twin of LaunchBuildWorkMap() (attention/work_map_cuda.h), the
// same code over host memory, for tests and for looking at a map.
//
//   std::vector<char> workspace(plan.workspace_bytes + 256);   // aligned to 256 bytes
//   WorkMap map = MakeWorkMap(plan, aligned);
//   REPRISE_RETURN_IF_ERROR(BuildWorkMap(batch, WindowOf(layer), map));
//   // map.main.items[0 .. map.main.counts[0]) ...
//
// Pointers of batch and map are on the host. The window is that of the layer class; layers that
// differ in heads or window need a map each.
//
// Errors: InvalidArgument if the capacities of the batch exceed those of the map.
//
// Thread safety: const data but for the map. Cost: O(query ranges + items), and the queries'
// positions and masks where the batch gives them.

#ifndef ATTENTION_WORK_MAP_BUILD_H_
#define ATTENTION_WORK_MAP_BUILD_H_

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/work_map.h"
#include "attention/work_map_rows.h"

namespace reprise {

absl::Status BuildWorkMap(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map);
absl::Status BuildWorkMap(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map);

// Rows of at most so many queries are in map.short_rows, the others in map.main; 0: all in main.
// Follows from the plan and the batch's bounds: the same for the builders and for attention.
int LongestShortRow(const PagedBatch& batch, const WorkMap& map);
int LongestShortRow(const RaggedBatch& batch, const WorkMap& map);

// The maps of a plan, each with the rows that it gets.
struct RowsOfTileMap {
  TileMap map;
  QueryLens lens;
};
absl::InlinedVector<RowsOfTileMap, 2> MapsOf(const WorkMap& map, int longest_short_row);

// What both builders and PagedAttention check: that `map` was made, and that the batch's host upper
// bounds are within its own. Errors: InvalidArgument.
absl::Status CheckWorkMapCapacity(const PagedBatch& batch, const WorkMap& map);
absl::Status CheckWorkMapCapacity(const RaggedBatch& batch, const WorkMap& map);

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_BUILD_H_
