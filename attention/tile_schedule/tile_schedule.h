// Tile schedule: how a batch's attention is divided among the CTAs of a kernel. One schedule per
// step and layer class, used by all layers of the class.
//
// A query range of a row is a Q tile, and kWorkStepKeys keys are a KV tile. A work item is a pair
// (Q tile, key range). The key ranges of a Q tile are its KV splits. Items are ordered by row,
// query and key, and assigned in that order to CTA queues of equal cost. A queue is processed by
// `heads_per_queue` CTAs, each with its own heads, so all of them process each item. If a Q tile
// has several splits, each split writes a float32 partial (out, lse) to the workspace, unless they
// are combined in a cluster (see below). A combine entry (TileCombine) lists the partials of each
// query. Either the last CTA to finish combines them, or all contributing CTAs do so together.
//
// In identifiers, `dealt` means round-robin, `step` means KV tile, `cut` means split, `range` means
// Q tile, and `merge` means combine.
//
// Worked example: decode of five rows, with one KV head and four queues. A Q tile costs 4.
//
//   row               a     b      c     d     e
//   keys            500    64   1000   100   300
//   KV tiles          8     1     16     2     5   of kWorkStepKeys = 64 keys
//   cost             68    12    132    20    44   KV tiles * kStepCost + 4; 276 in all
//   cost before       0    68     80   212   232
//   KV tiles at       4    72     84   216   236   cost before, plus 4 for the Q tile
//   queue width: 276 / 4, rounded up to whole KV tiles: 9 KV tiles = 72; borders at 72, 144, 216
//   a KV tile is in the queue in which it begins: 8 of c's KV tiles begin before 144, 8 after it
//   queue 0 [  0,  72)   item 0: a [0, 500)
//   queue 1 [ 72, 144)   item 1: b [0, 64)               item 2: c [0, 512) -> partial 0
//   queue 2 [144, 216)   item 3: c [512, 1000) -> partial 1
//   queue 3 [216, 288)   item 4: d [0, 100)              item 5: e [0, 300)
//   combine 0: c = partial 0 + partial 1, by the CTA of queue 1 or 2 that finishes last
//
// Round-robin. If there are enough Q tiles for all CTAs, as in prefill, splitting costs more than
// it balances. Then no Q tile is split, and the (item, head) pairs are assigned to the CTAs
// round-robin, longest items first: attention/tile_schedule/cta_units.h. The builder chooses by
// cost. Only schedules in balanced mode, without a shared prefix, whose kernel supports it
// (AttentionKernelEntry::may_be_dealt()) use it. Decode rows are memory bound and prefill rows are
// compute bound. If a round-robin schedule has both, and their lengths are comparable, odd CTAs
// process their tiles in reverse order (AreDealtBothWays()). The two kinds then overlap.
//
// Even splits. If Q tiles have similar lengths, Stream-K borders make splits of uneven size, and
// every split must be combined. Then the builder splits each Q tile evenly, or not at all. Example:
// 64 equal rows use 32 of 33 queues, two rows each, and the last queue is empty. The choice depends
// on the costs (attention/tile_schedule/tile_schedule_cut.h).
//
// Clusters. Combining through global memory takes 1 to 2 us. For some batches with few rows, the
// kernel is launched in clusters of CTAs of the same head and adjacent queues (ClusterOf()). The
// builder may then assign a cluster to each Q tile. Each CTA of the cluster has at most one split,
// and the CTAs reduce the splits through distributed shared memory (DSMEM).
//
// Wide CTAs. A single row with one KV head cannot use all SMs: splitting it further costs more in
// combining than it saves. Then the kernel's CTAs have twice the warps, and there is at most one
// CTA per SM (IsWide()).
//
// Shared prefix (cascade). A schedule planned for it uses the hint PagedBatch::common_prefix_len.
// Keys that all rows have in common are read once per tile_queries tokens, by shared items whose
// queries belong to several rows. The rows' own items begin after those keys, and the partials of
// both are combined like those of KV splits. Shared keys are whole KV tiles that are visible to
// every live query. A row's tail and new tokens are never shared. Prefixes are not shared with a
// left window, with custom masks, under context parallelism, or in deterministic mode, where the
// result would depend on the other rows.
//
// Partials by queue. In deterministic mode, rows are split even if the other rows already fill the
// card, so large batches would need many partials. But most Q tiles are then in a single queue.
// Its CTA combines a tile before it starts the next one, so both can use the same partial slots. At
// most one more tile, which continues in the next queue, needs extra slots. A plan that would need
// more partials than that therefore gives each queue slots for two Q tiles: one set for the tiles
// that end in the queue, one after the other, and one set for the tile that continues in the next
// queue. The splits, and therefore the results, are bitwise identical.
//
// Short and long rows. If the longest rows of a plan need larger kernel tiles than a decode, the
// plan has two schedules: short rows (few queries) are in `short_rows`, the others in `main`. Every
// call then launches one kernel for each. The number of queries decides whether a row is short.
// However, if a batch's bounds show that all rows belong to one schedule, or that the rows have few
// keys (RowAssignment::kByBatch), all rows are in one schedule, and only its kernel is launched.
//
// The schedule is data on the device, built in each step from seq_lens, so a captured graph adapts
// to the current lengths. Only the plan (capacities, kernel tile and workspace sizes) is fixed
// under capture: attention/tile_schedule/tile_schedule_plan.h.
// attention/tile_schedule/tile_schedule_build.h builds the schedule.
//
// Invariants of a schedule, checked by CheckTileSchedule()
// (attention/tile_schedule/tile_schedule_check.h):
//   1. The items of a Q tile, together with the shared items over its queries, cover the keys from
//      the first to the last that any of its queries may see, without gap or overlap, and no other
//      keys. (Sparse patterns are ignored.)
//   2. Every query of every row is in the items of exactly one Q tile, even if it sees no key.
//   3. Counts are within the capacities. Partials are below max_partials and distinct. Exception:
//      with partials by queue, Q tiles that are in the same queue only may share them.
//   4. An item with partial < 0 is the only item of its queries and writes out directly. For other
//      items the combine entry lists the partials. is_joint follows CombinesCooperatively().
//   5. Queues hold the items in order, each item in one queue. Round-robin items are unsplit
//      Q tiles, each once in deal_order.
//   6. In deterministic mode the splits of a row depend only on that row's data.
//   7. If Q tiles have clusters, Q tile t has at most ClusterOf() splits, one per queue, beginning
//      with queue t * ClusterOf(). If the kernel has wide CTAs, only the first wide_queues queues
//      have items.
//
// Thread safety: a schedule is written by one kernel and read by later ones on the same stream.
// Kernels that use the same schedule (its partials and arrival counters) must not run concurrently.

