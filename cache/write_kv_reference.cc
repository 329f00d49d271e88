#include "cache/write_kv_reference.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstring>
#include <type_traits>

namespace reprise {
namespace {

// Calls `f` with a value of the type that `dtype` names.
template <typename F>
void WithType(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat64:
      return f(double());
    case DType::kFloat32:
      return f(float());
    case DType::kFloat16:
      return f(c10::Half());
    case DType::kBFloat16:
      return f(c10::BFloat16());
    case DType::kFp8E4M3:
      return f(c10::Float8_e4m3fn());
    case DType::kFp8E5M2:
      return f(c10::Float8_e5m2());
  }
}

double Load(const void* data, DType dtype, int64_t index) {
  double loaded = 0;
  WithType(dtype, [&]<typename T>(T) {
    if constexpr (std::is_same_v<T, double>) {
      loaded = static_cast<const T*>(data)[index];
    } else {
      loaded = static_cast<float>(static_cast<const T*>(data)[index]);
    }
  });
  return loaded;
}

void Store(void* data, DType dtype, int64_t index, float value) {
  const float largest = dtype == DType::kFp8E4M3 ? 448.0f : 57344.0f;
  if (IsFp8(dtype) && std::abs(value) > largest) value = std::copysign(largest, value);
  WithType(dtype, [&]<typename T>(T) { static_cast<T*>(data)[index] = static_cast<T>(value); });
}

void WriteElement(const KvSource& source, DType source_dtype, int64_t token, const KvView& view,
                  DType dtype, const Scale& scale, int64_t block, int64_t offset, int head,
                  int dim) {
  const int64_t from =
      token * source.token_stride + head * source.head_stride + dim * source.dim_stride;
  const int64_t to = view.Offset(block, offset, head, dim);
  const float factor = scale.data == nullptr ? scale.value : scale.data[head * scale.head_stride];
  if (source_dtype == dtype && factor == 1.0f) {
    std::memcpy(static_cast<char*>(view.data) + to * SizeOf(dtype),
                static_cast<const char*>(source.data) + from * SizeOf(dtype), SizeOf(dtype));
    return;
  }
  const double value = Load(source.data, source_dtype, from);
  if (source_dtype == DType::kFloat64 && dtype == DType::kFloat64) {
    static_cast<double*>(view.data)[to] = value / factor;
    return;
  }
  Store(view.data, dtype, to, static_cast<float>(value) / factor);
}

}  // namespace

void WriteKvReference(const WriteKvParams& params) {
  const KvLayer& kv = params.kv;
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    const int64_t slot = params.slot_mapping[token];
    if (slot < 0 || slot >= int64_t{kv.num_blocks} * kv.block_size) continue;
    const int64_t block = slot / kv.block_size, offset = slot % kv.block_size;
    for (int head = 0; head < kv.num_kv_heads; ++head) {
      for (int dim = 0; dim < kv.head_dim_qk; ++dim) {
        WriteElement(params.k, params.source_dtype, token, kv.k, kv.dtype, kv.k_scale, block,
                     offset, head, dim);
      }
      for (int dim = 0; dim < kv.head_dim_v && params.num_sides == 2; ++dim) {
        WriteElement(params.v, params.source_dtype, token, kv.v, kv.dtype, kv.v_scale, block,
                     offset, head, dim);
      }
    }
  }
}

}  // namespace reprise
