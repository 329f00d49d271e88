// What one CTA does at a time: an item of the work map for one head, with its row's data.

#ifndef ATTENTION_KERNELS_WORK_UNIT_CUH_
#define ATTENTION_KERNELS_WORK_UNIT_CUH_

#include <climits>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/work_map.h"

namespace reprise {

// The same for all threads of the CTA.
struct __align__(16) WorkUnit {
  WorkItem item;
  int virtual_head;
  int kv_head;
  int first_row;      // of the tile, among the item's queries times the heads of the group
  int num_rows;       // of the tile
  float logit_scale;  // all factors of the dot product
  float v_scale;
};

__device__ __forceinline__ float ScaleAt(const Scale& scale, int table_row, int kv_head) {
  if (scale.data == nullptr) return scale.value;
  return scale.data[table_row * scale.row_stride + kv_head * scale.head_stride];
}

__device__ __forceinline__ void LoadItem(const WorkItem* from, WorkItem& to) {
  static_assert(sizeof(WorkItem) == 4 * sizeof(int4));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    reinterpret_cast<int4*>(&to)[i] = reinterpret_cast<const int4*>(from)[i];
  }
}

// By one thread.
template <typename Traits>
__device__ __forceinline__ void LoadUnit(const AttentionKernelParams& p, int item_idx,
                                         int virtual_head, WorkUnit& unit) {
  WorkItem item;
  LoadItem(p.work.items + item_idx, item);
  const int head_tiles = p.work.num_virtual_heads / p.num_kv_heads;
  const int kv_head = virtual_head / head_tiles;
  const int first_row = (virtual_head - kv_head * head_tiles) * Traits::kRows;
  unit.item = item;
  unit.virtual_head = virtual_head;
  unit.kv_head = kv_head;
  unit.first_row = first_row;
  unit.num_rows =
      min(Traits::kRows, (item.query_end - item.query_begin) * p.group_size - first_row);
  unit.logit_scale = p.scale;
  unit.v_scale = 1.0f;
  if (item.key_begin == item.key_end) return;  // the rest of a padded row may be garbage
  unit.logit_scale *=
      ScaleAt(p.q_scale, item.table_row, kv_head) * ScaleAt(p.k_scale, item.table_row, kv_head);
  unit.v_scale = ScaleAt(p.v_scale, item.table_row, kv_head);
}

// One row of the tile.
struct TileRow {
  int query;  // of the item
  int token;
  int q_head;
};

__device__ __forceinline__ TileRow RowAt(const AttentionKernelParams& p, const WorkUnit& unit,
                                         int row) {
  const int all = unit.first_row + row;
  TileRow tile_row;
  tile_row.query = all / p.group_size;
  tile_row.token = unit.item.first_token + tile_row.query;
  tile_row.q_head = unit.kv_head * p.group_size + all - tile_row.query * p.group_size;
  return tile_row;
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WORK_UNIT_CUH_