#ifndef REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_H_
#define REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_H_

#include <cstdint>

#include "reprise/attention/kernel_choice.h"
#include "reprise/base/dtype.h"
#include "reprise/base/host_device.h"

namespace reprise {

enum class TileScheduleMode : int32_t {
  kBalanced,  // rows are split wherever that balances the queues
  // A row is split by its own data only, so its results are bitwise independent of the rest of the
  // batch. Each of a row's n Q tiles has at most max_splits / n splits (at least 1), and at most
  // one per kMinDeterministicSteps KV tiles, rounded up. In rows of at most decode_query_len
  // queries, each query is split like a row of one query, so its results are also bitwise
  // independent of the row's other queries.
  kDeterministic,
};

// How rows are assigned to the plan's two schedules.
enum class RowAssignment : int32_t {
  // Puts all rows into `main`, which saves a launch, if the batch's bounds show one of: all rows
  // are long; long rows are barely longer than short ones; the rows have few keys
  // (TileSchedule::max_joined_steps). Batches with few rows run in clusters. All calls with a
  // BatchSchedule must have batches with the same num_rows, num_tokens, max_query_len and
  // max_seq_len, and a window that is not wider. CheckBatchSchedule() rejects calls that the
  // schedule would not fit.
  kByBatch,
  kByRow,  // by the row's number of queries only; deterministic mode uses this
};

// Keys per KV tile of the schedule. A Q tile is split at multiples of it (local keys).
inline constexpr int kWorkStepKeys = 64;

// The cost of a KV tile, in the unit of CutCosts.
inline constexpr int kStepCost = 8;

inline constexpr int kMaxDeterministicSplits = 16;
inline constexpr int kMinDeterministicSteps = 8;

// Everything that a CTA needs to know about its work, in 96 contiguous bytes. From the batch the
// CTA reads only the block table, per-token arrays and custom masks, and the rows of shared items.
struct alignas(16) WorkItem {
  // kSharedRow: a shared item. Its queries belong to several rows, and all of them see all its
  // keys.
  int32_t row;
  int32_t query_begin, query_end;  // within the row; 0-based in a shared item
  int32_t key_begin, key_end;      // local keys, half-open; may be empty
  // The partial of the item's first query; the partials of its other queries follow. -1: the item
  // writes its result to out, and the next three fields are unused.
  int32_t partial;
  int32_t merge;          // -1 in a shared item
  int32_t first_partial;  // first partial of the Q tile's own keys
  int32_t num_partials;   // per query
  int32_t is_joint;  // 1: all CTAs that have these partials combine them: CombinesCooperatively()

