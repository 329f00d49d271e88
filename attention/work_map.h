// How a batch's attention is cut into pieces of even size: one map a step and layer class, used by all its layers.
//
// An item is (query range of a row, key range of that row). Items are dealt round-robin to a fixed number of CTAs
// together with the kv heads: unit u = item * num_kv_heads + kv_head runs on CTA u % num_ctas. A row whose keys are cut into several items
// leaves float32 partials (out, lse) in the workspace, and a merge entry says which partials make which queries.
// The map is data on the device, made each step from seq_lens, so a captured graph follows the lengths of the day;
// only the plan (capacities, tile and workspace sizes) is fixed under capture.
//
//   WorkMapPlan plan = PlanWorkMap({.num_q_heads = 32, .num_kv_heads = 8, .head_dim_v = 128, .max_rows = 64, ...});
//   // allocate plan.workspace_bytes once; then each step, on the device or here on the host:
//   BuildWorkMap(plan, batch, layer_window, map);
//
// BuildWorkMap is one piece of code for host and device. The CPU path of PagedAttention needs no map: WorkMap{} will do.
//
// Invariants of a map, checked by CheckWorkMap():
//   1. The items of a row and query range cover exactly the keys that any of its queries may see, without overlap.
//   2. num_items <= max_items, num_merges <= max_merges, partial indices < max_partials and distinct.
//   3. An item with partial < 0 is alone for its queries and writes out directly; else a merge entry names its partial.
//   4. In deterministic mode the cut of a row depends on that row's own lengths alone.
//
// Thread safety: a map is written by one kernel and read by later ones on the same stream.

#ifndef ATTENTION_WORK_MAP_H_
#define ATTENTION_WORK_MAP_H_

#include <cstdint>

namespace reprise {

struct WorkItem {
  int32_t row;
  int32_t query_begin, query_end;  // within the row
  int32_t key_begin, key_end;      // local keys, half-open; may be empty
  int32_t partial;                 // -1: the item writes out itself
};

struct WorkMerge {
  int32_t row;
  int32_t query_begin, query_end;
  int32_t first_partial, num_partials;  // consecutive, in key order
};

// Views of the map's storage, all on the device of the queries.
struct WorkMap {
  const WorkItem* items = nullptr;     // [max_items]
  const WorkMerge* merges = nullptr;   // [max_merges]
  const int32_t* counts = nullptr;     // [2] num_items, num_merges
  float* partial_out = nullptr;        // [max_partials, tile_queries, num_q_heads, head_dim_v]
  float* partial_lse = nullptr;        // [max_partials, tile_queries, num_q_heads]
  int max_items = 0;
  int max_merges = 0;
  int max_partials = 0;
  int tile_queries = 0;  // the most queries of an item
  int num_ctas = 0;
};

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_H_
