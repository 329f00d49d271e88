// A unit is what a CTA processes at a time: an item of the tile schedule for one head tile, with
// the values of the item's row.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_WORK_UNIT_CUH_
#define REPRISE_ATTENTION_CUDA_GENERAL_WORK_UNIT_CUH_

#include <climits>
#include <cstdint>

#include "reprise/attention/cuda/general/attention_kernel_params.h"
#include "reprise/attention/cuda/general/device_primitives.cuh"
#include "reprise/attention/tile_schedule/tile_schedule.h"

namespace reprise {

// The same for all threads of the CTA.
struct __align__(16) WorkUnit {
  WorkItem item;
  int head_tile;
  int kv_head;
  int first_row;      // first row of the tile among the item's rows (queries x group heads)
  int num_rows;       // number of rows in the tile
  // The factors of the dot product that all rows have in common; in a shared item only p.scale.
  float logit_scale;
  float v_scale;  // 1 in a shared item
  // Factors for the logits and weights of new keys, to which the cache's scales do not apply. Only
  // kernels of KvLoading::kConverted use them.
  float new_k_factor, new_v_factor;
};

__device__ __forceinline__ float ScaleAt(const Scale& scale, int table_row, int kv_head) {
  if (scale.data == nullptr) return scale.value;
  return scale.data[table_row * scale.row_stride + kv_head * scale.head_stride];
}

// Starts copying an item to unit.item. Called by at least one full warp; the first few threads
// copy.
__device__ __forceinline__ void LoadItem(const WorkItem* from, WorkUnit& unit) {
  static_assert(sizeof(WorkItem) % 16 == 0);
  if (threadIdx.x >= sizeof(WorkItem) / 16) return;
  CopyAsync16(SharedAddress(&unit.item) + threadIdx.x * 16,
              reinterpret_cast<const char*>(from) + threadIdx.x * 16, true);
}

// Computes the fields that are not in the item. Called by one thread.
template <typename Traits>
__device__ __forceinline__ void CompleteUnit(const AttentionKernelParams& p, int head_tile,
                                             WorkUnit& unit) {
  int kv_head = head_tile;
  unit.first_row = 0;
  if (p.work.num_head_tiles != p.num_kv_heads) {  // rare, and divisions are slow
    const int head_tiles = p.work.num_head_tiles / p.num_kv_heads;
    kv_head = head_tile / head_tiles;
    unit.first_row = (head_tile - kv_head * head_tiles) * Traits::kRows;
  }
  const int num_rows = (unit.item.query_end - unit.item.query_begin) * p.group_size;
  unit.head_tile = head_tile;
  unit.kv_head = kv_head;
  unit.num_rows = min(Traits::kRows, num_rows - unit.first_row);
  unit.logit_scale = p.scale;
  unit.v_scale = 1.0f;
  unit.new_k_factor = unit.new_v_factor = 1.0f;
  if (unit.item.row == kSharedRow) return;  // its rows may have different scales
  // An item without keys may belong to a padded row, whose other fields are unspecified.
  if (unit.item.key_begin == unit.item.key_end && unit.item.num_shared_partials == 0) return;
  const int table_row = unit.item.table_row;
  const float k_scale = ScaleAt(p.k_scale, table_row, kv_head);
  unit.logit_scale *= ScaleAt(p.q_scale, table_row, kv_head) * k_scale;
  unit.v_scale = ScaleAt(p.v_scale, table_row, kv_head);
  if constexpr (Traits::kConverts) {
    unit.new_k_factor = 1.0f / k_scale;
    unit.new_v_factor = 1.0f / unit.v_scale;
  }
}

// One row of the tile.
struct TileRow {
  int query;  // within the item
  int token;
  int q_head;
};

__device__ __forceinline__ TileRow RowAt(const AttentionKernelParams& p, const WorkUnit& unit,
                                         int row) {
  const int all = unit.first_row + row;
  TileRow tile_row;
  tile_row.query = static_cast<int>(p.by_group_size.Divide(all));
  tile_row.token = unit.item.first_token + tile_row.query;
  tile_row.q_head = unit.kv_head * p.group_size + all - tile_row.query * p.group_size;
  return tile_row;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_WORK_UNIT_CUH_