  int32_t first_token;     // index of query_begin in q and out
  int32_t first_position;  // p() of query_begin if query_positions is absent
  int32_t key_start;       // position of local key 0 in an ordinary batch
  int32_t first_key;       // index of local key 0 in the table row, or in ragged k and v
  int32_t table_row;
  int32_t tail_len;
  int32_t prefix_len;  // keys before the tail
  int32_t query_len;   // of the row

  // The partial of query_begin in the first shared item over it; in the next shared item it is
  // tile_queries later. Combined before the Q tile's own partials.
  int32_t first_shared_partial, num_shared_partials;
  // Shared items only: the items of the Q tiles whose results are combined with this item's.
  int32_t first_child, end_child;

  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

inline constexpr int32_t kSharedRow = -1;

// A Q tile with more than kMaxSplitsAtOnce splits may be combined in two levels: first groups of
// kCombineGroup splits, then the groups.
inline constexpr int kCombineGroup = 16;
inline constexpr int kMaxSplitsAtOnce = 32;

// Maximum number of splits in a cooperative combine (attention/cuda/decode/cooperative_combine.h).
inline constexpr int kMaxJointSplits = 128;

// Floats between the out partials of adjacent q heads: head_dim_v, rounded up to whole chunks of 4.
constexpr int PartialPitch(int head_dim_v) { return (head_dim_v + 3) / 4 * 4; }

struct TileCombine {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t first_partial;  // belongs to query_begin; splits are query_end - query_begin apart
  int32_t num_partials;   // per query, in key order, without shared partials
};

// The largest cluster size that every card with clusters supports.
inline constexpr int kMaxClusterQueues = 8;

// TileScheduleCosts (attention/device_profile.h) for one kernel tile. Costs have the unit of
// kStepCost.
struct CutCosts {
  int tile = 0;               // a Q tile, without its keys
  int combines_per_step = 0;  // partials combined in the time of a KV tile, times kStepCost
  int merge = 0;              // a combine through global memory
  int combine_level_steps = 0;
  // The borders of a Stream-K queue cost at least `border`, and at least this percentage of its
  // width, divided by its number of Q tiles.
  int border = 0;
  int border_percent = 0;
  // Whether Q tiles are memory bound. Then idle CTAs cost nothing.
  bool is_bound_by_reading = false;
  int ctas_per_sm = 1;
  int lone_percent = 100;  // the time of a KV tile if the SM has only one CTA
  int cluster_steps = 0;
  int joint_splits = 0;
  int joint_keys = 0;
  int both_ways_steps = 0;
  int wide_keys = 0;
};

// The schedule for one kernel tile size, that is, for one kernel: views of its storage, all on the
// device of the queries, and the values that the plan fixed.
struct KernelSchedule {
  WorkItem* items = nullptr;      // [max_items]
  TileCombine* merges = nullptr;  // [max_merges]
  // [kNumMapCounts] num_items; num_merges; number of round-robin items (all or none); whether odd
  // CTAs process their round-robin units in reverse (0 or 1); whether Q tiles have clusters (0 or
  // 1).
  int32_t* counts = nullptr;
  int32_t* queue_items = nullptr;  // [num_queues + 1] first item of each queue
  // [num_queues + 1] at c / heads_per_queue, the item with which CTA c begins, if there is one.
  // Exception: a CTA that processes its units in reverse begins with another item. Saves a
  // dependent read.
  WorkItem* queue_first = nullptr;
  // [max_merges, num_head_tiles] arrival counters, in the format of
  // attention/cuda/decode/cooperative_combine.h; zero between kernels.
  uint32_t* arrivals = nullptr;
  // [max_partials, num_head_tiles] arrival counters of groups of splits, at a group's first
  // partial; zero between kernels.
  uint32_t* group_arrivals = nullptr;
  float* partial_out = nullptr;  // [max_partials, num_q_heads, PartialPitch(head_dim_v)]
  float* partial_lse = nullptr;  // [max_partials, num_q_heads] base 2
  void* scratch = nullptr;       // used by the builder only

