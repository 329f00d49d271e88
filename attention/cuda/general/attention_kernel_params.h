// The parameters of an attention kernel: plain data, passed by value. Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_PARAMS_H_
#define REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_PARAMS_H_

#include <cstdint>

#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/divisor.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Absent arrays are null. Fields are named as in PagedBatch and AttentionParams unless a comment
// states otherwise.
struct AttentionKernelParams {
  // Batch. The items of the tile schedule contain most per-row values. Kernels read
  // query_start_loc, seq_lens and table_row for shared items, which have queries of several rows.
  const int32_t* query_start_loc;
  const int32_t* seq_lens;
  const int32_t* key_start;
  const int32_t* table_row;
  const int32_t* block_table;  // absent: all keys are one block
  int64_t block_table_stride;
  const int32_t* query_positions;
  const uint64_t* tail_mask;
  const uint8_t* custom_mask;
  const int64_t* custom_mask_offset;
  int32_t rank, world, interleave;
  int32_t num_rows;
  int32_t causal;  // 0 or 1

  // Layer.
  int32_t num_q_heads, num_kv_heads, group_size;
  Divisor by_group_size;
  int32_t head_dim_qk, head_dim_v;
  float scale;
  int32_t window_left, window_right;  // -1: none
  float softcap;                      // 0: none
  const float* alibi_slopes;
  int64_t alibi_row_stride;
  const float* sinks;
  Scale q_scale, k_scale, v_scale;
  const float* q_head_scales;
  int32_t rotary_dim;  // 0: none
  float rope_scale, rope_theta;
  int32_t sparse_stride;  // in blocks of the sparse pattern; 0: no sparse pattern
  int32_t sparse_local_blocks, sparse_block_size, sparse_head_step, sparse_tp_rank;

  // Tensors; strides in elements.
  const void* q;
  int64_t q_token_stride, q_head_stride;
  DType q_dtype;
  KvView k, v;  // a ragged batch is one block of all keys
  DType kv_dtype;
  KvAccess k_access, v_access;
  int32_t block_size;
  Divisor by_block_size;
  int32_t num_blocks;
  // New keys and values, which replace the cached ones of the last query_len keys of each row:
  // [num_tokens, num_kv_heads, head_dim] in the MMA type; or null.
  const void* new_k;
  const void* new_v;
  int64_t new_k_token_stride, new_k_head_stride;
  int64_t new_v_token_stride, new_v_head_stride;

  void* out;
  int64_t out_token_stride, out_head_stride;
  DType out_dtype;
  Scale out_scale;  // divisor of out; its strides are 0
  // Block scales of out, which the kernel writes: [num_out_tokens, num_q_heads, head_dim_v /
  // out_block]. Each block of out_block columns of out is divided by its scale. Or null.
  float* out_block_scales;
  int64_t out_block_token_stride, out_block_head_stride;
  int32_t out_block;
  float* lse;  // or null
  int64_t lse_token_stride, lse_head_stride;
  // Tokens of out and of lse (0: no lse); those past the last live one are cleared.
  int64_t num_out_tokens, num_lse_tokens;
  int64_t num_clearable_tokens;  // the larger of the two, or 0 if another kernel of the call clears

  // Whether addresses, strides and head dims allow 16-byte loads.
  int32_t q_is_aligned, new_is_aligned;
  int32_t out_is_aligned;  // whether they allow 4-element stores

  KernelSchedule work;
  int32_t cluster;  // CTA queues per cluster of the launch (LaunchForm)
  int32_t is_wide;  // 1: the launch has wide CTAs (LaunchForm)

  // 1: the previous kernel on the stream is the co-scheduled kernel of the same call, which serves
  // the other rows. It triggers its dependents only after all earlier work has ended
  // (AttentionKernelEntry::lets_sibling_in()), so this kernel waits for it only before its own end.
  int32_t follows_sibling;

  // The last rope_dim dims of K, if they are in a separate tensor (KvLayer::rope); 0: no separate
  // tensor. Only kernels of KvLoading::kConverted read them.
  int32_t rope_dim;
  DType rope_dtype;
  KvView rope;
  Scale rope_part_scale;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_PARAMS_H_
