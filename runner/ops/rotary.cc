#include "reprise/runner/ops/rotary.h"

#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "reprise/base/parallel/parallel_for.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/activation_type.h"
#include "reprise/runner/ops/rotary_args.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

// Minimum number of tokens per task.
constexpr int64_t kGrainTokens = 16;

// Converts `value` to the cache's type. In the fp8 types only, values that are too large become the
// largest finite value, as in CUDA's saturating conversion.
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

// Rotates the first rotary_dim dims of a head and stores them; `target` may write to `x` itself.
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
void RotateTokens(const RotaryArgs& args) {
  ParallelFor(0, args.num_tokens, kGrainTokens, [&](int64_t begin, int64_t end) {
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
void RotateForCache(const RotaryArgs& args) {
  switch (args.kv.dtype) {
    case DType::kFp8E4M3:
      return RotateTokens<T, c10::Float8_e4m3fn>(args);
    case DType::kFp8E5M2:
      return RotateTokens<T, c10::Float8_e5m2>(args);
    case DType::kFloat64:
      return RotateTokens<T, double>(args);
    default:
      VisitActivationType(ToScalarType(args.kv.dtype),
                          [&](auto zero) { RotateTokens<T, decltype(zero)>(args); });
  }
}

// REQUIRES: positions and slots are in range.
void RotaryOnHost(const RotaryArgs& args) {
  VisitActivationType(ToScalarType(args.dtype), [&](auto zero) {
    using T = decltype(zero);
    args.slot_mapping == nullptr ? RotateTokens<T, T>(args) : RotateForCache<T>(args);
  });
}

absl::Status CheckHeads(ShapeChecker& dims, const char* name, const at::Tensor& heads,
                        const char* num_heads, const char* head_dim, const at::Tensor& like) {
  REPRISE_RETURN_IF_ERROR(
      dims.Check(name, heads, {"num_tokens", num_heads, head_dim}, like.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice(name, heads, like.device()));
  return CheckLastStrideIsOne(name, heads);
}

HeadsView ViewOf(const at::Tensor& heads) {
  return {.data = heads.mutable_data_ptr(),
          .token_stride = heads.stride(0),
          .head_stride = heads.stride(1),
          .num_heads = static_cast<int>(heads.size(1))};
}

// Checks the arguments common to both functions and stores them in `args`.
absl::Status CheckRotation(ShapeChecker& dims, const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& positions, const at::Tensor& table, RotaryArgs& args) {
  REPRISE_RETURN_IF_ERROR(dims.Check("q", q, {"num_tokens", "num_q_heads", "head_dim_qk"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("q", q));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("q", q));
  REPRISE_RETURN_IF_ERROR(CheckHeads(dims, "k", k, "num_kv_heads", "head_dim_qk", q));
  REPRISE_RETURN_IF_ERROR(dims.Check("positions", positions, {"num_tokens"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("positions", positions));
  REPRISE_RETURN_IF_ERROR(CheckDevice("positions", positions, q.device()));
  REPRISE_RETURN_IF_ERROR(dims.Check("table", table, {"max_positions", "rotary_dim"}, at::kFloat));
  REPRISE_RETURN_IF_ERROR(CheckDevice("table", table, q.device()));
  if (!table.is_contiguous() || table.size(0) == 0 || table.size(1) % 2 != 0 ||
      table.size(1) > q.size(2)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table must be contiguous, [max_positions, rotary_dim]: expected an even rotary_dim of at "
        "most ",
        q.size(2), ", got [", table.size(0), ", ", table.size(1), "]"));
  }
  args.dtype = *FromScalarType(q.scalar_type());
  args.q = ViewOf(q);
  args.k = ViewOf(k);
  args.num_tokens = static_cast<int>(q.size(0));
  args.head_dim_qk = static_cast<int>(q.size(2));
  args.positions = positions.const_data_ptr<int32_t>();
  args.table = table.const_data_ptr<float>();
  args.max_positions = static_cast<int>(table.size(0));
  args.rotary_dim = static_cast<int>(table.size(1));
  return absl::OkStatus();
}

absl::Status CheckKvLayer(const KvLayer& kv, const RotaryArgs& args) {
  const auto check = [](const char* field, int got, int expected) -> absl::Status {
    if (got == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("kv has the wrong ", field, ": expected ", expected, ", got ", got));
  };
  REPRISE_RETURN_IF_ERROR(check("num_kv_heads", kv.num_kv_heads, args.k.num_heads));
  REPRISE_RETURN_IF_ERROR(check("head_dim_qk", kv.head_dim_qk, args.head_dim_qk));
  REPRISE_RETURN_IF_ERROR(check("head_dim_v", kv.head_dim_v, args.head_dim_v));
  REPRISE_RETURN_IF_ERROR(check("rope_dim", kv.rope_dim, 0));
  // This operation has no access to a token's row of the block table.
  for (const Scale* scale : {&kv.k_scale, &kv.v_scale}) {
    if (scale->data != nullptr && scale->row_stride != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv must have scales per tensor or per head to be written: expected "
                       "row_stride 0, got ",
                       scale->row_stride));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRanges(const RotaryArgs& args) {
  for (int i = 0; i < args.num_tokens; ++i) {
    if (args.positions[i] < 0 || args.positions[i] >= args.max_positions) {
      return absl::OutOfRangeError(absl::StrCat("positions must be in the table: expected [0, ",
                                                args.max_positions, "), got ", args.positions[i],
                                                " at ", i));
    }
  }
  const int64_t num_cache_slots = int64_t{args.kv.num_blocks} * args.kv.block_size;
  for (int i = 0; i < args.num_slots; ++i) {
    if (args.slot_mapping[i] >= num_cache_slots) {
      return absl::OutOfRangeError(
          absl::StrCat("slot_mapping must be in the cache: expected less "
                       "than ",
                       num_cache_slots, ", got ", args.slot_mapping[i], " at ", i));
    }
  }
  return absl::OkStatus();
}

// Stores the norm in `args`, or applies it now if the launch cannot.
absl::Status TakeNorm(const at::Tensor& q, const at::Tensor& k,
                      const std::optional<HeadNormOptions>& norm,
                      [[maybe_unused]] RotaryArgs& args) {
  if (!norm.has_value()) return absl::OkStatus();
#ifdef REPRISE_WITH_CUDA
  if (q.is_cuda()) {
    REPRISE_RETURN_IF_ERROR(CheckHeadNorm(q, k, *norm));
    const auto pointer = [](const std::optional<at::Tensor>& weight) {
      return weight.has_value() ? weight->const_data_ptr() : nullptr;
    };
    args.norm = {.is_on = true,
                 .q_weight = pointer(norm->q_weight),
                 .k_weight = pointer(norm->k_weight),
                 .eps = norm->eps,
                 .form = norm->form};
    if (CanNormaliseWhileRotating(args)) return absl::OkStatus();
    args.norm = {};
  }
#endif
  return NormaliseHeads(q, k, *norm);
}

absl::Status Run(const at::Tensor& q, const at::Tensor& k,
                 const std::optional<HeadNormOptions>& norm, RotaryArgs& args) {
  if (args.num_tokens == 0) return absl::OkStatus();
  if (q.is_cpu()) REPRISE_RETURN_IF_ERROR(CheckRanges(args));
  REPRISE_RETURN_IF_ERROR(TakeNorm(q, k, norm, args));
#ifdef REPRISE_WITH_CUDA
  if (q.is_cuda()) {
    return LaunchOnCurrentStream(q,
                                 [&](cudaStream_t stream) { return LaunchRotary(args, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("q", q, at::kCPU));
  RotaryOnHost(args);
  return absl::OkStatus();
}

}  // namespace

absl::Status Rotary(const at::Tensor& q, const at::Tensor& k, const at::Tensor& positions,
                    const at::Tensor& table, const std::optional<HeadNormOptions>& norm) {
  ShapeChecker dims;
  RotaryArgs args;
  REPRISE_RETURN_IF_ERROR(CheckRotation(dims, q, k, positions, table, args));
  return Run(q, k, norm, args);
}

absl::Status RotaryWriteKv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& positions, const at::Tensor& table, const KvLayer& kv,
                           const at::Tensor& slot_mapping,
                           const std::optional<HeadNormOptions>& norm) {
  ShapeChecker dims;
  RotaryArgs args;
  REPRISE_RETURN_IF_ERROR(CheckRotation(dims, q, k, positions, table, args));
  REPRISE_RETURN_IF_ERROR(CheckHeads(dims, "v", v, "num_kv_heads", "head_dim_v", q));
  args.v = ViewOf(v);
  args.head_dim_v = static_cast<int>(v.size(2));
  REPRISE_RETURN_IF_ERROR(CheckKvLayer(kv, args));
  args.kv = kv;

  REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_slots"}, at::kLong));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("slot_mapping", slot_mapping));
  REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slot_mapping, q.device()));
  if (slot_mapping.size(0) > q.size(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("slot_mapping must not be longer than q: expected at most ", q.size(0),
                     ", got ", slot_mapping.size(0)));
  }
  // Without slots, only q is rotated. A null slot_mapping would rotate k in place.
  static constexpr int64_t kNoSlot = -1;
  args.num_slots = static_cast<int>(slot_mapping.size(0));
  args.slot_mapping = args.num_slots > 0 ? slot_mapping.const_data_ptr<int64_t>() : &kNoSlot;
  return Run(q, k, norm, args);
}

}  // namespace reprise
