// What one CTA does at a time: an item of the work map for one head, with its row's data.

#ifndef ATTENTION_KERNELS_WORK_UNIT_CUH_
#define ATTENTION_KERNELS_WORK_UNIT_CUH_

#include <climits>
#include <cstdint>

#include "attention/kernels/attention_kernel_params.h"
#include "attention/work_map.h"

namespace reprise {

// The same in all threads of the CTA.
struct WorkUnit {
  WorkItem item;
  int virtual_head;
  int kv_head;
  int first_row;  // of the tile, among the item's queries times the heads of the group
  int num_rows;   // of the tile

  int first_token;  // of the item
  int seq_len;
  int query_len;
  int key_start;  // where positions begin
  int first_key;  // where addresses begin: in the table row, or in ragged k and v
  int tail_len;
  int prefix_len;       // keys before the tail
  int table_row;        // ragged: the row
  float k_logit_scale;  // all factors of the dot product
  float v_scale;
};

__device__ __forceinline__ float ScaleAt(const Scale& scale, int table_row, int kv_head) {
  if (scale.data == nullptr) return scale.value;
  return scale.data[table_row * scale.row_stride + kv_head * scale.head_stride];
}

__device__ __forceinline__ WorkItem LoadItem(const WorkItem* item) {
  static_assert(sizeof(WorkItem) == 2 * sizeof(int4));
  const int4* words = reinterpret_cast<const int4*>(item);
  const int4 a = words[0];
  const int4 b = words[1];
  return {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
}

template <typename Traits>
__device__ __forceinline__ WorkUnit LoadUnit(const AttentionKernelParams& p, int item_idx,
                                             int virtual_head) {
  WorkUnit unit;
  unit.item = LoadItem(p.work.items + item_idx);
  const int row = unit.item.row;
  const int heads_tiles = p.work.num_virtual_heads / p.num_kv_heads;
  unit.virtual_head = virtual_head;
  unit.kv_head = virtual_head / heads_tiles;
  unit.first_row = (virtual_head - unit.kv_head * heads_tiles) * Traits::kRows;
  const int all_rows = (unit.item.query_end - unit.item.query_begin) * p.group_size;
  unit.num_rows = min(Traits::kRows, all_rows - unit.first_row);

  const int row_token = p.query_start_loc[row];
  unit.first_token = row_token + unit.item.query_begin;
  unit.query_len = p.query_start_loc[row + 1] - row_token;
  if (p.key_start_loc) {
    unit.first_key = p.key_start_loc[row];
    unit.seq_len = p.key_start_loc[row + 1] - unit.first_key;
    unit.key_start = 0;
    unit.table_row = row;
  } else {
    unit.seq_len = p.seq_lens[row];
    unit.key_start = p.key_start ? p.key_start[row] : 0;
    unit.first_key = unit.key_start;
    unit.table_row = p.table_row ? p.table_row[row] : row;
  }
  // The rest of a padded row may hold anything.
  const bool padded = unit.item.key_begin == unit.item.key_end;
  unit.tail_len = p.tail_len && !padded ? p.tail_len[row] : 0;
  unit.prefix_len = unit.seq_len - unit.tail_len;
  unit.k_logit_scale = p.scale;
  unit.v_scale = 1.0f;
  if (!padded) {
    unit.k_logit_scale *= ScaleAt(p.q_scale, unit.table_row, unit.kv_head) *
                          ScaleAt(p.k_scale, unit.table_row, unit.kv_head);
    unit.v_scale = ScaleAt(p.v_scale, unit.table_row, unit.kv_head);
  }
  return unit;
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
  tile_row.token = unit.first_token + tile_row.query;
  tile_row.q_head = unit.kv_head * p.group_size + all - tile_row.query * p.group_size;
  return tile_row;
}

}  // namespace reprise

#endif  // ATTENTION_KERNELS_WORK_UNIT_CUH_