  // Capacities.
  int max_rows = 0;
  int max_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;
  int max_tiles = 0;         // Q tiles, including shared ones
  int max_shared_tiles = 0;  // 0: common prefixes are ignored
  int max_items = 0;
  int max_merges = 0;
  int max_partials = 0;  // one query each
  // Deterministic mode: maximum number of partials per Q tile if they are by queue. 0: each Q tile
  // has its own partials.
  int queue_partials = 0;

  DType dtype = DType::kBFloat16;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int tile_rows = 0;     // rows of the kernel tile: queries times q heads per KV head
  int tile_queries = 0;  // maximum number of queries per item
  // Minimum number of queries for the cooperative combine (CombinesCooperatively()). 0: the tile's
  // kernels do not support it.
  int min_joint_queries = 0;
  // Number of head tiles: KV heads, times the kernel tiles per KV head if its q heads exceed
  // tile_rows.
  int num_head_tiles = 0;
  int heads_per_queue = 0;
  int num_queues = 0;
  // [n]: how many clusters of n queues of a head can be resident at once; 0: none. [2] is the
  // largest.
  int clusters_of[kMaxClusterQueues + 1] = {};
  // Batches of at most this many rows may have a kernel of wide CTAs, one per SM, which then has
  // wide_queues queues. 0: there is no such kernel. IsWide().
  int max_wide_rows = 0;
  int wide_queues = 0;
  // The grid of the kernels, without clusters or wide CTAs: heads_per_queue * num_queues, or, if
  // items may be round-robin, all CTAs that can be resident at once.
  int num_ctas = 0;
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  int max_splits = kMaxDeterministicSplits;  // deterministic mode only
  int decode_query_len = 1;  // deterministic mode only: TileScheduleOptions::decode_query_len

