// Shared parts of writing and reading keys and values, on the host and the device: tokens in
// memory, their slots in the cache, scales, and element types.
//
// No LibTorch and no CUDA; nvcc also compiles the constexpr functions for the device.

#ifndef REPRISE_CACHE_OPS_KV_TOKENS_H_
#define REPRISE_CACHE_OPS_KV_TOKENS_H_

#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "reprise/base/check.h"
#include "reprise/base/divisor.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

// Keys or values outside the cache: element (token, head, dim) is at data[token * token_stride +
// head * head_stride + dim * dim_stride]. Strides are in elements.
template <typename Void>
struct BasicKvTokens {
  Void* data = nullptr;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  int64_t dim_stride = 1;
};
using KvTokens = BasicKvTokens<void>;
using ConstKvTokens = BasicKvTokens<const void>;

// K or V of one operation: the tokens and their cache layer.
template <typename Tokens>
struct KvSide {
  Tokens tokens = {};
  KvView view = {};
  Scale scale = {};
  int head_dim = 0;
};

// Returns side 0 (K) or 1 (V) of WriteKvArgs or ReadKvArgs.
template <typename Args>
constexpr KvSide<decltype(Args::k)> SideOf(const Args& args, int side) {
  const KvLayer& kv = args.kv;
  if (side == 0) return {args.k, kv.k, kv.k_scale, kv.head_dim_qk};
  return {args.v, kv.v, kv.v_scale, kv.head_dim_v};
}

constexpr float ScaleOfHead(const Scale& scale, int head, int64_t table_row = 0) {
  return scale.data == nullptr
             ? scale.value
             : scale.data[table_row * scale.row_stride + head * scale.head_stride];
}

// The address of a token in the cache.
struct SlotAddress {
  int64_t block = -1;
  int offset = 0;         // within the block
  bool is_there = false;  // false for -1 and for slots past the end of the cache

  // The offset of the token's first head and dim, in elements.
  constexpr int64_t Offset(const KvView& view) const {
    return block * view.block_stride + offset * view.token_stride;
  }
};

// Converts slots to addresses. Construct it on the host, and pass it to a kernel as a parameter:
//
//   const SlotAddress place = places.Find(slot_mapping[t]);
//   if (place.is_there) data[place.Offset(view)] = ...;    // head 0, dim 0
class SlotAddresses {
 public:
  SlotAddresses() = default;
  constexpr explicit SlotAddresses(const KvLayer& kv)
      : num_slots_(int64_t{kv.num_blocks} * kv.block_size), block_size_(kv.block_size) {}

  constexpr SlotAddress Find(int64_t slot) const {
    // Most caches have fewer than 2^31 slots, for which the division takes three instructions.
    const int64_t block = slot <= INT32_MAX ? block_size_.Divide(static_cast<uint32_t>(slot))
                                            : slot / block_size_.value();
    return {.block = block,
            .offset = static_cast<int>(slot - block * block_size_.value()),
            .is_there = slot >= 0 && slot < num_slots_};
  }

  constexpr int64_t num_slots() const { return num_slots_; }
  // Divisor for keys and slots below 2^31.
  constexpr const Divisor& block_size() const { return block_size_; }

 private:
  int64_t num_slots_ = 0;
  Divisor block_size_;
};

// Size of the widest load or store of a kernel.
inline constexpr int kAccessBytes = 16;

// Whether addresses remain multiples of `unit` elements along a dimension of `size` with this
// stride.
constexpr bool KeepsAligned(int64_t stride, int64_t size, int64_t unit) {
  return size <= 1 || stride % unit == 0;
}

