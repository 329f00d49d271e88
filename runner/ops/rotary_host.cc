#include "runner/ops/rotary_host.h"

#include <ATen/Parallel.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/torch_dtype.h"
#include "runner/ops/activation_type.h"

namespace reprise {
namespace {

// Tokens that are worth a task of their own.
constexpr int64_t kGrainTokens = 16;

// Too large values become the largest finite one in the fp8 types, as CUDA's saturating conversion
// makes them.
template <typename C>
C ToCache(float value) {
  if constexpr (sizeof(C) == 1) {
    constexpr float kLargest = std::is_same_v<C, c10::Float8_e4m3fn> ? 448.0f : 57344.0f;
    if (!std::isnan(value)) value = std::clamp(value, -kLargest, kLargest);
  }
  return static_cast<C>(value);
}

float ScaleOf(const Scale& scale, int head) {
  return scale.data != nullptr ? scale.data[head * scale.head_stride] : scale.value;
}

// One head of a slot of the cache.
template <typename C>
class CacheHead {
 public:
  CacheHead(const KvView& view, const Scale& scale, int block_size, int64_t slot, int head)
      : view_(view),
        head_(static_cast<C*>(view.data) +
              view.Offset(slot / block_size, slot % block_size, head, 0)),
        scale_(ScaleOf(scale, head)) {}

  void Store(int dim, float value) {
    head_[(dim / view_.dim_chunk) * view_.dim_chunk_stride + dim % view_.dim_chunk] =
        ToCache<C>(value / scale_);
  }

 private:
  const KvView& view_;
  C* head_;
  float scale_;
};

template <typename T>
struct InPlaceHead {
  T* head;
  void Store(int dim, float value) { head[dim] = static_cast<T>(value); }
};

template <typename T>
T* HeadOf(const HeadsView& view, int64_t token, int head) {
  return static_cast<T*>(view.data) + token * view.token_stride + head * view.head_stride;
}

// Stores the head rotated; `target` may write to where `x` is read from.
template <typename T, typename Target>
void Rotate(const T* x, const float* table_row, int rotary_dim, Target target) {
  const int half = rotary_dim / 2;
  for (int d = 0; d < half; ++d) {
    const float cos = table_row[d];
    const float sin = table_row[half + d];
    const float first = x[d];
    const float second = x[half + d];
    target.Store(d, first * cos - second * sin);
    target.Store(half + d, second * cos + first * sin);
  }
}

template <typename T, typename C>
void WriteToken(const RotaryArgs& args, const float* table_row, int64_t token, int64_t slot) {
  for (int head = 0; head < args.k.num_heads; ++head) {
    CacheHead<C> k_target(args.kv.k, args.kv.k_scale, args.kv.block_size, slot, head);
    const T* k = HeadOf<T>(args.k, token, head);
    Rotate(k, table_row, args.rotary_dim, k_target);
    for (int d = args.rotary_dim; d < args.head_dim_qk; ++d) k_target.Store(d, k[d]);

    CacheHead<C> v_target(args.kv.v, args.kv.v_scale, args.kv.block_size, slot, head);
    const T* v = HeadOf<T>(args.v, token, head);
    for (int d = 0; d < args.head_dim_v; ++d) v_target.Store(d, v[d]);
  }
}

template <typename T, typename C>
void Run(const RotaryArgs& args) {
  at::parallel_for(0, args.num_tokens, kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float* row = args.table + int64_t{args.positions[token]} * args.rotary_dim;
      const auto rotate_in_place = [&](const HeadsView& heads) {
        for (int head = 0; head < heads.num_heads; ++head) {
          T* x = HeadOf<T>(heads, token, head);
          Rotate(x, row, args.rotary_dim, InPlaceHead<T>{x});
        }
      };
      rotate_in_place(args.q);
      if (args.slot_mapping == nullptr) {
        rotate_in_place(args.k);
      } else if (token < args.num_slots && args.slot_mapping[token] >= 0) {
        WriteToken<T, C>(args, row, token, args.slot_mapping[token]);
      }
    }
  });
}

template <typename T>
void RunForCache(const RotaryArgs& args) {
  switch (args.kv.dtype) {
    case DType::kFp8E4M3:
      return Run<T, c10::Float8_e4m3fn>(args);
    case DType::kFp8E5M2:
      return Run<T, c10::Float8_e5m2>(args);
    case DType::kFloat64:
      return Run<T, double>(args);
    default:
      VisitActivationType(ToScalarType(args.kv.dtype),
                          [&](auto zero) { Run<T, decltype(zero)>(args); });
  }
}

}  // namespace

void RotaryOnHost(const RotaryArgs& args) {
  VisitActivationType(ToScalarType(args.dtype), [&](auto zero) {
    using T = decltype(zero);
    args.slot_mapping == nullptr ? Run<T, T>(args) : RunForCache<T>(args);
  });
}

}  // namespace reprise
