// How a batch's attention is cut into pieces of even size: one map per step and layer class, used
// by all layers of the class.
//
// An item is (query range of a row, key range of that row). Items are in the order of rows, queries
// and keys, and are dealt in that order to columns of equal cost; a column is `heads_per_column`
// CTAs, one per head, that process the column's items together. A row whose keys are in several
// columns leaves float32 partials (out, lse) in the workspace, and a merge entry says which
// partials make which queries: the last CTA to arrive at a merge performs it, or all that have
// partials of it do.
//
// Worked example: decodes of five rows over one kv head and four columns, whose tiles cost 4.
//
//   row               a     b      c     d     e
//   keys            500    64   1000   100   300
//   steps             8     1     16     2     5   of kWorkStepKeys = 64 keys
//   cost             68    12    132    20    44   steps * kStepCost + 4; 276 in all
//   cost before       0    68     80   212   232
//   steps begin at    4    72     84   216   236   after the tile's own cost
//   a column takes 276 / 4, rounded up to whole steps: 9 steps = 72; borders at 72, 144, 216
//   a step is in the column in which it begins: 8 of c's steps begin before 144, 8 after it
//   column 0 [  0,  72)   item 0: a [0, 500)
//   column 1 [ 72, 144)   item 1: b [0, 64)               item 2: c [0, 512) -> partial 0
//   column 2 [144, 216)   item 3: c [512, 1000) -> partial 1
//   column 3 [216, 288)   item 4: d [0, 100)              item 5: e [0, 300)
//   merge 0: c = partial 0 + partial 1, by the CTA of column 1 or 2 that arrives last
//
// Dealing. Where there are enough query ranges for all CTAs, as in prefill, cuts cost more than
// they even out. Then no range is cut, and instead of columns the CTAs have the (item, head) pairs
// in turns, the longest items first: attention/work_map/cta_units.h. The builder decides by the
// costs; only maps with tiles of kWarpgroupRows rows are dealt, in balanced mode. If a dealt map
// has short rows as well, whose time is that of reading their keys, and these are not much shorter
// than the others, every other CTA takes its units from the last to the first, so that some CTAs
// read while others multiply.
//
// Even pieces. If ranges have similar lengths, cuts at the borders of columns make pieces of many sizes,
// and each piece must be merged. Then the builder cuts each range into even pieces, or does not cut it:
// of 64 equal rows 32 columns have two each, and the last of 33 columns has none. The choice depends on
// the costs (attention/work_map/work_map_cut.h).
//
// Clusters. A merge through memory takes 1 to 2 us. For some batches of few rows the kernel is
// launched in clusters of CTAs of the same head and adjacent columns (ClusterOf()). Then the builder
// may give each range a cluster. Each CTA of the cluster has a piece, and the CTAs add the pieces up by
// reading each other's shared memory.
//
// Wide CTAs. A row of one KV head has more multiprocessors than its keys are worth cutting for. Then
// the kernel's CTAs have twice as many warps, and there are half as many columns (IsWide()).
//
// Shared prefix (cascade). A map planned for it uses the hint PagedBatch::common_prefix_len: keys
// that all rows have in common are read once for every tile_queries tokens, by shared items whose
// queries are from several rows. The rows' own items begin after those keys, and the partials of
// both are merged like those of split keys. Only keys that every live query sees are shared, in
// whole steps, and none of a row's tail or of its own new tokens. Prefixes are not shared with a
// window to the left, under context parallelism, or in deterministic mode, where the result would
// depend on the other rows.
//
// Partials by column. In deterministic mode rows are cut whether or not others keep the CTAs busy, so
// many rows would leave many partials. But the pieces of most ranges are then in one column, whose
// CTAs merge a range before they begin the next one, and the next one's partials may be where its
// were. Of the other ranges at most one begins in a column. So a plan whose rows may be cut into more
// pieces gives each column room for two ranges: for those that end in it, one after the other, and
// for the one that goes on in the next column. The cuts, and so the bits, are the same.
//
// Rows of few queries together with long ones. A plan whose longest rows need larger tiles of q
// than a decode has two maps: rows of few queries are in `short_rows`, the others in `main`, and
// every call launches a kernel for each. Whether a row is short follows from its number of queries;
// but where a batch's bounds say that all rows are alike, or have few keys (RowSplit::kByBatch), one
// map has them all and its kernel is the only one.
//
// The map is data on the device, made each step from seq_lens, so a captured graph adapts to the
// current lengths; only the plan (capacities, tile and workspace sizes) is fixed under capture:
// attention/work_map/work_map_plan.h. attention/work_map/work_map_build.h fills it.
//
// Invariants of a map, checked by CheckWorkMap() (attention/work_map/work_map_check.h):
//   1. The items of a row and query range, together with the shared items over its queries, cover
//      the keys from the first to the last that any of its queries may see, without gap or overlap,
//      and no others. (Sparse patterns are ignored.)
//   2. Every query of every row is in items of exactly one query range, even if it sees no key.
//   3. Counts are within the capacities; partials are below max_partials and distinct, but where
//      they are by column: ranges that are in the same column only may have the same ones.
//   4. An item with partial < 0 is the only one of its queries and writes out directly; otherwise
//      its merge entry names its partials. is_joint follows MergesJointly().
//   5. Columns hold the items in order, each item in one column. Dealt items are whole ranges, each
//      once in deal_order.
//   6. In deterministic mode the cut of a row depends on that row's own data alone.
//   7. If ranges have clusters, range t has the columns from t * ClusterOf() on, one piece in each.
//      If the kernel has wide CTAs, only the first wide_columns columns have items.
//
// Thread safety: a map is written by one kernel and read by later ones on the same stream. Kernels
// that use one map (its partials and merge counters) must not run at the same time.

