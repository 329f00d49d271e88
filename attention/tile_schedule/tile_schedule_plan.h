// Capacities and memory of a tile schedule (attention/tile_schedule/tile_schedule.h): planned once,
// fixed under capture.
//
//   REPRISE_ASSIGN_OR_RETURN(
//       TileSchedulePlan plan,
//       PlanTileSchedule({.dtype = DType::kBFloat16, .num_q_heads = 32, .num_kv_heads = 8,
//                    .head_dim_qk = 128, .head_dim_v = 128, .max_rows = 64, .max_tokens = 64,
//                    .max_query_len = 1, .max_seq_len = 8192, .device = limits}));
//   // Allocate plan.workspace_bytes on the device, once. Plans whose schedules are never used
//   // concurrently can share the largest workspace.
//   TileSchedule schedule = MakeTileSchedule(plan, workspace);
//   // then in each step, before the first layer: LaunchTileSchedule(batch, window, schedule,
//   stream)
//
// Two schedules. If the smallest kernel tile holds at least one query but fewer than max_query_len,
// the rows that fit into it get a separate schedule with that tile (TileSchedule::short_rows):
// decodes in a step with prefills, and decode steps that use the schedule of prefills. In
// deterministic mode, rows of at most decode_query_len queries are always included.
// SharedPrefix::kTaken has a single schedule.
//
// Capacities of each schedule. Let T = max_tokens, R = min(max_rows, T), q = tile_queries.
//
//   Q tiles        at most R + min((T - R) / q, R * ((max_query_len - 1) / q))
//   balanced       Q tiles are split at queue borders: at most num_queues - 1 items beyond one per
//                  Q tile, and at most twice that number of splits that write partials
//   deterministic  At most max_splits splits per row write partials. Rows of at most
//                  D = decode_query_len > 1 queries add up to min(T, R * D) Q tiles, each with the
//                  partials of a row. The number of partials is capped at 2 * max_splits * q per
//                  queue, or 2 * max_splits if Q tiles have one query ("Partials by queue" in
//                  tile_schedule.h).
//   kTaken         SharedTiles selects the tile size. Q tiles also end at multiples of q tokens,
//                  there are ceil(T / q) additional shared Q tiles, and every item writes partials.
//
// A Q tile whose keys are in one KV tile is never split. A partial belongs to one query; a split
// has one partial per query.
//
// A plan is a value. Thread safety: const data. Planning does not allocate device memory.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_PLAN_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_PLAN_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/dtype.h"

namespace reprise {

// How PagedBatch::common_prefix_len is used.
enum class SharedPrefix : int8_t {
  kIgnored,
  kTaken,  // keys of a common prefix are read once for several rows; balanced mode only
};

// How many queries read a common prefix together.
enum class SharedTiles : int8_t {
  kLarge,  // the largest kernel tile: reads the prefix least often
  kSmall,  // the tile for max_query_len, e.g. the decode tile: reads the rows' own keys fastest
};

struct TileScheduleOptions {
  DType dtype = DType::kBFloat16;  // type of q: float32, float16, bfloat16 or fp8
  int num_q_heads = 0;             // a multiple of num_kv_heads
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  // Upper bounds for all batches, as in PagedBatch.
  int max_rows = 0;
  int max_tokens = 0;
  int max_query_len = 1;
  int max_seq_len = 0;
  DeviceLimits device = {};
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  // Deterministic mode: maximum number of splits per row, at most kMaxDeterministicSplits; 1: rows
  // are never split.
  int max_splits = kMaxDeterministicSplits;
  // Deterministic mode: in rows of at most this many queries (drafts to verify), each query is
  // computed like a decode: by the same kernel, with the same splits. Its result is bitwise
  // identical to the result of a one-query row with the same keys. Exception: tail_mask and custom
  // masks, for which the kernels accumulate the keys in a different order. Needs up to max_splits
  // partials per query, but at most 2 * max_splits per queue, which large plans need anyway.
  int decode_query_len = 1;
  KernelChoice kernels = {};
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kLarge;          // only with kTaken
  RowAssignment row_assignment = RowAssignment::kByBatch;  // ignored in deterministic mode
  // The costs of the card; nullopt: the costs in ProfileOf(device). Costs do not affect
  // correctness.
  std::optional<TileScheduleCosts> costs = {};
};

struct TileSchedulePlan {
  TileSchedule shape;           // capacities and sizes; pointers are null
  int64_t workspace_bytes = 0;  // schedule_bytes + partial_bytes
  int64_t schedule_bytes = 0;   // the schedule itself, read by all layers of the step
  int64_t partial_bytes = 0;    // partial results of split rows; unused after a layer's kernel
};

// Errors: InvalidArgument, naming the option; Unimplemented if no CUDA kernel supports the dtype,
// head dims and products on this card.
absl::StatusOr<TileSchedulePlan> PlanTileSchedule(const TileScheduleOptions& options);

// The schedule over `workspace`: plan.workspace_bytes of device memory (for TileScheduleOnHost():
// host memory) with any content, aligned to 256 bytes. The caller owns the memory; it must outlive
// graphs that use the schedule.
TileSchedule MakeTileSchedule(const TileSchedulePlan& plan, void* workspace);

// As above, over two allocations: plan.schedule_bytes and plan.partial_bytes. Schedules whose
// kernels never run concurrently, for example those of all layer classes of a step, can share the
// second allocation, which is usually the larger one.
TileSchedule MakeTileSchedule(const TileSchedulePlan& plan, void* schedule_memory,
                              void* partial_memory);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_PLAN_H_
