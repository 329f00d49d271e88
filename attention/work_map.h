// How a batch's attention is cut into pieces of even size: one map a step and layer class, used by
// all its layers.
//
// An item is (query range of a row, key range of that row). Items stand in the order of rows,
// queries and keys, and are dealt in that order to columns of equal cost; a column is
// `heads_per_column` CTAs side by side, one a head, that work through the column's items together.
// A row whose keys reach over several columns leaves float32 partials (out, lse) in the workspace,
// and a merge entry says which partials make which queries: the CTA that is the last to arrive at a
// merge does it.
//
//   column        |--- 0 ---|--- 1 ---|--- 2 ---|      cost: key steps, and a bit for each tile
//   rows          aaaabbbbbbbbbbbbbbbbbbbbccccdd       b is cut in two places: 3 items, 1 merge
//
// Shared prefix (cascade). A map planned for it takes the hint of PagedBatch::common_prefix_len:
// keys that all rows have in common are read once for every tile_queries tokens, by shared items
// whose queries are of several rows; the rows' own items begin behind them, and the partials of
// both are merged like those of split keys. Only keys that every live query sees are shared, in
// whole steps, and none of a row's tail or of its own new tokens; not with a window to the left,
// under context parallelism, or in deterministic mode, where the result would depend on the
// company.
//
// Rows of few queries beside long ones. A plan whose longest rows want larger tiles of q than a
// decode has a map for each: rows of few queries in `short_rows`, the others in `main`, and a
// kernel for each in every call. What is short follows from the row's queries alone; but where a
// batch's bounds say that all rows are alike (RowSplit::kByBatch), one map has them all and its
// kernel is the only one.
//
// The map is data on the device, made each step from seq_lens, so a captured graph follows the
// lengths of the day; only the plan (capacities, tile and workspace sizes) is fixed under capture:
// attention/work_map_plan.h. The builders are in attention/work_map_build.h (host) and
// attention/work_map_cuda.h (device). The CPU path of PagedAttention needs no map: WorkMap{} will
// do.
//
// Invariants of a map, checked by CheckWorkMap() (attention/work_map_check.h):
//   1. The items of a row and query range, after the shared items over its queries, cover the keys
//      from the first to the last that any of its queries may see, without gap or overlap, and no
//      others. (A sparse pattern is not looked at.)
//   2. Every query of every row is in items of exactly one query range, also if it sees no key.
//   3. Counts are within the capacities; partials are below max_partials and distinct.
//   4. An item with partial < 0 is alone for its queries and writes out directly; else its merge
//      entry names its partials.
//   5. Columns hold the items in order, each item in one column.
//   6. In deterministic mode the cut of a row depends on that row's own data alone.
//
// Thread safety: a map is written by one kernel and read by later ones on the same stream. Kernels
// that use one map (its partials and merge counters) must not run at the same time.

#ifndef ATTENTION_WORK_MAP_H_
#define ATTENTION_WORK_MAP_H_

#include <cstdint>

#include "base/dtype.h"

namespace reprise {

enum class WorkMapMode : int32_t {
  kBalanced,  // rows are cut wherever that makes the columns even
  // A row is cut by its own data alone, so that it gives the same bits whatever else is in the
  // batch: in at most kMaxDeterministicSplits pieces of at least kMinDeterministicSteps steps.
  kDeterministic,
};

// Which map of a plan with two has a row.
enum class RowSplit : int32_t {
  // Where the batch's bounds say that its rows are all of them long, or hardly longer than short
  // rows, `main` has them all: a kernel less. The builder and attention must be given batches of
  // the same num_rows, num_tokens and max_query_len.
  kByBatch,
  kByRow,  // by the row's queries alone; what deterministic mode takes
};

// Cuts stand at multiples of so many local keys: what a CTA loads at a time.
inline constexpr int kWorkStepKeys = 64;

// What a step costs in the units of TileMap::tile_cost.
inline constexpr int kStepCost = 8;

inline constexpr int kMaxDeterministicSplits = 16;
inline constexpr int kMinDeterministicSteps = 8;

// All that a CTA has to know of its work, in one piece of 96 bytes: it reads no array of the batch
// but the block table, and per-token ones.
struct alignas(16) WorkItem {
  // kSharedRow: a shared item, whose queries are of several rows, each of which sees all its keys.
  int32_t row;
  int32_t query_begin, query_end;  // within the row; of a shared item from 0
  int32_t key_begin, key_end;      // local keys, half-open; may be empty
  // Of its first query, the others' follow. -1: the item writes out itself, and the next three mean
  // nothing.
  int32_t partial;
  int32_t merge;          // of a shared item -1
  int32_t first_partial;  // of the query range's own keys
  int32_t num_partials;   // of a query

