// The KV cache of one layer as kernels and references access it: pointers, strides, scales. Owns no
// memory. No LibTorch.
//
// One formula covers all common layouts. Element (block, token, head, dim) of a KvView is at
//
//   data[block * block_stride + token * token_stride + head * head_stride
//        + (dim / dim_chunk) * dim_chunk_stride + dim % dim_chunk]       offsets in int64 elements
//
//   layout                                             block  token      head  dim_chunk  step
//   NHD       [num_blocks, block_size, heads, dim]     T*H*D  H*D        D     D          (any)
//   HND       [num_blocks, heads, block_size, dim]     H*T*D  D          T*D   D          (any)
//   packed    [num_blocks, 2, ...]                     2*...  as above; v.data = k.data + T*H*D
//   diffkv    [num_blocks, block_size, heads, Dk+Dv]   T*H*E  H*E        E     Dk, Dv     (any)
//             E = Dk + Dv; v.data = k.data + Dk
//   K-packed  [num_blocks, heads, D/x, block_size, x]  H*D*T  x          D*T   x          T*x
//   V of it   [num_blocks, heads, dim, block_size]     H*D*T  1          D*T   1          T
//   MLA       [num_blocks, block_size, 576], one head  T*576  576        0     576        (any)
//             v = the first 512 dims of k
//   MLA in two tensors                                 T*512  512        0     512        (any)
//             v = k; rope [num_blocks, block_size, 64] has a separate view
//
// The columns are the strides, dim_chunk, and dim_chunk_stride (step). T = block_size, H =
// num_kv_heads, D = head_dim. The K-packed layout is the layout of vLLM's PagedAttention (x = 16 /
// element size).
//
// A KvLayer is a value. Its pointers are valid as long as the owner of the memory (KvCache) exists.

#ifndef REPRISE_CACHE_STORAGE_KV_LAYER_H_
#define REPRISE_CACHE_STORAGE_KV_LAYER_H_

#include <cstdint>

#include "reprise/base/dtype.h"

namespace reprise {

// Dequantisation factor: value = stored * scale. Either a host float, or floats in memory of the
// data's device: per sequence, per head or both. Stride 0 broadcasts. Kernels read `data` when they
// run, so a captured graph uses updated values.
struct Scale {
  float value = 1.0f;  // used if data is null
  // Element (table_row, kv_head) at data[table_row * row_stride + kv_head * head_stride].
  const float* data = nullptr;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct KvView {
  void* data = nullptr;  // element (0, 0, 0, 0)
  int64_t block_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int dim_chunk = 0;  // contiguous dims; head_dim if all dims of a head are contiguous
  int64_t dim_chunk_stride = 0;

  // Element offset from `data`.
  constexpr int64_t Offset(int64_t block, int64_t token, int64_t head, int64_t dim) const {
    return block * block_stride + token * token_stride + head * head_stride +
           (dim / dim_chunk) * dim_chunk_stride + dim % dim_chunk;
  }
};

struct KvLayer {
  KvView k = {};
  KvView v = {};
  DType dtype = DType::kFloat32;
  int num_blocks = 0;  // including the null block, block 0
  int block_size = 0;  // tokens per block
  int num_kv_heads = 0;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  // Writing divides by the scale, reading multiplies. 1 for unquantised caches.
  Scale k_scale = {};
  Scale v_scale = {};
  // For MLA with the latent and the rope part in two tensors. The last rope_dim dims of a key are
  // dims [0, rope_dim) of `rope`, which has a separate dtype and scale. The other dims are in k,
  // and v is a prefix of k. In an absorbed latent, k_scale and v_scale must be equal.
  int rope_dim = 0;  // 0: k has all dims
  DType rope_dtype = DType::kFloat32;
  KvView rope = {};
  Scale rope_scale = {};

  // Number of dims of a key that are in k.
  constexpr int key_dim() const { return head_dim_qk - rope_dim; }
};

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_KV_LAYER_H_
