#include "reprise/cache/ops/write_kv.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "reprise/base/dtype.h"
#include "reprise/base/parallel/parallel_for.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"
#include "reprise/cache/ops/kv_tensors.h"
#include "reprise/cache/ops/kv_tokens.h"
#include "reprise/cache/ops/write_kv_args.h"
#include "reprise/cache/storage/kv_layout.h"
#include "reprise/cache/tables/slot_mapping.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace reprise {
namespace {

// Minimum bytes per thread: with fewer, an additional thread costs more than it saves.
constexpr int64_t kBytesPerThread = 128 * 1024;

template <typename Src, typename Dst>
Dst Convert(Src value, float scale) {
  if constexpr (std::is_same_v<Src, double> && std::is_same_v<Dst, double>) {
    return value / scale;
  } else {
    float scaled = static_cast<float>(value) / scale;
    if constexpr (std::is_same_v<Dst, c10::Float8_e4m3fn>) {
      constexpr float kMax = 448.0f;
      scaled = scaled > kMax ? kMax : scaled < -kMax ? -kMax : scaled;  // NaN remains NaN
    } else if constexpr (std::is_same_v<Dst, c10::Float8_e5m2>) {
      constexpr float kMax = 57344.0f;
      scaled = scaled > kMax ? kMax : scaled < -kMax ? -kMax : scaled;
    }
    return static_cast<Dst>(scaled);
  }
}

// Writes one head of one token: head_dim elements into the chunks of the view.
template <typename Src, typename Dst>
void WriteHead(const KvSide<ConstKvTokens>& side, const Src* source, Dst* destination,
               float scale) {
  const int64_t stride = side.tokens.dim_stride;
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
void WriteTokens(const WriteKvArgs& args, int64_t begin, int64_t end) {
  const SlotAddresses places(args.kv);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t slot = args.slot_mapping[token];
    if (slot == kNoSlot) continue;
    const SlotAddress place = places.Find(slot);
    for (int i = 0; i < args.num_sides; ++i) {
      const KvSide<ConstKvTokens> side = SideOf(args, i);
      for (int head = 0; head < args.kv.num_kv_heads; ++head) {
        const Src* source = static_cast<const Src*>(side.tokens.data) +
                            token * side.tokens.token_stride + head * side.tokens.head_stride;
        Dst* destination = static_cast<Dst*>(side.view.data) + place.Offset(side.view) +
                           head * side.view.head_stride;
        WriteHead(side, source, destination, ScaleOfHead(side.scale, head));
      }
    }
  }
}

// Errors: InvalidArgument, naming the first slot that is neither -1 nor in the cache; then nothing
// is written.
absl::Status WriteKvOnHost(const WriteKvArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckWriteKv(args));
  const KvLayer& kv = args.kv;
  const int64_t num_slots = SlotAddresses(kv).num_slots();
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const int64_t slot = args.slot_mapping[token];
    if (slot >= kNoSlot && slot < num_slots) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("slot_mapping must name slots of the cache: expected -1 to ", num_slots - 1,
                     " for token ", token, ", got ", slot));
  }
  const int64_t bytes_per_token =
      int64_t{kv.num_kv_heads} * (kv.head_dim_qk + kv.head_dim_v) * SizeOf(kv.dtype);
  const int64_t tokens_per_thread = std::max<int64_t>(kBytesPerThread / bytes_per_token, 1);
  const auto write = [&]<typename Src, typename Dst>(Src, Dst) {
    ParallelFor(0, args.num_tokens, tokens_per_thread,
                [&](int64_t begin, int64_t end) { WriteTokens<Src, Dst>(args, begin, end); });
    return absl::OkStatus();
  };
  if (IsFp8(args.dtype)) {  // fp8 is copied as bytes, so either fp8 type serves
    return write(TorchElements::Fp8E4M3(), TorchElements::Fp8E4M3());
  }
  return WithTokenType<TorchElements>(args.dtype, [&]<typename Src>(Src) {
    return WithCacheType<TorchElements>(kv.dtype,
                                        [&]<typename Dst>(Dst) { return write(Src(), Dst()); });
  });
}

// Returns the dtype of k and v. CheckWriteKv() compares fp8 types.
absl::StatusOr<DType> SourceDType(const KvLayer& kv, const at::Tensor& k) {
  const std::optional<DType> dtype = FromScalarType(k.scalar_type());
  if (dtype && IsFp8(*dtype) && IsFp8(kv.dtype)) return *dtype;
  return SupportedDType("KV write", kv, k);
}

// Binds num_tokens.
absl::Status CheckSlots(const at::Tensor& slot_mapping, ShapeChecker& dims) {
  if (!slot_mapping.defined() || slot_mapping.dim() != 2) {
    REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_tokens"}, at::kLong));
    return CheckLastStrideIsOne("slot_mapping", slot_mapping);
  }
  REPRISE_RETURN_IF_ERROR(
      dims.Check("slot_mapping", slot_mapping, {"num_rows", "num_columns"}, at::kLong));
  dims.Bind("num_tokens", slot_mapping.numel());
  if (slot_mapping.is_contiguous()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("slot_mapping must be contiguous: expected strides [", slot_mapping.size(1),
                   ", 1], got [", slot_mapping.stride(0), ", ", slot_mapping.stride(1), "]"));
}

