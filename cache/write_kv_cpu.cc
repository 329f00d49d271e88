#include "cache/write_kv_cpu.h"

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>
#include <glog/logging.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "cache/slot_mapping.h"

namespace reprise {
namespace {

// Below this many bytes a thread costs more than it moves.
constexpr int64_t kBytesPerThread = 128 * 1024;

// K or V: where it comes from and where it goes.
struct Side {
  const KvSource& source;
  const KvView& view;
  const Scale& scale;
  int head_dim;

  float scale_of(int head) const {
    return scale.data == nullptr ? scale.value : scale.data[head * scale.head_stride];
  }
};

template <typename Src, typename Dst>
Dst Convert(Src value, float scale) {
  if constexpr (std::is_same_v<Src, double> && std::is_same_v<Dst, double>) {
    return value / scale;
  } else {
    float scaled = static_cast<float>(value) / scale;
    if constexpr (std::is_same_v<Dst, c10::Float8_e4m3fn>) {
      constexpr float kMax = 448.0f;
      scaled = scaled > kMax ? kMax : scaled < -kMax ? -kMax : scaled;  // NaN passes
    } else if constexpr (std::is_same_v<Dst, c10::Float8_e5m2>) {
      constexpr float kMax = 57344.0f;
      scaled = scaled > kMax ? kMax : scaled < -kMax ? -kMax : scaled;
    }
    return static_cast<Dst>(scaled);
  }
}

// One token's head: `head_dim` elements into chunks of the view.
template <typename Src, typename Dst>
void WriteHead(const Side& side, const Src* source, Dst* destination, float scale) {
  const int64_t stride = side.source.dim_stride;
  for (int first = 0; first < side.head_dim; first += side.view.dim_chunk) {
    const int count = std::min(side.view.dim_chunk, side.head_dim - first);
    const Src* from = source + first * stride;
    Dst* to = destination + (first / side.view.dim_chunk) * side.view.dim_chunk_stride;
    if (std::is_same_v<Src, Dst> && scale == 1.0f && stride == 1) {
      std::memcpy(to, from, count * sizeof(Dst));
    } else if (std::is_same_v<Src, Dst> && scale == 1.0f) {
      for (int i = 0; i < count; ++i) std::memcpy(&to[i], &from[i * stride], sizeof(Dst));
    } else if (stride == 1) {
      for (int i = 0; i < count; ++i) to[i] = Convert<Src, Dst>(from[i], scale);
    } else {
      for (int i = 0; i < count; ++i) to[i] = Convert<Src, Dst>(from[i * stride], scale);
    }
  }
}

template <typename Src, typename Dst>
void WriteTokens(const WriteKvParams& params, int64_t begin, int64_t end) {
  const KvLayer& kv = params.kv;
  const Side sides[] = {{params.k, kv.k, kv.k_scale, kv.head_dim_qk},
                        {params.v, kv.v, kv.v_scale, kv.head_dim_v}};
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = params.slot_mapping[token];
    if (slot == kNoSlot) continue;
    for (int i = 0; i < params.num_sides; ++i) {
      const Side& side = sides[i];
      for (int head = 0; head < kv.num_kv_heads; ++head) {
        const Src* source = static_cast<const Src*>(side.source.data) +
                            token * side.source.token_stride + head * side.source.head_stride;
        Dst* destination =
            static_cast<Dst*>(side.view.data) +
            side.view.Offset(slot / kv.block_size, slot % kv.block_size, head, /*dim=*/0);
        WriteHead(side, source, destination, side.scale_of(head));
      }
    }
  }
}

using WriteTokensFn = void (*)(const WriteKvParams&, int64_t begin, int64_t end);

template <typename Src>
WriteTokensFn FnForCache(DType cache) {
  switch (cache) {
    case DType::kFloat64:
      return WriteTokens<Src, double>;
    case DType::kFloat32:
      return WriteTokens<Src, float>;
    case DType::kFloat16:
      return WriteTokens<Src, c10::Half>;
    case DType::kBFloat16:
      return WriteTokens<Src, c10::BFloat16>;
    case DType::kFp8E4M3:
      return WriteTokens<Src, c10::Float8_e4m3fn>;
    case DType::kFp8E5M2:
      return WriteTokens<Src, c10::Float8_e5m2>;
  }
  return nullptr;
}

WriteTokensFn FnFor(DType source, DType cache) {
  switch (source) {
    case DType::kFloat64:
      return FnForCache<double>(cache);
    case DType::kFloat32:
      return FnForCache<float>(cache);
    case DType::kFloat16:
      return FnForCache<c10::Half>(cache);
    case DType::kBFloat16:
      return FnForCache<c10::BFloat16>(cache);
    default:
      return nullptr;
  }
}

}  // namespace

absl::Status WriteKvOnCpu(const WriteKvParams& params) {
  const KvLayer& kv = params.kv;
  const int64_t num_slots = int64_t{kv.num_blocks} * kv.block_size;
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    const int64_t slot = params.slot_mapping[token];
    if (slot < kNoSlot || slot >= num_slots) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot_mapping must name slots of the cache: expected -1 to ", num_slots - 1,
                       " for token ", token, ", got ", slot));
    }
  }
  const WriteTokensFn write = FnFor(params.source_dtype, kv.dtype);
  CHECK(write != nullptr) << params.source_dtype << " into " << kv.dtype;
  const int64_t bytes_per_token =
      int64_t{kv.num_kv_heads} * (kv.head_dim_qk + kv.head_dim_v) * SizeOf(kv.dtype);
  const int64_t tokens_per_thread = std::max<int64_t>(kBytesPerThread / bytes_per_token, 1);
  at::parallel_for(0, params.num_tokens, tokens_per_thread,
                   [&](int64_t begin, int64_t end) { write(params, begin, end); });
  return absl::OkStatus();
}

}  // namespace reprise
