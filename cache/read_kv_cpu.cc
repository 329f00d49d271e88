#include "cache/read_kv_cpu.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/Float8_e5m2.h>
#include <c10/util/Half.h>
#include <glog/logging.h>

#include <type_traits>

namespace reprise {
namespace {

template <typename Src, typename Dst>
Dst Convert(Src stored, float scale) {
  if constexpr (std::is_same_v<Src, double>) {
    return static_cast<Dst>(stored * scale);
  } else if constexpr (std::is_same_v<Src, Dst>) {
    if (scale == 1.0f) return stored;  // bit for bit
    return static_cast<Dst>(static_cast<float>(stored) * scale);
  } else {
    return static_cast<Dst>(static_cast<float>(stored) * scale);
  }
}

// K or V.
template <typename Src, typename Dst>
void ReadSide(const ReadKvParams& params, const KvView& view, const KvDestination& destination,
              const Scale& scale, int head_dim) {
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    const TokenPlace place = PlaceOfToken(params, token);
    if (!place.is_wanted) continue;
    for (int head = 0; head < params.kv.num_kv_heads; ++head) {
      const float factor =
          scale.data == nullptr
              ? scale.value
              : scale.data[place.table_row * scale.row_stride + head * scale.head_stride];
      Dst* const to = static_cast<Dst*>(destination.data) + token * destination.token_stride +
                      head * destination.head_stride;
      for (int dim = 0; dim < head_dim; ++dim) {
        Dst& element = to[dim * destination.dim_stride];
        if (place.block < 0) {
          element = static_cast<Dst>(0.0f);
        } else {
          element = Convert<Src, Dst>(
              static_cast<const Src*>(view.data)[view.Offset(place.block, place.offset, head, dim)],
              factor);
        }
      }
    }
  }
}

template <typename Src, typename Dst>
void Read(const ReadKvParams& params) {
  const KvLayer& kv = params.kv;
  ReadSide<Src, Dst>(params, kv.k, params.k, kv.k_scale, kv.head_dim_qk);
  if (params.num_sides == 2) {
    ReadSide<Src, Dst>(params, kv.v, params.v, kv.v_scale, kv.head_dim_v);
  }
}

template <typename Dst>
void ReadAs(const ReadKvParams& params) {
  switch (params.kv.dtype) {
    case DType::kFloat64:
      return Read<double, Dst>(params);
    case DType::kFloat32:
      return Read<float, Dst>(params);
    case DType::kFloat16:
      return Read<c10::Half, Dst>(params);
    case DType::kBFloat16:
      return Read<c10::BFloat16, Dst>(params);
    case DType::kFp8E4M3:
      return Read<c10::Float8_e4m3fn, Dst>(params);
    case DType::kFp8E5M2:
      return Read<c10::Float8_e5m2, Dst>(params);
  }
}

}  // namespace

void ReadKvOnCpu(const ReadKvParams& params) {
  switch (params.dtype) {
    case DType::kFloat64:
      return ReadAs<double>(params);
    case DType::kFloat32:
      return ReadAs<float>(params);
    case DType::kFloat16:
      return ReadAs<c10::Half>(params);
    case DType::kBFloat16:
      return ReadAs<c10::BFloat16>(params);
    default:
      LOG(FATAL) << "no KV read into " << params.dtype;
  }
}

}  // namespace reprise
