#include "reprise/cache/ops/read_kv.h"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "reprise/base/dtype.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/ops/kv_tensors.h"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/ops/read_kv_args.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace reprise {
namespace {

template <typename Src, typename Dst>
Dst Convert(Src stored, float scale) {
  if constexpr (std::is_same_v<Src, double>) {
    return static_cast<Dst>(stored * scale);
  } else if constexpr (std::is_same_v<Src, Dst>) {
    if (scale == 1.0f) return stored;  // bitwise identical
    return static_cast<Dst>(static_cast<float>(stored) * scale);
  } else {
    return static_cast<Dst>(static_cast<float>(stored) * scale);
  }
}

template <typename Src, typename Dst>
void ReadTokens(const ReadKvArgs& args) {
  const SlotAddresses places(args.kv);
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const TokenAddress found = PlaceOfToken(args, places, token);
    if (!found.is_wanted) continue;
    const SlotAddress& place = found.place;
    for (int i = 0; i < args.num_sides; ++i) {
      const KvSide<KvTokens> side = SideOf(args, i);
      for (int head = 0; head < args.kv.num_kv_heads; ++head) {
        const float scale = ScaleOfHead(side.scale, head, found.table_row);
        Dst* const to = static_cast<Dst*>(side.tokens.data) + token * side.tokens.token_stride +
                        head * side.tokens.head_stride;
        for (int dim = 0; dim < side.head_dim; ++dim) {
          Dst& element = to[dim * side.tokens.dim_stride];
          if (!place.is_there) {
            element = static_cast<Dst>(0.0f);
          } else {
            const int64_t from = side.view.Offset(place.block, place.offset, head, dim);
            element = Convert<Src, Dst>(static_cast<const Src*>(side.view.data)[from], scale);
          }
        }
      }
    }
  }
}

// Scales in float64 only if the cache is float64.
absl::Status ReadKvOnHost(const ReadKvArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckReadKv(args));
  return WithTokenType<TorchElements>(args.dtype, [&]<typename Dst>(Dst) {
    return WithCacheType<TorchElements>(args.kv.dtype, [&]<typename Src>(Src) {
      ReadTokens<Src, Dst>(args);
      return absl::OkStatus();
    });
  });
}

// Runs the read. Sets kv, k, v, dtype and num_sides of `args`.
absl::Status Run(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v, ReadKvArgs args) {
  if (kv.rope_dim > 0) {  // reads the two parts of k one after the other
    KvLayer part = kv;
    part.rope_dim = 0;
    part.head_dim_qk = part.head_dim_v = kv.key_dim();
    REPRISE_RETURN_IF_ERROR(Run(part, k.narrow(2, 0, kv.key_dim()), v, args));
    part.head_dim_qk = part.head_dim_v = kv.rope_dim;
    part.k = part.v = kv.rope;
    part.dtype = kv.rope_dtype;
    part.k_scale = part.v_scale = kv.rope_scale;
    return Run(part, k.narrow(2, kv.key_dim(), kv.rope_dim), v, args);
  }
  REPRISE_ASSIGN_OR_RETURN(args.dtype, SupportedDType("KV read", kv, k));
  args.kv = kv;
  args.k = TokensOf(k);
  args.v = TokensOf(v);
  args.num_sides = v.defined() ? 2 : 1;
  if (args.num_tokens == 0) return absl::OkStatus();
#ifdef REPRISE_WITH_CUDA
  if (k.is_cuda()) {
    const c10::cuda::CUDAGuard guard(k.device());
    return LaunchReadKv(args, c10::cuda::getCurrentCUDAStream(k.device().index()).stream());
  }
#endif
  return ReadKvOnHost(args);
}

absl::Status CheckOptional(ShapeChecker& dims, const char* name, const at::Tensor& tensor,
                           at::Device device) {
  if (!tensor.defined()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {"num_rows"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, tensor));
  return CheckDevice(name, tensor, device);
}

const int32_t* DataOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<int32_t>() : nullptr;
}

}  // namespace

absl::Status ReadKv(const KvLayer& kv, const at::Tensor& slot_mapping, const at::Tensor& k,
                    const at::Tensor& v) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckKvLayer(kv));
    REPRISE_RETURN_IF_ERROR(CheckHasNoRows("kv.k_scale", kv.k_scale));
    REPRISE_RETURN_IF_ERROR(CheckHasNoRows("kv.v_scale", kv.v_scale));
    REPRISE_RETURN_IF_ERROR(CheckHasNoRows("kv.rope_scale", kv.rope_scale));
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_tokens"}, at::kLong));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("slot_mapping", slot_mapping));
    REPRISE_RETURN_IF_ERROR(CheckKvTensors(kv, k, v, dims));
    REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slot_mapping, k.device()));
    return Run(kv, k, v,
               {.num_tokens = slot_mapping.size(0),
                .slot_mapping = slot_mapping.const_data_ptr<int64_t>()});
  });
}

absl::Status ReadKvRows(const KvLayer& kv, const KvRows& rows, const at::Tensor& k,
                        const at::Tensor& v) {
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckKvLayer(kv));
    ShapeChecker dims;
    dims.Bind("num_tokens", 0);
    REPRISE_RETURN_IF_ERROR(CheckKvTensors(kv, k, v, dims));
    REPRISE_RETURN_IF_ERROR(
        dims.Check("block_table", rows.block_table, {"num_tables", "max_blocks"}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("block_table", rows.block_table));
    REPRISE_RETURN_IF_ERROR(CheckDevice("block_table", rows.block_table, k.device()));
    REPRISE_RETURN_IF_ERROR(dims.Check("start_loc", rows.start_loc, {AtLeast(Dim(1))}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("start_loc", rows.start_loc));
    REPRISE_RETURN_IF_ERROR(CheckDevice("start_loc", rows.start_loc, k.device()));
    dims.Bind("num_rows", rows.start_loc.size(0) - 1);
    REPRISE_RETURN_IF_ERROR(CheckOptional(dims, "table_row", rows.table_row, k.device()));
    REPRISE_RETURN_IF_ERROR(CheckOptional(dims, "key_start", rows.key_start, k.device()));
    const int64_t num_tokens = v.defined() ? std::min(k.size(0), v.size(0)) : k.size(0);
    return Run(kv, k, v,
               {.num_tokens = num_tokens,
                .block_table = rows.block_table.const_data_ptr<int32_t>(),
                .table_stride = rows.block_table.stride(0),
                .num_tables = static_cast<int>(rows.block_table.size(0)),
                .max_blocks = static_cast<int>(rows.block_table.size(1)),
                .start_loc = rows.start_loc.const_data_ptr<int32_t>(),
                .table_row = DataOf(rows.table_row),
                .key_start = DataOf(rows.key_start),
                .num_rows = static_cast<int>(rows.start_loc.size(0) - 1)});
  });
}

}  // namespace reprise