  int32_t first_token;     // of query_begin, in q and out
  int32_t first_position;  // p() of query_begin where query_positions is absent
  int32_t key_start;       // position of local key 0 in an ordinary batch
  int32_t first_key;       // where local key 0 is: in the table row, or in ragged k and v
  int32_t table_row;
  int32_t tail_len;
  int32_t prefix_len;  // keys before the tail
  int32_t query_len;   // of the row

  // Of query_begin in the first shared item over it, tile_queries further on in the next; merged
  // before the range's own. None if there are 0.
  int32_t first_shared_partial, num_shared_partials;
  // Of a shared item: the items, those of whole ranges, that are merged with it.
  int32_t first_child, end_child;

  friend bool operator==(const WorkItem&, const WorkItem&) = default;
};

inline constexpr int32_t kSharedRow = -1;

// A range in more than kMostPiecesAtOnce pieces may be merged in two levels: kMergeGroup pieces at
// a time, then the groups.
inline constexpr int kMergeGroup = 16;
inline constexpr int kMostPiecesAtOnce = 32;

// Floats from a partial's out to that of the next q head: whole chunks of 4.
constexpr int PartialPitch(int head_dim_v) { return (head_dim_v + 3) / 4 * 4; }

struct WorkMerge {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t first_partial;  // of query_begin; those of a query are query_end - query_begin apart
  int32_t num_partials;   // of a query, in key order, without shared ones
};

// The map for one size of tile, that is, for one kernel: views of its storage, all on the device of
// the queries, and what the plan fixed.
struct TileMap {
  WorkItem* items = nullptr;        // [max_items]
  WorkMerge* merges = nullptr;      // [max_merges]
  int32_t* counts = nullptr;        // [2] num_items, num_merges
  int32_t* column_items = nullptr;  // [num_columns + 1] first item of each column
  // [num_columns] the same items again, of columns that have any: found without looking them up.
  WorkItem* column_first = nullptr;
  // [max_merges, num_virtual_heads] arrivals; zero between kernels.
  uint32_t* arrivals = nullptr;
  // [max_partials, num_virtual_heads] arrivals at groups of pieces, at a group's first partial;
  // zero between kernels.
  uint32_t* group_arrivals = nullptr;
  float* partial_out = nullptr;  // [max_partials, num_q_heads, PartialPitch(head_dim_v)]
  float* partial_lse = nullptr;  // [max_partials, num_q_heads] base 2
  void* scratch = nullptr;       // of the builder

  // Capacities.
  int max_rows = 0;
  int max_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;
  int max_tiles = 0;         // query ranges, the shared ones included
  int max_shared_tiles = 0;  // 0: common prefixes are not looked at
  int max_items = 0;
  int max_merges = 0;
  int max_partials = 0;  // of one query each

  DType dtype = DType::kBFloat16;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  int tile_rows = 0;      // rows of a kernel's tile: queries times heads of a group
  int tile_cost = 0;      // what a tile takes beside its keys; a step takes kStepCost
  int merges_a_step = 0;  // partials that are added up in the time of a step; in kStepCost-ths
  int tile_queries = 0;   // the most queries of an item
  // kv heads, times the tiles that the heads of a group fill if they are more than tile_rows.
  int num_virtual_heads = 0;
  int heads_per_column = 0;
  int num_columns = 0;
  int num_ctas = 0;  // heads_per_column * num_columns: the grid of the kernels
  WorkMapMode mode = WorkMapMode::kBalanced;
};

// MakeWorkMap() of attention/work_map_plan.h makes it from a plan and a workspace.
struct WorkMap {
  // Rows of at most short_rows.max_query_len queries; num_ctas is 0 if the plan has no such map.
  TileMap short_rows;
  TileMap main;  // the other rows
  RowSplit split = RowSplit::kByBatch;

  bool has_short_rows() const { return short_rows.num_ctas > 0; }
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_H_