// Whether a thread can load or store, at once, the token elements that correspond to kAccessBytes
// of cache. The token elements have type `dtype`.
template <typename Tokens>
bool HaveWholeAccesses(const KvLayer& kv, const Tokens& tokens, DType dtype, int64_t num_tokens) {
  const int wanted_bytes = kAccessBytes / SizeOf(kv.dtype) * SizeOf(dtype);
  const int bytes = wanted_bytes < kAccessBytes ? wanted_bytes : kAccessBytes;
  const int unit = bytes / SizeOf(dtype);
  return reinterpret_cast<uintptr_t>(tokens.data) % bytes == 0 && tokens.dim_stride == 1 &&
         KeepsAligned(tokens.token_stride, num_tokens, unit) &&
         KeepsAligned(tokens.head_stride, kv.num_kv_heads, unit);
}

// Number of elements that a thread moves at once: kAccessBytes of cache if strides and addresses
// allow it, otherwise 1.
template <typename Tokens>
int ElementsPerAccess(const KvLayer& kv, const KvSide<Tokens>& side, DType dtype,
                      int64_t num_tokens) {
  const KvView& view = side.view;
  const int n = kAccessBytes / SizeOf(kv.dtype);
  const bool has_whole_accesses = reinterpret_cast<uintptr_t>(view.data) % kAccessBytes == 0 &&
                                  side.head_dim % n == 0 &&
                                  KeepsAligned(view.block_stride, kv.num_blocks, n) &&
                                  KeepsAligned(view.token_stride, kv.block_size, n) &&
                                  KeepsAligned(view.head_stride, kv.num_kv_heads, n) &&
                                  (view.dim_chunk >= side.head_dim ||
                                   (view.dim_chunk % n == 0 && view.dim_chunk_stride % n == 0));
  return has_whole_accesses && HaveWholeAccesses(kv, side.tokens, dtype, num_tokens) ? n : 1;
}

// Calls f(T()), where T is the type of `dtype` in Types: TorchElements (base/torch_dtype.h) on the
// host, or CudaElements (cache/ops/kv_elements.cuh) for the device. Types::Float64 is void if
// float64 is not supported. Errors: the errors of f; Unimplemented for another dtype.
template <typename Types, typename F>
absl::Status WithTokenType(DType dtype, F f) {
  switch (dtype) {
    case DType::kFloat64:
      if constexpr (!std::is_void_v<typename Types::Float64>) return f(typename Types::Float64());
      break;
    case DType::kFloat32:
      return f(float());
    case DType::kFloat16:
      return f(typename Types::Float16());
    case DType::kBFloat16:
      return f(typename Types::BFloat16());
    default:
      break;
  }
  return absl::UnimplementedError(
      std::is_void_v<typename Types::Float64>
          ? "dtype of keys and values: expected float32, float16 or bfloat16, got another"
          : "dtype of keys and values: expected float32, float16, bfloat16 or float64, got "
            "another");
}

// Like WithTokenType(), for cache dtypes, which include fp8.
template <typename Types, typename F>
absl::Status WithCacheType(DType dtype, F f) {
  if (dtype == DType::kFp8E4M3) return f(typename Types::Fp8E4M3());
  if (dtype == DType::kFp8E5M2) return f(typename Types::Fp8E5M2());
  return WithTokenType<Types>(dtype, f);
}

// Checks common to WriteKvArgs and ReadKvArgs: the layer has sizes and memory, and tokens are
// given. Errors: InvalidArgument naming the field.
absl::Status CheckKvLayer(const KvLayer& kv);
template <typename Args>
absl::Status CheckKvArgs(const Args& args) {
  REPRISE_RETURN_IF_ERROR(CheckKvLayer(args.kv));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_sides", args.num_sides, 1, 2));
  if (args.num_tokens == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("k", args.k.data));
  return args.num_sides == 1 ? absl::OkStatus() : CheckGiven("v", args.v.data);
}

// Checks that a scale does not depend on the row of a block table, because tokens given by slot
// have no row.
absl::Status CheckHasNoRows(std::string_view name, const Scale& scale);

// Checks that the scale is 1 on the host.
absl::Status CheckIsOne(std::string_view name, const Scale& scale);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_TOKENS_H_