#ifndef REPRISE_ATTENTION_WORK_MAP_WORK_MAP_H_
#define REPRISE_ATTENTION_WORK_MAP_WORK_MAP_H_

#include <cstdint>

#include "reprise/attention/kernel_choice.h"
#include "reprise/base/dtype.h"
#include "reprise/base/host_device.h"

namespace reprise {

enum class WorkMapMode : int32_t {
  kBalanced,  // rows are cut wherever that makes the columns even
  // A row is cut by its own data alone, so its bits do not depend on the rest of the batch: into at
  // most max_splits pieces of at least kMinDeterministicSteps steps. In rows of at most
  // decode_query_len queries each query is cut as a row of its own, so its bits do not depend on the
  // other queries either.
  kDeterministic,
};

// Which of a plan's two maps has a row.
enum class RowSplit : int32_t {
  // `main` has all rows where the batch's bounds say that all are long, or hardly longer than short
  // ones, or that the rows have few keys (WorkMap::most_joined_steps), which saves a kernel. Batches
  // with few rows run in clusters. All calls with a BatchWork must have batches of the same num_rows,
  // num_tokens, max_query_len and max_seq_len, and no wider window. Attention refuses other calls.
  kByBatch,
  kByRow,  // by the row's number of queries alone; deterministic mode uses this
};

// Cuts are at multiples of this many local keys, which a CTA loads at a time.
inline constexpr int kWorkStepKeys = 64;

// The cost of a step in the unit of CutCosts.
inline constexpr int kStepCost = 8;

inline constexpr int kMaxDeterministicSplits = 16;
inline constexpr int kMinDeterministicSteps = 8;

// All that a CTA needs to know about its work, in 96 contiguous bytes: of the batch it reads only
// the block table and per-token arrays.
struct alignas(16) WorkItem {
  // kSharedRow: a shared item, whose queries are of several rows, each of which sees all its keys.
  int32_t row;
  int32_t query_begin, query_end;  // within the row; in a shared item from 0
  int32_t key_begin, key_end;      // local keys, half-open; may be empty
  // The partial of its first query; those of the others follow. -1: the item writes out itself, and
  // the next three fields are unused.
  int32_t partial;
  int32_t merge;          // -1 in a shared item
  int32_t first_partial;  // of the query range's own keys
  int32_t num_partials;   // per query
  int32_t is_joint;       // 1: all CTAs that have such partials merge them: MergesJointly()

  int32_t first_token;     // of query_begin, in q and out
  int32_t first_position;  // p() of query_begin where query_positions is absent
  int32_t key_start;       // position of local key 0 in an ordinary batch
  int32_t first_key;       // index of local key 0 in the table row, or in ragged k and v
  int32_t table_row;
  int32_t tail_len;
  int32_t prefix_len;  // keys before the tail
  int32_t query_len;   // of the row

