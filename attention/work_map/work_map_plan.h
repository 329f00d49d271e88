// The capacities and memory of a work map (attention/work_map/work_map.h): planned once, fixed
// under capture.
//
//   REPRISE_ASSIGN_OR_RETURN(
//       WorkMapPlan plan,
//       PlanWorkMap({.dtype = DType::kBFloat16, .num_q_heads = 32, .num_kv_heads = 8,
//                    .head_dim_qk = 128, .head_dim_v = 128, .max_rows = 64, .max_tokens = 64,
//                    .max_query_len = 1, .max_seq_len = 8192, .device = limits}));
//   // Allocate plan.workspace_bytes on the device, once. Plans whose maps are not used at the same
//   // time can share the largest workspace.
//   WorkMap map = MakeWorkMap(plan, workspace);
//   // then each step, before the first layer: LaunchWorkMap(batch, window, map, stream)
//
// Two maps. Where the smallest tile holds at least one query but fewer than max_query_len, the rows
// that it holds get a map of their own, with that tile (WorkMap::short_rows): decodes in a step
// with prefills, and decode steps that use the map of prefills. Rows that decode_query_len covers
// are among them, whatever the tile holds. Not with SharedPrefix::kTaken.
//
// The bounds, of each map. Let T = max_tokens, R = min(max_rows, T), q = tile_queries. Query ranges
// are at most R + min((T - R) / q, R * ((max_query_len - 1) / q)). In balanced mode a cut is a
// column's border, so there are at most num_columns - 1 of them, as many items beyond one a range,
// and twice as many partials; in deterministic mode at most max_splits partials a row. Rows of at
// most D = decode_query_len > 1 queries add up to min(T, R * D) ranges, each with those of a row.
// In deterministic mode a plan with more partials than 2 * max_splits * q a column, or
// 2 * max_splits where ranges have one query, has so many ("Partials by column" in work_map.h).
// A range of at most kWorkStepKeys keys is never cut. A partial belongs to one query; a piece has
// one for each of its queries. With SharedPrefix::kTaken, SharedTiles selects the size of tiles,
// query ranges also end at multiples of q tokens, there are ceil(T / q) shared ranges more, and
// every item leaves partials.
//
// A plan is a value. Thread safety: const data. Planning does not allocate.

#ifndef REPRISE_ATTENTION_WORK_MAP_WORK_MAP_PLAN_H_
#define REPRISE_ATTENTION_WORK_MAP_WORK_MAP_PLAN_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/dtype.h"

namespace reprise {

// How PagedBatch::common_prefix_len is treated.
enum class SharedPrefix : int8_t {
  kIgnored,
  kTaken,  // keys of a common prefix are read once for several rows; balanced mode only
};

// How many queries read a common prefix together.
enum class SharedTiles : int8_t {
  kLarge,  // as many as a tile holds: the prefix is read least often
  kSmall,  // as many as the tile of a decode holds, which reads the rows' own keys best
};

struct WorkMapOptions {
  DType dtype = DType::kBFloat16;  // of q; float32, float16, bfloat16 or fp8
  int num_q_heads = 0;             // a multiple of num_kv_heads
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  // Upper bounds of the batches: those of PagedBatch.
  int max_rows = 0;
  int max_tokens = 0;
  int max_query_len = 1;
  int max_seq_len = 0;
  DeviceLimits device = {};
  WorkMapMode mode = WorkMapMode::kBalanced;
  // Deterministic mode: the most pieces of a row, up to kMaxDeterministicSplits; 1: no row is cut.
  int max_splits = kMaxDeterministicSplits;
  // Deterministic mode: in rows of at most this many queries, as drafts to verify, each query is
  // computed as a decode: by the same kernel, over the same pieces of keys, with the same bits as a
  // row of one query that sees the same keys. (But for tail_mask and custom masks, whose keys the
  // kernels add up in other steps.) Takes up to max_splits partials for each of their queries, but
  // no more than a plan of many rows needs without it: 2 * max_splits a column.
  int decode_query_len = 1;
  KernelChoice kernels = {};
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kLarge;  // with kTaken
  RowSplit split = RowSplit::kByBatch;             // ignored in deterministic mode
  // The costs of the card; nullopt: the costs in ProfileOf(device). Results are correct with any costs.
  std::optional<WorkMapCosts> costs = {};
};

struct WorkMapPlan {
  WorkMap shape;                // capacities and sizes; pointers null
  int64_t workspace_bytes = 0;  // of both parts:
  int64_t map_bytes = 0;        // the map itself, read by all layers of the step
  int64_t partial_bytes = 0;    // partial results of cut rows, not used after a layer's kernel
};

// Errors: InvalidArgument, naming the option; Unimplemented for a dtype or head dim that no CUDA
// kernel serves.
absl::StatusOr<WorkMapPlan> PlanWorkMap(const WorkMapOptions& options);

// The map over `workspace`: plan.workspace_bytes of device memory (for WorkMapOnHost(): host
// memory) of any content, aligned to 256 bytes. The caller owns it; it must outlive graphs that use
// the map.
WorkMap MakeWorkMap(const WorkMapPlan& plan, void* workspace);

// The same over two allocations, of plan.map_bytes and plan.partial_bytes. Maps whose kernels never
// run at the same time, for example those of all layer classes of a step, can share the second,
// which is the larger.
WorkMap MakeWorkMap(const WorkMapPlan& plan, void* map_memory, void* partial_memory);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_WORK_MAP_PLAN_H_
