// What a KV write is, in plain values: the same for the CPU, for CUDA and for the reference.

#ifndef CACHE_WRITE_KV_PARAMS_H_
#define CACHE_WRITE_KV_PARAMS_H_

#include <cstdint>

#include "base/dtype.h"
#include "cache/kv_layer.h"

namespace reprise {

// New keys or values: element (token, head, dim) at
// data[token * token_stride + head * head_stride + dim * dim_stride], strides in elements.
struct KvSource {
  const void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;
};

struct WriteKvParams {
  KvLayer kv = {};
  KvSource k = {};
  KvSource v = {};
  DType source_dtype = DType::kFloat32;   // of k and v
  const int64_t* slot_mapping = nullptr;  // [num_tokens]
  int64_t num_tokens = 0;
  int num_sides = 2;  // K and V; 1: K alone
};

}  // namespace reprise

#endif  // CACHE_WRITE_KV_PARAMS_H_