  bool may_be_dealt = false;
  // [max_tiles] if may_be_dealt: the round-robin items, longest first
  int32_t* deal_order = nullptr;
  CutCosts costs;
};

inline constexpr int kNumMapCounts = 5;

// A split of at most this many KV tiles has all of its keys in flight at once. Splitting it further
// gains nothing.
inline constexpr int kStepsUnderWay = 2;

// Maximum number of keys that a Q tile of a causal batch may see, by the plan's bounds and the
// window.
inline int MaxKeys(const KernelSchedule& schedule, int window_left) {
  if (window_left < 0 || window_left >= schedule.max_seq_len - schedule.max_query_len)
    return schedule.max_seq_len;
  return window_left + schedule.max_query_len;
}

// The number of queues that form a cluster in the kernel for a batch of `num_rows` rows; 1: the
// kernel has no clusters. The choice compares the longest split in a cluster with that of an even
// split that is combined through global memory. Clusters of more than 2 leave some queues unused,
// so they only serve rows with few keys (CutCosts::cluster_steps). Clusters of 2 use all queues, or
// all but one.
inline int ClusterOf(const KernelSchedule& schedule, int num_rows, int window_left) {
  if (num_rows < 1 || num_rows > schedule.clusters_of[2]) return 1;
  const int keys = MaxKeys(schedule, window_left);
  const int steps = (keys + kWorkStepKeys - 1) / kWorkStepKeys;
  if (steps <= kStepsUnderWay) return 1;
  const auto split = [](int steps, int queues) {
    const int even = (steps + queues - 1) / queues;
    return even > kStepsUnderWay ? even : kStepsUnderWay;
  };
  // A window may begin within a KV tile.
  const int touched = steps + (keys < schedule.max_seq_len ? 1 : 0);
  int best = 1;
  int64_t end =
      int64_t{split(steps, schedule.num_queues / num_rows)} * kStepCost + schedule.costs.merge;
  for (int cluster = 2; cluster <= kMaxClusterQueues; ++cluster) {
    const int longest = split(touched, cluster);
    if (num_rows > schedule.clusters_of[cluster] || int64_t{longest} * kStepCost > end) continue;
    if (cluster > 2 && longest > schedule.costs.cluster_steps) continue;
    best = cluster;
    end = int64_t{longest} * kStepCost - 1;  // a larger cluster must be better
  }
  return best;
}

// The queues of the clusters of this size that are resident at once; without clusters, all queues.
REPRISE_HOST_DEVICE inline int QueuesInUse(const KernelSchedule& schedule, int cluster) {
  return cluster > 1 ? cluster * schedule.clusters_of[cluster] : schedule.num_queues;
}

// Whether to launch wide CTAs. A wide CTA keeps three times the keys in flight, at half the
// occupancy. Used without clusters, for few rows (max_wide_rows) whose Q tiles may have more than
// CutCosts::wide_keys keys. `cluster`: ClusterOf().
inline bool IsWide(const KernelSchedule& schedule, int cluster, int num_rows, int window_left) {
  return cluster == 1 && num_rows > 0 && num_rows <= schedule.max_wide_rows &&
         MaxKeys(schedule, window_left) > schedule.costs.wide_keys;
}

// How the kernel for a KernelSchedule is launched: queues per cluster (ClusterOf()), and whether
// its CTAs are wide (IsWide()).
struct LaunchForm {
  int cluster = 1;
  bool is_wide = false;
};

// The queues that have items if the kernel is launched in this form.
REPRISE_HOST_DEVICE inline int QueuesOf(const KernelSchedule& schedule, const LaunchForm& form) {
  return form.is_wide ? schedule.wide_queues : QueuesInUse(schedule, form.cluster);
}

// Made by MakeTileSchedule() (attention/tile_schedule/tile_schedule_plan.h) from a plan and a
// workspace.
struct TileSchedule {
  // Rows of at most short_rows.max_query_len queries; num_ctas is 0 if the plan has only `main`.
  KernelSchedule short_rows;
  KernelSchedule main;  // the other rows
  RowAssignment row_assignment = RowAssignment::kByBatch;
  KernelChoice kernels = {};
  // kByBatch: if a batch of short and long rows has at most this many KV tiles by its bounds
  // (num_rows times those of max_seq_len), all rows are in `main`.
  int64_t max_joined_steps = 0;
  // The same limit for a batch whose long rows may have at least one Q tile per three rows of the
  // batch.
  int64_t max_joined_steps_beside_prompts = 0;
  int joined_short_rows = 0;  // TileScheduleCosts::joined_short_rows

  bool has_short_rows() const { return short_rows.num_ctas > 0; }
};

// The work of one batch: a schedule, and the launch decisions that follow from the batch's bounds
// on the host. The schedule's builder and all attention calls of the batch get the same value, from
// WorkOf() (attention/tile_schedule/tile_schedule_build.h), so a captured graph keeps the value of
// its capture. A schedule holds the work of one batch at a time: a value is valid from its build to
// the next build of the same schedule. The CPU needs no work: pass BatchSchedule{}.
struct BatchSchedule {
  TileSchedule schedule;
  LaunchForm main_form = {};   // launches the kernel for schedule.main
  LaunchForm short_form = {};  // launches the kernel for schedule.short_rows
  int num_rows = 0;
  // Rows of at most this many queries are in schedule.short_rows. 0: all rows are in schedule.main.
  int longest_short_row = 0;
  int window_left = -1;  // the window of the build; -1: none
  int window_right = -1;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TILE_SCHEDULE_TILE_SCHEDULE_H_