  // The partial of query_begin in the first shared item over it; in the next one it is tile_queries
  // later. Merged before the range's own partials.
  int32_t first_shared_partial, num_shared_partials;
  // In a shared item: the items, of whole ranges, that are merged with it.
  int32_t first_child, end_child;

  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

inline constexpr int32_t kSharedRow = -1;

// A range in more than kMostPiecesAtOnce pieces may be merged in two levels: kMergeGroup pieces at
// a time, then the groups.
inline constexpr int kMergeGroup = 16;
inline constexpr int kMostPiecesAtOnce = 32;

// The most pieces of a range that is merged jointly (attention/cuda/decode/joint_merge.h).
inline constexpr int kMostJointPieces = 128;

// The distance, in floats, from a partial's out to that of the next q head: whole chunks of 4.
constexpr int PartialPitch(int head_dim_v) { return (head_dim_v + 3) / 4 * 4; }

struct WorkMerge {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t first_partial;  // of query_begin; a query's partials are query_end - query_begin apart
  int32_t num_partials;   // per query, in key order, without shared ones
};

// The largest cluster that every card with clusters can run.
inline constexpr int kMostClusterColumns = 8;

// WorkMapCosts (attention/device_profile.h) for the tile of a map. Costs have the unit of kStepCost.
struct CutCosts {
  int tile = 0;             // a tile, without its keys
  int merges_per_step = 0;  // partials merged in the time of a step, times kStepCost
  int merge = 0;            // a merge through memory
  int merge_level_steps = 0;
  // The cuts of a filled column cost at least `border`, and at least this percentage of its width.
  int border = 0;
  int border_percent = 0;
  // Whether a tile takes as long as reading its keys. Then CTAs without work cost nothing.
  bool is_bound_by_reading = false;
  int ctas_per_sm = 1;
  int lone_percent = 100;  // the time of a step if the multiprocessor has only one CTA
  int cluster_steps = 0;
  int joint_pieces = 0;
  int joint_keys = 0;
  int both_ways_steps = 0;
  int wide_keys = 0;
};

// The map for one size of tile, that is, for one kernel: views of its storage, all on the device of
// the queries, and the values that the plan fixed.
struct TileMap {
  WorkItem* items = nullptr;    // [max_items]
  WorkMerge* merges = nullptr;  // [max_merges]
  // [kNumMapCounts] num_items, num_merges, number of dealt items (all or none), whether every other
  // CTA takes its dealt units backwards (0 or 1), whether ranges have clusters (0 or 1).
  int32_t* counts = nullptr;
  int32_t* column_items = nullptr;  // [num_columns + 1] first item of each column
  // [num_columns + 1] the item with which CTA c begins, if it has any, at c / heads_per_column:
  // saves a dependent read.
  WorkItem* column_first = nullptr;
  // [max_merges, num_virtual_heads] arrivals, and what attention/cuda/decode/joint_merge.h adds to
  // them; zero between kernels.
  uint32_t* arrivals = nullptr;
  // [max_partials, num_virtual_heads] arrivals at groups of pieces, at a group's first partial;
  // zero between kernels.
  uint32_t* group_arrivals = nullptr;
  float* partial_out = nullptr;  // [max_partials, num_q_heads, PartialPitch(head_dim_v)]
  float* partial_lse = nullptr;  // [max_partials, num_q_heads] base 2
  void* scratch = nullptr;       // used by the builder

  // Capacities.
  int max_rows = 0;
  int max_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;
  int max_tiles = 0;         // query ranges, the shared ones included
  int max_shared_tiles = 0;  // 0: common prefixes are ignored
  int max_items = 0;
  int max_merges = 0;
  int max_partials = 0;  // each of one query
  // Deterministic mode: the most partials of a range, if they are by column; 0: each range has its
  // own.
  int column_partials = 0;

  DType dtype = DType::kBFloat16;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int tile_rows = 0;     // rows of a kernel's tile: queries times heads of a group
  int tile_queries = 0;  // the most queries of an item
  // Ranges of so many queries are merged jointly; 0: the tile's kernels do not. MergesJointly().
  int least_joint_queries = 0;
  // kv heads, times the tiles that the heads of a group fill if there are more than tile_rows.
  int num_virtual_heads = 0;
  int heads_per_column = 0;
  int num_columns = 0;
  // [n]: how many clusters of n columns of a head run at the same time; 0: none. [2] is the largest.
  int clusters_of[kMostClusterColumns + 1] = {};
  // Batches of at most this many rows may have a kernel of wide CTAs, one on a multiprocessor, and
  // then have so many columns; 0: there is none. IsWide().
  int most_wide_rows = 0;
  int wide_columns = 0;
  // The grid of the kernels: heads_per_column * num_columns, or all that fit on the card at a time
  // if items may be dealt.
  int num_ctas = 0;
  WorkMapMode mode = WorkMapMode::kBalanced;
  int max_splits = kMaxDeterministicSplits;  // in deterministic mode
  int decode_query_len = 1;                  // likewise: WorkMapOptions::decode_query_len

