// The parameters of an attention kernel: plain data, passed by value. Torch-free.

#ifndef REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_PARAMS_H_
#define REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_PARAMS_H_

#include <cstdint>

#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/base/divisor.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Absent arrays are null. Names are those of PagedBatch and AttentionParams unless a comment says
// otherwise.
struct AttentionKernelParams {
  // Batch. Rows come with the items of the map; the arrays below are for items of several rows.
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
  int32_t sparse_stride;  // of the sparse pattern; 0: none
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
  // The last query_len keys of each row, used instead of those in the cache: [num_tokens,
  // num_kv_heads, head_dim] of the products' type; or null.
  const void* new_k;
  const void* new_v;
  int64_t new_k_token_stride, new_k_head_stride;
  int64_t new_v_token_stride, new_v_head_stride;

  void* out;
  int64_t out_token_stride, out_head_stride;
  DType out_dtype;
  Scale out_scale;  // out is divided by it; strides 0
  // [num_out_tokens, num_q_heads, head_dim_v / out_block]: each out_block columns of out are
  // divided by a scale of their own, which is written here; or null.
  float* out_block_scales;
  int64_t out_block_token_stride, out_block_head_stride;
  int32_t out_block;
  float* lse;  // or null
  int64_t lse_token_stride, lse_head_stride;
  int64_t num_out_tokens;  // tokens past the last live one are cleared

  // Whether addresses, strides and head dims allow loads of 16 bytes.
  int32_t q_is_aligned, new_is_aligned;
  int32_t out_is_aligned;  // whether they allow stores of 4 elements

  TileMap work;
  int32_t cluster;  // columns of a cluster of the launch: LaunchForm
  int32_t is_wide;  // whether it has wide CTAs: likewise

  // 1: the kernel before this one on the stream is of the same call, serves other rows, and lets
  // this one in only when all work before both has ended (AttentionKernelEntry::lets_sibling_in()).
  int32_t follows_sibling;

  // The last rope_dim dims of K, which are not in k (KvLayer::rope); 0: none. Only kernels of
  // KvLoading::kConverted read them.
  int32_t rope_dim;
  DType rope_dtype;
  KvView rope;
  Scale rope_part_scale;
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CUDA_GENERAL_ATTENTION_KERNEL_PARAMS_H_