// Makes all checks except for the values of the slots, and returns the arguments. `v` is undefined
// if only K is written.
absl::StatusOr<WriteKvArgs> ArgsOf(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                                   const at::Tensor& slot_mapping) {
  REPRISE_RETURN_IF_ERROR(CheckKvLayer(kv));
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(CheckSlots(slot_mapping, dims));
  REPRISE_RETURN_IF_ERROR(CheckKvTensors(kv, k, v, dims));
  REPRISE_RETURN_IF_ERROR(CheckDevice("slot_mapping", slot_mapping, k.device()));
  REPRISE_ASSIGN_OR_RETURN(const DType dtype, SourceDType(kv, k));
  WriteKvArgs args = {.kv = kv,
                      .k = ConstTokensOf(k),
                      .v = ConstTokensOf(v),
                      .dtype = dtype,
                      .slot_mapping = slot_mapping.const_data_ptr<int64_t>(),
                      .num_tokens = slot_mapping.numel(),
                      .num_sides = v.defined() ? 2 : 1};
  if (IsFp8(dtype)) args.kv.k_scale = args.kv.v_scale = {};
  REPRISE_RETURN_IF_ERROR(CheckWriteKv(args));
  return args;
}

absl::Status Write(const WriteKvArgs& args, [[maybe_unused]] at::Device device) {
#ifdef REPRISE_WITH_CUDA
  if (device.is_cuda()) {
    const c10::cuda::CUDAGuard guard(device);
    return LaunchWriteKv(args, c10::cuda::getCurrentCUDAStream(device.index()).stream());
  }
#endif
  return WriteKvOnHost(args);
}

// Number of dims of a latent cache that WriteLatentKv() takes from `latent`. The other dims come
// from `rope`.
int LatentDim(const KvLayer& kv) { return kv.rope_dim > 0 ? kv.key_dim() : kv.head_dim_v; }

// Returns a layer whose K is the rope part of `kv`.
KvLayer RopeOf(const KvLayer& kv) {
  KvLayer rope = kv;
  rope.rope_dim = 0;
  rope.head_dim_qk = rope.head_dim_v = kv.head_dim_qk - LatentDim(kv);
  if (kv.rope_dim > 0) {
    rope.k = kv.rope;
    rope.dtype = kv.rope_dtype;
    rope.k_scale = kv.rope_scale;
  } else {
    rope.k.data = static_cast<char*>(kv.k.data) + int64_t{kv.head_dim_v} * SizeOf(kv.dtype);
    rope.k.dim_chunk = rope.head_dim_qk;
  }
  rope.v = rope.k;
  rope.v_scale = rope.k_scale;
  return rope;
}

// Returns a layer whose K is the latent part of `kv`.
KvLayer LatentOf(const KvLayer& kv) {
  KvLayer latent = kv;
  latent.rope_dim = 0;
  latent.head_dim_qk = latent.head_dim_v = LatentDim(kv);
  latent.k.dim_chunk = latent.head_dim_qk;
  latent.v = latent.k;
  latent.v_scale = latent.k_scale;
  return latent;
}

}  // namespace

absl::Status WriteKv(const KvLayer& kv, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& slot_mapping) {
  if (kv.rope_dim != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv.rope_dim: expected 0, got ", kv.rope_dim,
                     ": WriteLatentKv() writes a latent and its rope part"));
  }
  return CatchTorch([&]() -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(const WriteKvArgs args, ArgsOf(kv, k, v, slot_mapping));
    return Write(args, k.device());
  });
}

absl::Status WriteLatentKv(const KvLayer& kv, const at::Tensor& latent, const at::Tensor& rope,
                           const at::Tensor& slot_mapping) {
  if (!IsLatent(kv)) {
    return absl::InvalidArgumentError("kv must be a latent cache: expected v within k");
  }
  if (kv.rope_dim == 0 && (kv.k.dim_chunk < kv.head_dim_qk || kv.head_dim_v >= kv.head_dim_qk)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv must have contiguous dims after the latent: got head_dim_qk ", kv.head_dim_qk,
        ", head_dim_v ", kv.head_dim_v, ", dim_chunk ", kv.k.dim_chunk));
  }
  return CatchTorch([&]() -> absl::Status {
    REPRISE_RETURN_IF_ERROR(CheckKvLayer(kv));
    const KvLayer latent_kv = LatentOf(kv);
    const KvLayer rope_kv = RopeOf(kv);
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(dims.Check("latent", latent, {"rows", latent_kv.head_dim_qk}));
    REPRISE_RETURN_IF_ERROR(dims.Check("rope", rope, {"rope_rows", rope_kv.head_dim_qk}));
    if (rope_kv.dtype == latent_kv.dtype && rope.scalar_type() == latent.scalar_type()) {
      // One launch: uses a layer whose K is the latent part and whose V is the rope part.
      KvLayer parts = latent_kv;
      parts.head_dim_v = rope_kv.head_dim_qk;
      parts.v = rope_kv.k;
      parts.v_scale = rope_kv.k_scale;
      return WriteKv(parts, latent.unsqueeze(1), rope.unsqueeze(1), slot_mapping);
    }
    if (kv.rope_dim == 0) REPRISE_RETURN_IF_ERROR(CheckDType("rope", rope, {latent.scalar_type()}));
    REPRISE_RETURN_IF_ERROR(CheckDevice("rope", rope, latent.device()));
    // Checks both parts before writing either.
    REPRISE_ASSIGN_OR_RETURN(const WriteKvArgs of_latent,
                             ArgsOf(latent_kv, latent.unsqueeze(1), at::Tensor(), slot_mapping));
    REPRISE_ASSIGN_OR_RETURN(const WriteKvArgs of_rope,
                             ArgsOf(rope_kv, rope.unsqueeze(1), at::Tensor(), slot_mapping));
    REPRISE_RETURN_IF_ERROR(Write(of_latent, latent.device()));
    return Write(of_rope, latent.device());
  });
}

}  // namespace reprise