  bool may_be_dealt = false;
  int32_t* deal_order = nullptr;  // [max_tiles] if may_be_dealt: the dealt items, longest first
  CutCosts costs;
};

inline constexpr int kNumMapCounts = 5;

// With this many steps or fewer a piece has all of its keys under way at once, and is not worth
// cutting further.
inline constexpr int kStepsUnderWay = 2;

// The most keys of a row that a query range may see, as far as the bounds of a batch tell.
inline int MostKeys(const TileMap& map, int window_left) {
  if (window_left < 0 || window_left >= map.max_seq_len - map.max_query_len) return map.max_seq_len;
  return window_left + map.max_query_len;
}

// The number of columns that form a cluster in the kernel for a batch of `num_rows` rows; 1: the kernel
// has no clusters. The choice compares the longest pieces in a cluster with those of even pieces that are
// merged through memory. Clusters of more than 2 leave some columns unused, so they serve rows of few keys
// only (CutCosts::cluster_steps). Clusters of 2 use all columns, or all but one.
inline int ClusterOf(const TileMap& map, int num_rows, int window_left) {
  if (num_rows < 1 || num_rows > map.clusters_of[2]) return 1;
  const int keys = MostKeys(map, window_left);
  const int steps = (keys + kWorkStepKeys - 1) / kWorkStepKeys;
  if (steps <= kStepsUnderWay) return 1;
  const auto piece = [](int steps, int columns) {
    const int even = (steps + columns - 1) / columns;
    return even > kStepsUnderWay ? even : kStepsUnderWay;
  };
  // A window may begin within a step.
  const int touched = steps + (keys < map.max_seq_len ? 1 : 0);
  int best = 1;
  int64_t end = int64_t{piece(steps, map.num_columns / num_rows)} * kStepCost + map.costs.merge;
  for (int cluster = 2; cluster <= kMostClusterColumns; ++cluster) {
    const int longest = piece(touched, cluster);
    if (num_rows > map.clusters_of[cluster] || int64_t{longest} * kStepCost > end) continue;
    if (cluster > 2 && longest > map.costs.cluster_steps) continue;
    best = cluster;
    end = int64_t{longest} * kStepCost - 1;  // for larger ones
  }
  return best;
}

// The columns of the clusters of that size that run at the same time; without clusters all.
REPRISE_HOST_DEVICE inline int ColumnsInUse(const TileMap& map, int cluster) {
  return cluster > 1 ? cluster * map.clusters_of[cluster] : map.num_columns;
}

// Whether the kernel has wide CTAs, which have three times as many keys under way as others, and half
// as many of them run at the same time: for ranges that are so few that each piece has a
// multiprocessor to itself, and so long that a piece has more keys than others have under way.
// `cluster`: ClusterOf().
inline bool IsWide(const TileMap& map, int cluster, int num_rows, int window_left) {
  return cluster == 1 && num_rows > 0 && num_rows <= map.most_wide_rows &&
         MostKeys(map, window_left) > map.costs.wide_keys;
}

// The launch of the kernel for a TileMap: the columns of a cluster (ClusterOf()), and whether its CTAs
// are wide (IsWide()).
struct LaunchForm {
  int cluster = 1;
  bool is_wide = false;
};

// The columns that have items if the kernel is launched in this form.
REPRISE_HOST_DEVICE inline int ColumnsOf(const TileMap& map, const LaunchForm& form) {
  return form.is_wide ? map.wide_columns : ColumnsInUse(map, form.cluster);
}

// MakeWorkMap() (attention/work_map/work_map_plan.h) makes it from a plan and a workspace.
struct WorkMap {
  // Rows of at most short_rows.max_query_len queries; num_ctas is 0 if the plan has only `main`.
  TileMap short_rows;
  TileMap main;  // the other rows
  RowSplit split = RowSplit::kByBatch;
  KernelChoice kernels = {};
  // kByBatch: a batch of short and long rows that may have at most this many steps of keys, num_rows
  // times those of max_seq_len, has all rows in `main`.
  int64_t most_joined_steps = 0;
  // The same for a batch whose long rows may have at least a third as many query ranges as it has
  // rows.
  int64_t most_joined_steps_beside_prompts = 0;
  int joined_short_rows = 0;  // WorkMapCosts::joined_short_rows

  bool has_short_rows() const { return short_rows.num_ctas > 0; }
};

// The work of one batch: a map, and what the batch's bounds on the host decide about it. The builder
// of the map and all attention calls of the batch get the same value, from WorkOf()
// (attention/work_map/work_map_build.h), so a captured graph keeps the value of its capture. A map holds
// the work of one batch at a time: a value is valid from the build with it to the next build of the map.
// The CPU needs no work: pass BatchWork{}.
struct BatchWork {
  WorkMap map;
  LaunchForm main_form = {};   // launches the kernel for map.main
  LaunchForm short_form = {};  // launches the kernel for map.short_rows
  int num_rows = 0;
  // Rows of at most this many queries are in map.short_rows. 0: all rows are in map.main.
  int longest_short_row = 0;
  int window_left = -1;  // the window of the build; -1: none
  int window_right = -1;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_WORK_MAP_WORK_MAP_H_
