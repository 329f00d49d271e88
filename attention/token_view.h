// q, k, v or out as kernels and references read them: a pointer, strides and a dtype. No LibTorch.

#ifndef REPRISE_ATTENTION_TOKEN_VIEW_H_
#define REPRISE_ATTENTION_TOKEN_VIEW_H_

#include <cstdint>

#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Element (token, head, dim) is at data[token * token_stride + head * head_stride + dim]; strides
// are in elements. A value without storage.
struct TokenView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t token_stride = 0;
  int64_t head_stride = 0;

  constexpr int64_t Offset(int64_t token, int64_t head) const {
    return token * token_stride + head * head_stride;
  }
};

// Keys and values that replace cached ones: the last query_len keys of each row. The key of the
// i-th token replaces key seq_len - query_len + i. The cache's scales do not apply to them.
struct NewKeys {
  TokenView k = {};  // [num_tokens, num_kv_heads, head_dim_qk]; null data: no new keys
  TokenView v = {};  // [num_tokens, num_kv_heads, head_dim_v]
};

// Scales of contiguous keys and values. The scales of a cache are in its KvLayer.
struct KeyScales {
  Scale k = {};
  Scale v = {};
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TOKEN_VIEW_H_
